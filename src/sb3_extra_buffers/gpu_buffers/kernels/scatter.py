"""Many pieces of a parcel, copied to where they belong in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sb3_extra_buffers.gpu_buffers.kernels.launch import Launch, use_triton

tl: Any = None  # triton.language, once a kernel is compiled

N_TARGETS = 5


def scatter(parcel: torch.Tensor, n: int, targets: Sequence[torch.Tensor]) -> None:
    """Copy pieces of a parcel into `targets`.

    Args:
        parcel: uint8, begins with `n` orders, int64 [n, 4]: of each piece the number of the target, byte where it
            begins there, byte where it begins in the parcel, bytes. Pieces must not overlap where they are copied to.
            It may lie in pinned memory of the host where targets are on CUDA.
        n: how many orders.
        targets: at most five contiguous tensors.
    """
    if n and use_triton(targets[0]):
        _scatter(n, (parcel, parcel, *filled_up(targets)))
    elif n:
        scatter_reference(parcel, n, targets)


def scatter_reference(parcel: torch.Tensor, n: int, targets: Sequence[torch.Tensor]) -> None:
    """Copy as the kernel does, in torch; at least one piece."""
    flat = [target.view(-1).view(torch.uint8) for target in targets]
    for target, to, start, size in parcel[: 32 * n].view(torch.int64).view(n, 4).tolist():
        flat[target][to : to + size] = parcel[start : start + size]


def filled_up(targets: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return five targets."""
    return (*targets, *(targets[0],) * (N_TARGETS - len(targets)))


def _scatter_kernel(  # type: ignore[no-untyped-def] # Triton reads annotations
    data, orders, target_0, target_1, target_2, target_3, target_4, BLOCK: tl.constexpr
):
    carry_out(data, orders + 4 * tl.program_id(0).to(tl.int64), target_0, target_1, target_2, target_3, target_4, BLOCK)


def carry_out(  # type: ignore[no-untyped-def] # Triton reads annotations
    data, order, target_0, target_1, target_2, target_3, target_4, BLOCK: tl.constexpr
):
    """Copy one piece, in a kernel."""
    target = tl.load(order)
    n = tl.load(order + 3)
    place = target_0
    if target == 1:
        place = target_1
    if target == 2:
        place = target_2
    if target == 3:
        place = target_3
    if target == 4:
        place = target_4
    place += tl.load(order + 1)
    source = data + tl.load(order + 2)
    for base in range(0, n, BLOCK):
        b = base + tl.arange(0, BLOCK)
        tl.store(place + b, tl.load(source + b, mask=b < n, other=0), mask=b < n)


_scatter = Launch(
    _scatter_kernel, (torch.uint8, torch.int64, *(torch.uint8,) * N_TARGETS), calls=(carry_out,), BLOCK=1024
)
