"""Compressed frames on a device: a mirror of what the host's frame store holds, kept in step without waiting.

    host    FrameStore: compares, counts, encodes. It decides what is stored where.
    device  Mirror: the same payloads at the same offsets, the table, the key frames. Decodes.

Only payloads, entries and keys that are new cross the bus, many in one transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes, Ints
from sb3_extra_buffers.codecs.delta import Delta, DeltaCoder
from sb3_extra_buffers.codecs.none import NoCompression
from sb3_extra_buffers.codecs.rle import Rle
from sb3_extra_buffers.frames.store import FrameStore, Ids
from sb3_extra_buffers.gpu_buffers.kernels import delta_decode, rle_decode
from sb3_extra_buffers.gpu_buffers.kernels.payloads import in_float

_SLACK = 8  # a tensor that must grow gets 1/8 more than it needs
_NOTHING = np.zeros(0, np.int64)

ON_DEVICE = (Delta, NoCompression, Rle)
"""Codecs whose payloads the device decodes. Those of others are decoded by the host and sent as they are."""


class MirroredFrames(FrameStore):
    """A frame store that remembers which frames its mirror does not have yet."""

    def _prepare(self) -> None:
        super()._prepare()
        self._unsent = set(np.flatnonzero(self.counts).tolist())

    def put_blocks(self, blocks: Sequence[Bytes], streams: Ints) -> Ids:
        """Store observations as `FrameStore` does, and note which of their frames are new: their ids were free."""
        most = len(blocks) * len(streams) * self.stack
        known = len(self.counts)
        free = set(self.free[max(self.n_free - most, 0) : self.n_free].tolist())
        ids = super().put_blocks(blocks, streams)
        self._unsent.update(i for i in ids.reshape(-1).tolist() if i in free or i >= known)
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

    def _alive_unsent(self) -> Ints:
        ids = np.fromiter(self._unsent, np.int64, len(self._unsent))
        return ids[self.counts[ids] > 0]


class Mirror:
    """Payloads, table and keys of a frame store on a device.

    Args:
        frames: the store.
        device: where the mirror is.
        capacity: bytes of heap to allocate at once, or None to grow as needed.
    """

    def __init__(self, frames: FrameStore, device: torch.device, capacity: int | None) -> None:
        self.frames = frames
        self.extent = 0
        self.codec = frames.coder.codec
        self.frame_bytes = frames.frame_bytes
        n_words = -(-frames.frame_bytes // 4)
        self.heap = torch.empty(capacity or 0, dtype=torch.uint8, device=device)
        self.table = torch.empty((0, 2), dtype=torch.int64, device=device)
        self.keys = torch.zeros((1, n_words), dtype=torch.int32, device=device)
        self.sent_keys = np.zeros((1, n_words), np.uint32)
        self.runs: list[tuple[int, int]] = []

    def outgoing(self, ids: Ints) -> list[NDArray[Any]]:
        """Return what the device needs for the frames `ids`: `receive` takes it there."""
        frames = self.frames
        offsets, lengths = frames.offsets[ids], frames.lengths[ids].astype(np.int64)
        references = frames.references[ids].astype(np.int64)
        self.runs = _runs(offsets, lengths)
        self.extent = max(self.extent, *(end for _, end in self.runs))
        self.heap = grown(self.heap, self.extent)
        self.table = grown(self.table, len(frames.counts))
        entries = np.empty((len(ids), 2), np.int64)
        entries[:, 0], entries[:, 1] = offsets, lengths | references << 32
        payloads = [frames.heap.data[start:end] for start, end in self.runs]
        changed = self._changed_keys(references)
        return [np.concatenate(payloads), ids, entries, changed, self.sent_keys[changed].view(np.int32)]

    def receive(
        self,
        payloads: torch.Tensor,
        ids: torch.Tensor,
        entries: torch.Tensor,
        changed: torch.Tensor,
        keys: torch.Tensor,
    ) -> None:
        """Put the tensors of what was outgoing in their places."""
        at = 0
        for start, end in self.runs:
            self.heap[start:end] = payloads[at : at + end - start]
            at += end - start
        self.table.index_copy_(0, ids, entries)
        if len(changed):
            self.keys.index_copy_(0, changed, keys)

    def _changed_keys(self, references: Ints) -> Ints:
        """Return which of the keys that `references` name the device does not have; `sent_keys` has them then."""
        coder = self.frames.coder
        if not isinstance(coder, DeltaCoder):
            return _NOTHING
        keys, named = coder.keys, set(references.tolist())
        if len(keys) > len(self.sent_keys):
            self.keys = grown(self.keys, len(keys))
            self.sent_keys = np.pad(self.sent_keys, ((0, len(self.keys) - len(self.sent_keys)), (0, 0)))
        # A key's place is used again for another one when no frame refers to it any more: compare, do not guess.
        changed = np.array([key for key in named if (keys[key] != self.sent_keys[key]).any()], np.int64)
        if changed.size:
            self.sent_keys[changed] = keys[changed]
        return changed

    def decode(
        self, ids: torch.Tensor, places: torch.Tensor | None, out: torch.Tensor, in_floats: bool, normalize: bool
    ) -> None:
        """Write frames to `out`: those of `ids` [n], or of `ids[places]`, in order.

        Args:
            ids: int32.
            places: int32, or None.
            out: contiguous, of exactly the bytes of the frames; four times as many for floats.
            in_floats: write each byte as a float32 number.
            normalize: divide it by 255.
        """
        if not isinstance(self.codec, Rle):
            dtype = torch.float32 if in_floats else torch.uint8
            delta_decode(
                self.heap,
                self.table,
                ids,
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
            ids if places is None else ids[places.long()].view(-1),
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


def _runs(offsets: Ints, lengths: Ints) -> list[tuple[int, int]]:
    """Return `(start, end)` of the stretches of heap that payloads fill without a gap, by offset."""
    order = np.argsort(offsets, kind="stable")
    starts = offsets[order]
    ends = starts + lengths[order]
    cuts = (starts[1:] != ends[:-1]).nonzero()[0]
    firsts, lasts = [0, *(cuts + 1).tolist()], [*cuts.tolist(), len(starts) - 1]
    return [(int(starts[first]), int(ends[last])) for first, last in zip(firsts, lasts, strict=True)]


def grown(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """Return `tensor` with room for at least `n` rows, its own ones first."""
    if n <= len(tensor):
        return tensor
    larger = tensor.new_empty((n + n // _SLACK, *tensor.shape[1:]))
    larger[: len(tensor)] = tensor
    return larger
