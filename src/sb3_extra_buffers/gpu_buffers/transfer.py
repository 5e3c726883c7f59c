"""From the host to a device without waiting: many arrays, one copy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch

_ALIGNMENT = 16
_PIECES = {1 << 13: 256, 1 << 16: 32, 1 << 19: 8}  # bytes of the pinned memory of one transfer: how many such pieces


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return new tensors with the values of `arrays` on `device`.

    They are packed into pinned memory and copied in one transfer that the host does not wait for. Up to half a
    megabyte the whole piece of memory is copied, used or not: that takes less time than to say which part.
    """
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += (array.nbytes + _ALIGNMENT - 1) & -_ALIGNMENT
    packed, memory = _staging(device).memory(end)
    for start, array in zip(starts, arrays, strict=True):
        np.ndarray(array.shape, array.dtype, memory, start)[...] = array
    moved = packed.to(device, non_blocking=True)
    views: dict[np.dtype[Any], torch.Tensor] = {}
    tensors = []
    for start, array in zip(starts, arrays, strict=True):
        dtype, shape = array.dtype, array.shape
        view = views.get(dtype)
        if view is None:
            view = views[dtype] = moved.view(numpy_dtype_to_torch(dtype))
        tensor = view.as_strided(shape, _strides(shape), start // dtype.itemsize)
        tensors.append(tensor.data)  # each may be changed in place without autograd taking the others for changed
    return tensors


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps between the values of a contiguous tensor."""
    if len(shape) < 3:  # of most fields
        return () if not shape else (1,) if len(shape) == 1 else (max(shape[1], 1), 1)
    inner = _strides(shape[1:])
    return (inner[0] * max(shape[1], 1), *inner)


class _Unpinned:
    """Plain memory, for devices that share the host's."""

    def memory(self, n: int) -> tuple[torch.Tensor, NDArray[np.uint8]]:
        """Return at least `n` bytes to fill and move, as a tensor and as an array."""
        packed = torch.empty(n, dtype=torch.uint8)
        return packed, packed.numpy()


class _Pinned:
    """Rings of pieces of pinned memory: allocating it anew for each transfer would cost more than the transfer.

    Pieces of one size are used in two halves. Before a half is used again its transfers are waited for, which were
    queued half a ring earlier: they are long done.
    """

    def __init__(self, index: int) -> None:
        self.index = index  # of the device
        self.rings: dict[int, _Ring] = {}

    def memory(self, n: int) -> tuple[torch.Tensor, NDArray[np.uint8]]:
        """Return at least `n` bytes to fill and move, as a tensor and as an array."""
        for size in _PIECES:
            if n <= size:
                if size not in self.rings:
                    self.rings[size] = _Ring(size, _PIECES[size], self.index)
                return self.rings[size].piece()
        packed = torch.empty(n, dtype=torch.uint8, pin_memory=True)  # torch waits before it gives it out again
        return packed, packed.numpy()


class _Ring:
    """Pieces of pinned memory that are used in turn."""

    def __init__(self, size: int, n: int, index: int) -> None:
        self.index = index
        pieces = torch.empty((n, size), dtype=torch.uint8, pin_memory=True).unbind()
        self.pieces = [(piece, piece.numpy()) for piece in pieces]
        self.half = n // 2
        self.done: list[torch.cuda.Event | None] = [None, None]
        self.at = 0

    def piece(self) -> tuple[torch.Tensor, NDArray[np.uint8]]:
        """Return the next piece."""
        half, within = divmod(self.at, self.half)
        if within == 0:
            event = self.done[1 - half] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.index))  # behind the transfers of the other half
            before = self.done[half]
            if before is not None and not before.query():  # type: ignore[no-untyped-call]
                before.synchronize()
        piece = self.pieces[self.at]
        self.at = (self.at + 1) % (2 * self.half)
        return piece


_of_threads = threading.local()


def _staging(device: torch.device) -> _Pinned | _Unpinned:
    """Return this thread's memory for transfers to `device` on the current stream."""
    if device.type != "cuda":
        return _Unpinned()
    kept: dict[Any, Any] = vars(_of_threads)
    index = torch.cuda.current_device() if device.index is None else device.index
    stream = torch._C._cuda_getCurrentRawStream(index)  # what Triton asks too; the public way takes ten times as long
    if (index, stream) not in kept:
        kept[index, stream] = _Pinned(index)
    return kept[index, stream]  # type: ignore[no-any-return]
