"""What is sent arrives: on the device, or where kernels read it, and nobody has to wait for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_twins import DEVICES

from sb3_extra_buffers.gpu_buffers import transfer
from sb3_extra_buffers.gpu_buffers.kernels.scatter import scatter, scatter_reference

DEVICE = pytest.mark.parametrize("device", DEVICES)


@DEVICE
@pytest.mark.parametrize("n", [7, 3_000, 300_000])  # in a piece of pinned memory that is kept, and in one that is not
def test_arrays_and_tensors(n: int, device: str) -> None:
    came = []
    for i in range(300 if n < 1000 else 20):  # each piece of pinned memory is used more than once
        arrays = [np.full((n, 2), i), np.full((n, 1, 1), i, np.float32), np.full((), i, np.int32), np.zeros((0, 2))]
        came.append(transfer.to_device(arrays, torch.device(device)))
    for i, tensors in enumerate(came):
        assert [tensor.shape for tensor in tensors] == [(n, 2), (n, 1, 1), (), (0, 2)]
        assert [tensor.dtype for tensor in tensors] == [torch.int64, torch.float32, torch.int32, torch.float64]
        assert all((tensor == i).all() for tensor in tensors)


@DEVICE
@pytest.mark.parametrize("n", [100, 600_000])
def test_bytes_for_kernels(n: int, device: str) -> None:
    orders = np.array([[0, 0, 32, n]], np.int64).view(np.uint8).reshape(-1)
    copies = []
    for i in range(300 if n < 1000 else 3):
        data = transfer.for_kernels(np.concatenate([orders, np.full(n, i % 256, np.uint8)]), torch.device(device))
        copies.append(torch.zeros(n, dtype=torch.uint8, device=device))
        scatter(data, 1, [copies[-1]])
    for i, copy in enumerate(copies):
        assert (copy == i % 256).all()


@DEVICE
@pytest.mark.parametrize("n", [0, 5, 400, 30_000])
def test_fields_are_enclosed(n: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel has to do with them is done here by the reference."""
    monkeypatch.setattr(transfer, "_REMEMBERED", 2)
    random = np.random.default_rng(n)
    for i in range(300 if n < 1000 else 20):
        numbers = [random.integers(0, 99, n + i % 3).astype(np.int32) for _ in range(2)]
        fields = [random.random((n, 3)), random.random((n, 2)).astype(np.float32).T, random.random((n, 1)) < 0.5]
        enclosed = transfer.enclose(numbers, fields, torch.device(device))
        if device == "cuda":
            torch.cuda.synchronize()
        memory, orders = enclosed.memory.cpu(), enclosed.orders.cpu().numpy().copy()
        joined = np.concatenate(numbers)
        np.testing.assert_array_equal(memory.numpy()[: joined.nbytes].view(np.int32), joined)
        orders[:, 2] += orders.nbytes
        filled = [field.cpu() for field in enclosed.fields]
        assert [field.device.type for field in enclosed.fields] == [device] * 3
        if len(orders):
            parcel = torch.cat([torch.from_numpy(orders.view(np.uint8).reshape(-1)), memory])
            scatter_reference(parcel, len(orders), filled)
        for field, wanted in zip(filled, fields, strict=True):
            assert field.dtype == torch.from_numpy(wanted).dtype
            np.testing.assert_array_equal(field.numpy(), wanted)
