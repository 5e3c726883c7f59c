"""Compressed frames on a device: a mirror of what the host's frame store holds, kept in step without waiting.

    host    FrameStore: compares, counts, encodes. It decides what is stored where.
    device  Mirror: the same payloads at the same offsets, the table, the key frames. Decodes.

Only payloads, entries and keys that are new cross the bus, many in one transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Ints
from sb3_extra_buffers.codecs.delta import Delta, DeltaCoder
from sb3_extra_buffers.codecs.none import NoCompression
from sb3_extra_buffers.codecs.rle import Rle
from sb3_extra_buffers.frames.heap import StoreFullError
from sb3_extra_buffers.frames.store import FrameStore, Ids
from sb3_extra_buffers.gpu_buffers.kernels import delta_decode, rle_decode
from sb3_extra_buffers.gpu_buffers.kernels.delta import decode_and_fill, decode_launch
from sb3_extra_buffers.gpu_buffers.kernels.launch import use_triton
from sb3_extra_buffers.gpu_buffers.kernels.payloads import in_float
from sb3_extra_buffers.gpu_buffers.kernels.scatter import scatter
from sb3_extra_buffers.gpu_buffers.parcels import Parcel, pack, packer
from sb3_extra_buffers.gpu_buffers.transfer import Enclosed, like, new_like, remember, to_device

_SLACK = 8  # a tensor that must grow gets 1/8 more than it needs

ON_DEVICE = (Delta, NoCompression, Rle)
"""Codecs whose payloads the device decodes. Those of others are decoded by the host and sent as they are."""


class MirroredFrames(FrameStore):
    """A frame store that remembers which frames its mirror does not have yet."""

    def _prepare(self) -> None:
        super()._prepare()
        packer()  # compiled now, not in the middle of a training
        self._unsent = set(np.flatnonzero(self.counts).tolist())

    def _resolve(
        self,
        candidates: NDArray[np.uint64],
        sources: Ints,
        codes: Ints,
        before: Ints,
        done: Callable[[Ids], None],
    ) -> Ids:
        """Store frames as `FrameStore` does, and note which are new: their ids were free."""
        known = len(self.counts)
        free = set(self.free[max(self.n_free - len(candidates), 0) : self.n_free].tolist())
        try:
            ids = super()._resolve(candidates, sources, codes, before, done)
            self._unsent.update(i for i in ids.reshape(-1).tolist() if i in free or i >= known)
        except StoreFullError:  # nothing was stored
            raise
        except BaseException:
            self.forget_mirror()  # which frames are new was not noted
            raise
        return ids

    @property
    def n_unsent(self) -> int:
        """How many frames may not be mirrored yet."""
        return len(self._unsent)

    def unsent_end(self) -> int:
        """Return where the last payload that is not mirrored ends."""
        ids = self._alive_unsent()
        return int((self.offsets[ids] + self.lengths[ids]).max(initial=0))

    def take_unsent(self, allowed: int | None) -> Ints:
        """Return the ids of frames that are not mirrored; from now on they count as mirrored.

        Args:
            allowed: bytes of heap that may be used, or None for no limit. Frames beyond are those of a refused `add`.
        """
        ids = self._alive_unsent()
        if allowed is None:
            self._unsent.clear()
            return ids
        beyond = self.offsets[ids] + self.lengths[ids] > allowed
        self._unsent = set(ids[beyond].tolist())
        return ids[~beyond]

    def forget_mirror(self) -> None:
        """Count all frames as not mirrored."""
        self._unsent = set(np.flatnonzero(self.counts).tolist())

    def forget_unsent(self) -> None:
        """Forget which frames are not mirrored: there is no mirror, and who makes one begins with all."""
        self._unsent.clear()

    def _alive_unsent(self) -> Ints:
        ids = np.fromiter(self._unsent, np.int64, len(self._unsent))
        return ids[self.counts[ids] > 0]


class Reading(NamedTuple):
    """How observations are read from a mirror."""

    shape: tuple[int, ...]  # of one, as the kernel writes it
    dtype: torch.dtype
    in_floats: bool  # each byte is written as a float32 number
    normalize: bool  # divided by 255
    moved: bool  # the frames of a stack lie along the last axis: they have to be moved there
    done: bool  # nothing has to be cast


class Mirror:
    """Payloads, table and keys of a frame store on a device.

    Args:
        frames: the store.
        device: where the mirror is.
        capacity: bytes of heap to allocate at once, or None to grow as needed.
        allowed: as of `MirroredFrames.take_unsent`.
    """

    def __init__(self, frames: MirroredFrames, device: torch.device, capacity: int | None, allowed: int | None) -> None:
        self.frames = frames
        self.codec = frames.coder.codec
        self.frame_bytes = frames.frame_bytes
        self.reading: Reading | None = None  # of the store, once it has read
        self._batches: dict[int, torch.Tensor] = {}  # their forms, by size
        frames.forget_mirror()
        ids = frames.take_unsent(allowed)
        self.extent = int((frames.offsets[ids] + frames.lengths[ids]).max(initial=0))
        entries = np.zeros((len(frames.counts), 2), np.int64)
        entries[ids] = self._entries(ids)
        self.sent_keys = self._keys.copy()
        sent = to_device([frames.heap.data[: self.extent], entries, self.sent_keys.view(np.int32)], device)
        self.heap = torch.empty(capacity or self.extent, dtype=torch.uint8, device=device)
        self.heap[: self.extent] = sent[0]
        self.table, self.keys = sent[1].clone(), sent[2].clone()  # each in memory of its own: they grow one by one
        self.by_kernel = use_triton(self.heap) and not isinstance(self.codec, Rle)

    def outgoing(self, ids: Ints, written: dict[int, Ids]) -> Parcel:
        """Return a parcel with the frames `ids`, and `written` rows of ids by place; see `pack`."""
        frames, keys = self.frames, self._coder_keys
        if len(keys) > len(self.sent_keys):
            n = len(self.sent_keys)
            self.keys = grown(self.keys, len(keys))
            self.keys[n:] = 0  # as `sent_keys` says
            self.sent_keys = np.pad(self.sent_keys, ((0, len(self.keys) - n), (0, 0)))
        # A key's place is used again for another one when no frame refers to it any more: `pack` compares them.
        parcel = pack(frames, ids, keys, self.sent_keys, written)
        self.extent = max(self.extent, parcel.extent)
        self.heap = grown(self.heap, self.extent)
        self.table = grown(self.table, len(frames.counts))
        return parcel

    def receive(self, parcel: torch.Tensor, n: int, ids: torch.Tensor) -> None:
        """Carry out the `n` orders of what was outgoing; rows of ids go to `ids`."""
        scatter(parcel, n, (self.heap, self.table, self.keys, ids))

    def _entries(self, ids: Ints) -> Ints:
        """Return the entries of the table for `ids`, as `pack_entries` describes them."""
        frames = self.frames
        entries = np.empty((len(ids), 2), np.int64)
        entries[:, 0] = frames.offsets[ids]
        entries[:, 1] = frames.references[ids]
        entries[:, 1] <<= 32
        entries[:, 1] |= frames.lengths[ids]
        return entries

    @property
    def _coder_keys(self) -> NDArray[np.uint32]:
        """The key frames; none where the codec has none."""
        coder = self.frames.coder
        return coder.keys if isinstance(coder, DeltaCoder) else np.zeros((0, -(-self.frame_bytes // 4)), np.uint32)

    @property
    def _keys(self) -> NDArray[np.uint32]:
        """The key frames; one of zeros where the codec has none."""
        keys = self._coder_keys
        return keys if len(keys) else np.zeros((1, keys.shape[1]), np.uint32)

    def batch(self, size: int) -> torch.Tensor:
        """Return a new tensor for so many observations, as `reading` says."""
        form = self._batches.get(size)
        if form is None:
            assert self.reading is not None
            form = remember(self._batches, size, like(self.heap, (size, *self.reading.shape), self.reading.dtype))
        return new_like(form)

    def decode(
        self,
        n: int,
        stack: int,
        ids: torch.Tensor,
        places: torch.Tensor | None,
        outs: Sequence[torch.Tensor],
        in_floats: bool,
        normalize: bool,
        enclosed: Enclosed | None = None,
    ) -> None:
        """Write `n` observations to `outs`: those of `ids` [n, stack], or of `ids[places]`, in order.

        Args:
            n: how many.
            stack: frames of each.
            ids: int32.
            places: int32, or None.
            outs: a contiguous tensor of exactly the bytes of the frames, four times as many for floats. Where
                `by_kernel` is true, it may be two, for one half of the observations each.
            in_floats: write each byte as a float32 number.
            normalize: divide it by 255.
            enclosed: fields to fill as well, where `by_kernel` is true.
        """
        dtype = torch.float32 if in_floats else torch.uint8
        if self.by_kernel:  # what `delta_decode` does, without its checks: these tensors are right
            launch = decode_launch(self.frame_bytes, stack, places is not None, dtype, normalize)
            tensors = self.heap, self.table, ids, ids if places is None else places, self.keys, outs
            if enclosed is None:
                decode_and_fill(launch, n, *tensors)
            else:
                memory, fields, orders, n_orders = enclosed
                decode_and_fill(launch, n, *tensors, fields, memory, orders, n_orders)
            return
        (out,) = outs
        if not isinstance(self.codec, Rle):
            delta_decode(
                self.heap,
                self.table,
                ids.view(-1) if places is None else ids,
                self.keys,
                self.frame_bytes,
                places=places,
                dtype=dtype,
                normalize=normalize,
                out=out,
            )
            return
        runs_type = self.codec.runs_type or np.min_scalar_type(self.frame_bytes // self.codec.item_bytes)
        frames = rle_decode(
            self.heap,
            self.table,
            (ids if places is None else ids[places.long()]).view(-1),
            self.frame_bytes,
            item_bytes=self.codec.item_bytes,
            runs_bytes=np.dtype(runs_type).itemsize,
        )
        if in_floats:
            out.copy_(in_float(frames, normalize).view(out.shape))
        else:
            out.view(-1).view(torch.uint8).copy_(frames.view(-1))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that lies on the device."""
        return {"heap": self.heap, "table": self.table, "keys": self.keys}


def grown(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """Return `tensor` with room for at least `n` rows, its own ones first."""
    if n <= len(tensor):
        return tensor
    larger = tensor.new_empty((n + n // _SLACK, *tensor.shape[1:]))
    larger[: len(tensor)] = tensor
    return larger
