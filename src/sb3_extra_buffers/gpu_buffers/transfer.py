"""From the host to a device without waiting: many arrays, one copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.gpu_buffers.parcels import Parcel, aligned
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch

_PIECES = {1 << 13: 256, 1 << 15: 64, 1 << 17: 16, 1 << 19: 8}
"""Bytes of the pinned memory of one transfer: how many such pieces."""
_LARGEST = max(_PIECES)


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return new tensors with the values of `arrays` on `device`, sent as `Sent` does."""
    sent = Sent(arrays, device)
    return [sent.tensor(i) for i in range(len(arrays))]


class Sent:
    """Copies of arrays on a device, in one piece of memory.

    They are packed into pinned memory and copied in one transfer that the host does not wait for. Up to half a
    megabyte the whole piece of memory is copied, used or not: that takes less time than to say which part.

    With a parcel, what is received there brings the arrays along: its kernel reads both in pinned memory.

    Args:
        arrays: what to send.
        device: where to.
        parcel: for somebody else, sent together with the arrays; its orders copy them as the rest.
        receive: takes parcels: memory that begins with one, its number of orders, and where to copy the rest.

    Attributes:
        memory: the arrays; the first one begins where it does.
    """

    __slots__ = ("_laid", "_views", "memory")

    def __init__(
        self,
        arrays: Sequence[NDArray[Any]],
        device: torch.device,
        parcel: Parcel | None = None,
        receive: Callable[[torch.Tensor, int, torch.Tensor], None] | None = None,
    ) -> None:
        laid, end = [], 0
        for array in arrays:
            laid.append((array.shape, array.dtype, end))
            end += aligned(array.nbytes)
        begin = 0 if parcel is None else parcel.data.nbytes
        packed, memory = _staging(device).memory(begin + end)
        for array, (shape, dtype, start) in zip(arrays, laid, strict=True):
            np.ndarray(shape, dtype, memory, begin + start)[...] = array
        if parcel is None or receive is None:
            self.memory = packed.to(device, non_blocking=True)
        else:
            memory[:begin] = parcel.data
            self.memory = torch.empty(end, dtype=torch.uint8, device=device)
            # Memory that is not of a ring is torch's to give out again, which does not know who else reads it.
            receive(packed if begin + end <= _LARGEST else packed.to(device, non_blocking=True), parcel.n, self.memory)
        self._laid = laid
        self._views: dict[np.dtype[Any], torch.Tensor] = {}

    def tensor(self, i: int) -> torch.Tensor:
        """Return array `i`. Tensors may be changed in place without autograd taking the others for changed."""
        shape, dtype, start = self._laid[i]
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self.memory.view(numpy_dtype_to_torch(dtype))
        n = len(shape)
        strides = (shape[1] or 1, 1) if n == 2 else (1,) if n == 1 else _strides(shape)
        return view.as_strided(shape, strides, start // dtype.itemsize).data


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps between the values of a contiguous tensor."""
    if len(shape) < 2:
        return (1,) * len(shape)
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
        # Kernels read it, which torch does not see. After a copy it waits for this stream before it gives it out again.
        pieces[0][:1].to(torch.device("cuda", index), non_blocking=True)
        self.half = n // 2
        self.done: list[torch.cuda.Event | None] = [None, None]
        self.at = 0

    def piece(self) -> tuple[torch.Tensor, NDArray[np.uint8]]:
        """Return the next piece."""
        at = self.at
        if at % self.half == 0:
            self._turn(at // self.half)
        self.at = (at + 1) % len(self.pieces)
        return self.pieces[at]

    def _turn(self, half: int) -> None:
        event = self.done[1 - half] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.index))  # behind the transfers of the other half
        before = self.done[half]
        if before is not None and not before.query():  # type: ignore[no-untyped-call]
            before.synchronize()


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
