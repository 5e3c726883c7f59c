"""Pieces of a transfer come to their places, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sb3_extra_buffers.gpu_buffers.kernels.scatter import scatter, scatter_reference


def some_parcel(seed: int) -> tuple[torch.Tensor, int, list[torch.Tensor]]:
    """Return a parcel with pieces of 1 to 3,000 bytes for odd places, how many, and targets of several dtypes."""
    random = np.random.default_rng(seed)
    targets = [
        torch.full((20_001,), 0xEE, dtype=torch.uint8),
        torch.full((1000, 2), -2, dtype=torch.int64),
        torch.full((3, 1000), -2, dtype=torch.int32),
        torch.full((500, 4), -2, dtype=torch.int32),
        torch.full((999,), 0xEE, dtype=torch.uint8),
    ]
    orders = []
    for target, tensor in enumerate(targets):
        at = 0
        while True:
            at, n = at + int(random.integers(0, 200)), int(random.choice([1, 16, 1023, 1024, 1025, 3000]))
            if at + n > tensor.nbytes:
                break
            orders.append((target, at, 0, n))
            at += n
    table = random.permutation(np.array(orders, np.int64))
    pieces = random.integers(0, 256, 40_000).astype(np.uint8)
    table[:, 2] = table.nbytes + random.integers(0, pieces.size - table[:, 3])
    return torch.from_numpy(np.concatenate([table.view(np.uint8).reshape(-1), pieces])), len(table), targets


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pinned", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_scatter(seed: int, pinned: bool, kernel_device: torch.device) -> None:
    """The parcel lies on the device, or in pinned memory of the host."""
    parcel, n, targets = some_parcel(seed)
    wanted = [target.clone() for target in targets]
    scatter_reference(parcel, n, wanted)
    got = [target.to(kernel_device) for target in targets]
    for _ in range(2):  # the second launch goes the short way
        scatter(parcel.pin_memory() if pinned else parcel.to(kernel_device), n, got)
        torch.cuda.synchronize() if pinned else None
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one.cpu(), other)


def test_nothing_to_scatter(kernel_device: torch.device) -> None:
    target = torch.full((4,), 7, dtype=torch.uint8, device=kernel_device)
    scatter(torch.zeros(0, dtype=torch.uint8, device=kernel_device), 0, [target] * 5)
    assert target.tolist() == [7] * 4
