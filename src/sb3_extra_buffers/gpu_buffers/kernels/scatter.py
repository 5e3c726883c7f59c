"""Many pieces of one transfer, copied to where they belong in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sb3_extra_buffers.gpu_buffers.kernels.launch import Launch, use_triton

tl: Any = None  # triton.language, once a kernel is compiled

N_TARGETS = 4


def scatter(data: torch.Tensor, orders: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    """Copy pieces of `data` into `targets`.

    Args:
        data: uint8 [n].
        orders: int64 [m, 4], a piece each: number of the target, byte where it begins there, byte where it begins in
            `data`, bytes. Pieces must not overlap where they are copied to.
        targets: four contiguous tensors.
    """
    if not use_triton(data):
        scatter_reference(data, orders, targets)
    elif len(orders):
        _scatter(len(orders), data, orders, *targets)


def scatter_reference(data: torch.Tensor, orders: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    """Copy as the kernel does, in torch."""
    flat = [target.view(-1).view(torch.uint8) for target in targets]
    for target, to, start, n in orders.tolist():
        flat[target][to : to + n] = data[start : start + n]


def _scatter_kernel(  # type: ignore[no-untyped-def] # Triton reads annotations
    data, orders, target_0, target_1, target_2, target_3, BLOCK: tl.constexpr
):
    order = orders + 4 * tl.program_id(0).to(tl.int64)
    target = tl.load(order)
    n = tl.load(order + 3)
    place = target_0
    if target == 1:
        place = target_1
    if target == 2:
        place = target_2
    if target == 3:
        place = target_3
    place += tl.load(order + 1)
    source = data + tl.load(order + 2)
    for base in range(0, n, BLOCK):
        b = base + tl.arange(0, BLOCK)
        tl.store(place + b, tl.load(source + b, mask=b < n, other=0), mask=b < n)


_scatter = Launch(_scatter_kernel, (torch.uint8, torch.int64, *(torch.uint8,) * N_TARGETS), BLOCK=1024)
