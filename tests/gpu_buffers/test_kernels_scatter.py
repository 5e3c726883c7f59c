"""Pieces of a transfer come to their places, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sb3_extra_buffers.gpu_buffers.kernels.scatter import scatter, scatter_reference


def some_orders(seed: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return data, orders with pieces of 1 to 3,000 bytes at odd places, and targets of several dtypes."""
    random = np.random.default_rng(seed)
    data = torch.from_numpy(random.integers(0, 256, 40_000).astype(np.uint8))
    targets = [
        torch.full((20_001,), 0xEE, dtype=torch.uint8),
        torch.full((1000, 2), -2, dtype=torch.int64),
        torch.full((3, 1000), -2, dtype=torch.int32),
        torch.full((500, 4), -2, dtype=torch.int32),
    ]
    orders = []
    for target, tensor in enumerate(targets):
        at = 0
        while True:
            at, n = at + int(random.integers(0, 200)), int(random.choice([1, 16, 1023, 1024, 1025, 3000]))
            if at + n > tensor.nbytes:
                break
            orders.append((target, at, int(random.integers(0, len(data) - n)), n))
            at += n
    return data, torch.tensor(orders)[torch.from_numpy(random.permutation(len(orders)))], targets


@pytest.mark.parametrize("seed", range(5))
def test_scatter(seed: int, kernel_device: torch.device) -> None:
    data, orders, targets = some_orders(seed)
    wanted = [target.clone() for target in targets]
    scatter_reference(data, orders, wanted)
    got = [target.to(kernel_device) for target in targets]
    for _ in range(2):  # the second launch goes the short way
        scatter(data.to(kernel_device), orders.to(kernel_device), got)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one.cpu(), other)


def test_nothing_to_scatter(kernel_device: torch.device) -> None:
    target = torch.full((4,), 7, dtype=torch.uint8, device=kernel_device)
    nothing = torch.zeros(0, dtype=torch.uint8, device=kernel_device)
    scatter(nothing, torch.zeros((0, 4), dtype=torch.int64, device=kernel_device), [target] * 4)
    assert target.tolist() == [7] * 4
