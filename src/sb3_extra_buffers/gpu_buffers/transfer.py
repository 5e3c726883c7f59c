"""From the host to a device without waiting: many arrays in one copy, or left where kernels of the device read them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes
from sb3_extra_buffers.gpu_buffers.parcels import aligned
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch

_PIECES = {1 << 13: 256, 1 << 15: 64, 1 << 17: 16, 1 << 19: 8}
"""Bytes of the pinned memory of one transfer: how many such pieces."""
_LARGEST = max(_PIECES)
_CHUNK = 2048  # bytes of a field that one program copies
_REMEMBERED = 1024  # forms of batches


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return new tensors with the values of `arrays` on `device`, all sent in one copy that is not waited for.

    Up to half a megabyte the whole piece of pinned memory is copied, used or not: that takes less time than to say
    which part. Tensors may be changed in place without autograd taking the others for changed.
    """
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += aligned(array.nbytes)
    packed, memory = _staging(device).piece(end)
    for array, start in zip(arrays, starts, strict=True):
        np.ndarray(array.shape, array.dtype, memory, start)[...] = array
    sent = packed.to(device, non_blocking=True)
    tensors, views = [], dict[np.dtype[Any], torch.Tensor]()
    for array, start in zip(arrays, starts, strict=True):
        view = views.get(array.dtype)
        if view is None:
            view = views[array.dtype] = sent.view(numpy_dtype_to_torch(array.dtype))
        shape, n = array.shape, array.ndim
        strides = (shape[1] or 1, 1) if n == 2 else (1,) if n == 1 else _strides(shape)  # the usual ones without a call
        tensors.append(view.as_strided(shape, strides, start // array.itemsize).data)
    return tensors


def for_kernels(data: Bytes, device: torch.device) -> torch.Tensor:
    """Return bytes where the kernels read them that are launched next: in pinned memory, or on `device`."""
    packed, memory = _staging(device).piece(len(data))
    memory[: len(data)] = data
    return _readable(packed, device)


def _readable(packed: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return filled memory where kernels can read it: a ring's as it is, which takes less time than to copy it.

    Other pinned memory is torch's to give out again, which does not know who else reads it.
    """
    of_a_ring = device.type == "cuda" and packed.nbytes <= _LARGEST
    return packed if of_a_ring else packed.to(device, non_blocking=True)


class Enclosed(NamedTuple):
    """Fields of a batch that are sent with the numbers of its observations.

    Attributes:
        memory: begins with the numbers; for the kernel that is launched next.
        fields: tensors for the kernel to fill.
        orders: how, int64 `[n_orders, 4]`; of each piece its field, where it begins there and in `memory`, bytes.
        n_orders: how many pieces.
    """

    memory: torch.Tensor
    fields: list[torch.Tensor]
    orders: torch.Tensor
    n_orders: int


def enclose(numbers: Sequence[NDArray[Any]], arrays: Sequence[NDArray[Any]], device: torch.device) -> Enclosed:
    """Put numbers, one after another, and arrays where a kernel that is launched next on `device` can read them.

    Args:
        numbers: what the kernel decodes.
        arrays: the fields.
        device: where the kernel runs.
    """
    staging = _staging(device)
    first = sum([one.nbytes for one in numbers])
    form = (first, *[(array.shape, array.dtype) for array in arrays])
    outline = staging.outlines.get(form)
    if outline is None:
        outline = remember(staging.outlines, form, _outline(first, arrays, device))
    size, starts, forms, orders, n_orders = outline
    packed, memory = staging.piece(size)
    room = memory.data
    at = 0
    for one in numbers:
        room[at : at + one.nbytes] = one.tobytes()
        at += one.nbytes
    for array, start in zip(arrays, starts, strict=True):
        room[start : start + array.nbytes] = np.asarray(array).tobytes()  # of masked ones too, as SB3 does
    return Enclosed(_readable(packed, device), [*map(new_like, forms)], orders, n_orders)


def remember(kept: dict[Any, Any], key: Any, value: Any) -> Any:
    """Keep something that can be made again, and return it; of very many things, the latest ones."""
    if len(kept) >= _REMEMBERED:
        kept.clear()
    kept[key] = value
    return value


def like(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor for `new_like`, of that shape on the device of `tensor`. It takes the memory of one value."""
    return tensor.new_empty((), dtype=dtype).expand(shape)


def new_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor of the shape, dtype and device of another: faster than telling torch what they are."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


class _Outline(NamedTuple):
    """How batches of one form lie in memory."""

    size: int
    starts: list[int]  # of the fields
    forms: list[torch.Tensor]  # of the fields, for `new_like`
    orders: torch.Tensor
    n_orders: int


def _outline(first: int, arrays: Sequence[NDArray[Any]], device: torch.device) -> _Outline:
    starts, end, orders = [], aligned(first), []
    for i, array in enumerate(arrays):
        starts.append(end)
        for at in range(0, array.nbytes, _CHUNK):
            orders.append((i, at, end + at, min(array.nbytes - at, _CHUNK)))
        end += aligned(array.nbytes)
    (sent,) = to_device([np.array(orders, np.int64).reshape(-1, 4)], device)
    forms = [like(sent, array.shape, numpy_dtype_to_torch(array.dtype)) for array in arrays]
    return _Outline(end, starts, forms, sent.clone(), len(orders))  # not with the rest of what was copied


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps between the values of a contiguous tensor."""
    if len(shape) < 2:
        return (1,) * len(shape)
    inner = _strides(shape[1:])
    return (inner[0] * max(shape[1], 1), *inner)


class _Piece(NamedTuple):
    """Memory to fill and send."""

    packed: torch.Tensor
    memory: NDArray[np.uint8]  # the same


class _Unpinned:
    """Plain memory, for devices that share the host's."""

    def __init__(self) -> None:
        self.outlines: dict[Any, _Outline] = {}

    def piece(self, n: int) -> _Piece:
        """Return at least `n` bytes."""
        packed = torch.empty(n, dtype=torch.uint8)
        return _Piece(packed, packed.numpy())


class _Pinned:
    """Rings of pieces of pinned memory: allocating it anew for each transfer would cost more than the transfer.

    Pieces of one size are used in two halves. Before a half is used again its transfers are waited for, which were
    queued half a ring earlier: they are long done.
    """

    def __init__(self, index: int) -> None:
        self.index = index  # of the device
        self.rings: dict[int, _Ring] = {}
        self.outlines: dict[Any, _Outline] = {}  # by form

    def piece(self, n: int) -> _Piece:
        """Return at least `n` bytes."""
        for size in _PIECES:
            if n <= size:
                if size not in self.rings:
                    self.rings[size] = _Ring(size, _PIECES[size], self.index)
                return self.rings[size].piece()
        packed = torch.empty(n, dtype=torch.uint8, pin_memory=True)  # torch waits before it gives it out again
        return _Piece(packed, packed.numpy())


class _Ring:
    """Pieces of pinned memory that are used in turn."""

    def __init__(self, size: int, n: int, index: int) -> None:
        self.index = index
        pieces = torch.empty((n, size), dtype=torch.uint8, pin_memory=True).unbind()
        # Kernels read it, which torch does not see. After a copy it waits for this stream before it gives it out again.
        pieces[0].to(torch.device("cuda", index), non_blocking=True)
        self.pieces = [_Piece(piece, piece.numpy()) for piece in pieces]
        self.half = n // 2
        self.done: list[torch.cuda.Event | None] = [None, None]
        self.at = 0

    def piece(self) -> _Piece:
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
    kept: dict[Any, Any] = vars(_of_threads)
    key: Any = device
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        key = index, torch._C._cuda_getCurrentRawStream(index)  # as Triton; the public way takes ten times as long
    staging = kept.get(key)
    if staging is None:
        staging = kept[key] = _Unpinned() if device.type != "cuda" else _Pinned(key[0])
    return staging
