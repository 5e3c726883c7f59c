"""Compressed frames on a device: a mirror of what the host's frame store holds, kept in step without waiting.

    host    FrameStore: compares, counts, encodes. It decides what is stored where.
    device  Mirror: the same payloads at the same offsets, the table, the key frames. Decodes.

Only payloads, entries and keys that are new cross the bus, many in one transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes, Ints
from sb3_extra_buffers.codecs.delta import Delta, DeltaCoder
from sb3_extra_buffers.codecs.none import NoCompression
from sb3_extra_buffers.codecs.rle import Rle
from sb3_extra_buffers.frames.store import FrameStore, Ids
from sb3_extra_buffers.gpu_buffers.kernels import delta_decode, rle_decode
from sb3_extra_buffers.gpu_buffers.kernels.delta import decode_launch
from sb3_extra_buffers.gpu_buffers.kernels.payloads import in_float
from sb3_extra_buffers.gpu_buffers.kernels.scatter import scatter
from sb3_extra_buffers.gpu_buffers.transfer import to_device

_SLACK = 8  # a tensor that must grow gets 1/8 more than it needs
_HEAP, _TABLE, _KEYS, _IDS = range(4)  # targets of `scatter`

ON_DEVICE = (Delta, NoCompression, Rle)
"""Codecs whose payloads the device decodes. Those of others are decoded by the host and sent as they are."""


class MirroredFrames(FrameStore):
    """A frame store that remembers which frames its mirror does not have yet."""

    def _prepare(self) -> None:
        super()._prepare()
        self._unsent = set(np.flatnonzero(self.counts).tolist())

    def put_blocks(self, blocks: Sequence[Bytes], streams: Ints, gone: Sequence[Ids] = ()) -> Ids:
        """Store observations as `FrameStore` does, and note which of their frames are new: their ids were free."""
        most = len(blocks) * len(streams) * self.stack
        known = len(self.counts)
        free = set(self.free[max(self.n_free - most, 0) : self.n_free].tolist())
        ids = super().put_blocks(blocks, streams, gone)
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
        self.by_kernel = device.type == "cuda" and not isinstance(self.codec, Rle)

    def outgoing(self, ids: Ints, written: Mapping[int, Ids]) -> tuple[NDArray[Any], ...]:
        """Return what the device needs for the frames `ids`, and `written` rows of ids by place: `receive` takes it."""
        frames = self.frames
        pieces: list[Bytes] = []
        orders: list[NDArray[np.int64]] = []  # target, place and size of each piece
        if written:
            rows = [row.reshape(-1) for row in written.values()]
            pieces.append(np.concatenate(rows).view(np.uint8))
            orders.append(_orders(_IDS, np.array([*written]) * (4 * frames.stack), [row.nbytes for row in rows]))
        if ids.size:
            ids = ids[frames.offsets[ids].argsort(kind="stable")]
            entries, heap = self._entries(ids), frames.heap.data
            starts, sizes = entries[:, 0], entries[:, 1] & 0xFFFFFFFF
            ends = starts + sizes
            changed = self._changed_keys(entries)
            if changed:
                keys = self.sent_keys[changed].view(np.uint8)
                pieces.append(keys.reshape(-1))
                orders.append(_orders(_KEYS, np.array(changed) * keys.shape[1], keys.shape[1]))
            pieces.append(entries.view(np.uint8).reshape(-1))
            orders.append(_orders(_TABLE, ids * 16, 16))
            # Frames that were stored one after another lie so, most of the time.
            apart = (starts[1:] != ends[:-1]).nonzero()[0]
            firsts, lasts = [starts[0], *starts[apart + 1].tolist()], [*ends[apart].tolist(), ends[-1]]
            pieces += [heap[first:last] for first, last in zip(firsts, lasts, strict=True)]
            orders.append(_orders(_HEAP, starts, sizes))
            self.extent = max(self.extent, int(ends.max()))
            self.heap = grown(self.heap, self.extent)
            self.table = grown(self.table, len(frames.counts))
        if not pieces:
            return ()
        listed = np.concatenate(orders)
        listed[:, 2] = listed[:, 3].cumsum() - listed[:, 3]
        return np.concatenate(pieces), listed

    def receive(self, data: torch.Tensor, orders: torch.Tensor, ids: torch.Tensor) -> None:
        """Put the tensors of what was outgoing in their places; rows of ids in `ids`."""
        scatter(data, orders, (self.heap, self.table, self.keys, ids))

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
    def _keys(self) -> NDArray[np.uint32]:
        """The key frames; one of zeros where the codec has none."""
        coder = self.frames.coder
        return coder.keys if isinstance(coder, DeltaCoder) else np.zeros((1, -(-self.frame_bytes // 4)), np.uint32)

    def _changed_keys(self, entries: Ints) -> list[int]:
        """Return which of the keys that `entries` name the device does not have; `sent_keys` has them then."""
        coder = self.frames.coder
        if not isinstance(coder, DeltaCoder):
            return []
        keys, sent = coder.keys, self.sent_keys
        if len(keys) > len(sent):
            self.keys = grown(self.keys, len(keys))
            self.keys[len(sent) :] = 0  # as `sent_keys` says
            self.sent_keys = sent = np.pad(sent, ((0, len(self.keys) - len(sent)), (0, 0)))
        # A key's place is used again for another one when no frame refers to it any more: compare, do not guess.
        changed = [key for key in set((entries[:, 1] >> 32).tolist()) if keys[key].tobytes() != sent[key].tobytes()]
        for key in changed:
            sent[key] = keys[key]
        return changed

    def decode(
        self,
        n: int,
        ids: torch.Tensor,
        places: torch.Tensor | None,
        out: torch.Tensor,
        in_floats: bool,
        normalize: bool,
    ) -> None:
        """Write `n` frames to `out`: those of `ids` [n], or of `ids[places]`, in order.

        Args:
            n: how many.
            ids: int32.
            places: int32, or None.
            out: contiguous, of exactly the bytes of the frames; four times as many for floats.
            in_floats: write each byte as a float32 number.
            normalize: divide it by 255.
        """
        if not isinstance(self.codec, Rle):
            dtype = torch.float32 if in_floats else torch.uint8
            if self.by_kernel:  # what `delta_decode` does, without its checks: these tensors are right
                stack = 0 if places is None else ids.shape[1]
                launch = decode_launch(self.frame_bytes, stack, dtype, normalize)
                if n:
                    launch(n, self.heap, self.table, ids, ids if places is None else places, self.keys, out)
                return
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


def _orders(target: int, places: NDArray[Any], sizes: Any) -> NDArray[np.int64]:
    """Return orders for `scatter` that lack one column: where in the data each piece begins."""
    orders = np.empty((len(places), 4), np.int64)
    orders[:, 0], orders[:, 1], orders[:, 3] = target, places, sizes
    return orders


def grown(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """Return `tensor` with room for at least `n` rows, its own ones first."""
    if n <= len(tensor):
        return tensor
    larger = tensor.new_empty((n + n // _SLACK, *tensor.shape[1:]))
    larger[: len(tensor)] = tensor
    return larger
