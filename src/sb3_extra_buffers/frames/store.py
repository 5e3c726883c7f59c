"""`FrameStore`: every frame once, found again by comparing, decoded in batches."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes, Codec, Ints
from sb3_extra_buffers.frames import matching
from sb3_extra_buffers.frames.heap import Budget, Heap
from sb3_extra_buffers.frames.lock import Lock

Ids = NDArray[np.uint32]

_WORD = 8


class FrameStore:
    """Frames of one size, by id. Id 0 is the frame of zeros: it is always there.

    Ids are counted references: `put` returns ids that belong to the caller until `release`.

    Args:
        frame_bytes: size of a frame.
        codec: how frames are stored.
        stack: frames per observation.
        streams: how many envs write; it grows if more come.
        budget: limit of bytes, shared with other stores.
        lock: shared with whoever must read ids and frames in one step.
    """

    def __init__(
        self,
        frame_bytes: int,
        codec: Codec,
        stack: int = 1,
        streams: int = 1,
        budget: Budget | None = None,
        lock: Lock | None = None,
    ) -> None:
        if frame_bytes < 1:
            raise ValueError(f"a frame has at least 1 byte, not {frame_bytes}")
        self.frame_bytes = frame_bytes
        self.stack = stack
        self.budget = Budget() if budget is None else budget
        self.lock = Lock() if lock is None else lock
        self.coder = codec.coder(frame_bytes)
        self.heap = Heap(frame_bytes, self.budget)
        self.offsets = np.zeros(1, np.int64)
        self.lengths = np.zeros(1, np.uint32)
        self.references = np.zeros(1, np.uint32)
        self.counts = np.ones(1, np.uint32)
        self.free = array("I")
        n_words = -(-frame_bytes // _WORD)
        self._weights = matching.hash_weights(n_words)
        self._match = matching.matcher()
        self.recent = np.zeros((streams, stack, n_words), np.uint64)
        self.recent_ids = np.zeros((streams, stack), np.int64)
        self._clear_index()
        self._charged = 0
        self._charge()

    def _clear_index(self) -> None:
        self._index_hashes = np.zeros(matching.INDEX, np.uint64)
        self._index_ids = np.zeros(matching.INDEX, np.int64)

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            return {key: value for key, value in vars(self).items() if not key.startswith("_") or key == "_charged"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._weights = matching.hash_weights(self.recent.shape[-1])
        self._match = matching.matcher()
        self._clear_index()

    def put(self, frames: Bytes, streams: Ints) -> Ids:
        """Store observations; frames that are stored already are found, not stored again.

        Args:
            frames: `[n, stack, frame_bytes]`, C-contiguous.
            streams: `[n]`, the env each observation comes from. It decides what is compared, not what is stored.

        Returns:
            Ids `[n, stack]`, each counted once for the caller.

        Raises:
            StoreFullError: `max_bytes` is reached; the store is as it was.
        """
        with self.lock:
            n = len(frames)
            frames = np.require(frames, np.uint8, ["C", "W"])  # compiled code takes no read-only arrays
            streams = np.ascontiguousarray(streams, np.int64)
            self._make_room(int(streams.max(initial=-1)) + 1)
            touched = streams if np.all(streams[1:] > streams[:-1]) else np.unique(streams)
            forgotten = self.recent_ids[touched]
            codes = np.empty((n, self.stack), np.int64)
            places, hints = np.empty(codes.size, np.int64), np.empty(codes.size, np.int64)
            k = self._match(
                self._as_words(frames),
                streams,
                self.recent,
                self.recent_ids,
                self._weights,
                self._index_hashes,
                self._index_ids,
                codes,
                places,
                hints,
            )
            if k:
                flat = frames.reshape(-1, self.frame_bytes)[places[:k]]
                try:
                    ids = self._confirm(flat, hints[:k])
                    self._add(ids, flat, streams[places[:k] // self.stack])
                except BaseException:
                    self.recent[touched], self.recent_ids[touched] = 0, 0
                    self._clear_index()
                    self.release(forgotten)
                    raise
                for known in (codes, self.recent_ids, self._index_ids):
                    known[known < 0] = ids[-1 - known[known < 0]]
            # The caller's references, and those of `recent`, whose frames must not go while they are compared with.
            self._count(codes)
            self._count(self.recent_ids[touched])
            self.release(forgotten)
            return codes.astype(np.uint32)

    def take(self, ids: NDArray[Any], out: Bytes) -> None:
        """Decode the frames `ids` [n] into `out` [n, frame_bytes], C-contiguous."""
        with self.lock:
            ids = ids.astype(np.int64, copy=False)
            self.coder.decode(
                self.heap.data,
                self.offsets[ids],
                self.lengths[ids].astype(np.int64),
                self.references[ids].astype(np.int64),
                out,
            )

    def retain(self, ids: NDArray[Any]) -> None:
        """Count each of `ids` once more."""
        with self.lock:
            self._count(ids)

    def release(self, ids: NDArray[Any]) -> None:
        """Count each of `ids` once less; frames that nobody counts are gone."""
        with self.lock:
            flat = ids.reshape(-1)
            flat = flat[flat != 0]
            np.subtract.at(self.counts, flat, 1)
            dead = flat[self.counts[flat] == 0]
            if dead.size:
                dead = np.unique(dead)
                self.heap.release(self.offsets[dead])
                self.coder.release(self.references[dead].astype(np.int64))
                self.free.frombytes(dead.astype(np.uintc).tobytes())

    @property
    def n_frames(self) -> int:
        """How many different frames are stored, the frame of zeros not counted."""
        return len(self.counts) - 1 - len(self.free)

    @property
    def nbytes(self) -> int:
        """Every byte this store owns."""
        own = (value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))
        return sum(own) + self.free.itemsize * len(self.free) + self.heap.nbytes + self.coder.nbytes

    def _as_words(self, frames: Bytes) -> NDArray[np.uint64]:
        if self.frame_bytes % _WORD == 0:
            return frames.view(np.uint64)
        padded = np.zeros((*frames.shape[:2], self.recent.shape[-1] * _WORD), np.uint8)
        padded[..., : self.frame_bytes] = frames
        return padded.view(np.uint64)

    def _confirm(self, frames: Bytes, hints: Ints) -> Ints:
        """Return for each frame the hinted id if that holds the same bytes, else -1."""
        ids = np.full(len(frames), -1, np.int64)
        hinted = np.flatnonzero(hints > 0)
        hinted = hinted[self.counts[hints[hinted]] > 0]
        if hinted.size:
            stored = np.empty((len(hinted), self.frame_bytes), np.uint8)
            self.take(hints[hinted], stored)
            same = hinted[(stored == frames[hinted]).all(axis=1)]
            ids[same] = hints[same]
        return ids

    def _add(self, ids: Ints, frames: Bytes, streams: Ints) -> None:
        """Store the frames whose id is -1 and fill in their ids."""
        new = np.flatnonzero(ids < 0)
        if not new.size:
            return
        encoded = self.coder.encode(np.ascontiguousarray(frames[new]), streams[new])
        try:
            missing = len(new) - len(self.free)
            if missing > 0:
                self._grow_table(max(missing, len(self.counts) >> 6))
            self._charge()
            offsets = self.heap.append(encoded.data, encoded.lengths)
        except BaseException:
            self.coder.release(encoded.references)
            raise
        chosen = np.frombuffer(self.free[-len(new) :], np.uintc)
        del self.free[-len(new) :]
        self.offsets[chosen] = offsets
        self.lengths[chosen] = encoded.lengths
        self.references[chosen] = encoded.references
        self.counts[chosen] = 0
        ids[new] = chosen

    def _count(self, ids: NDArray[Any]) -> None:
        flat = ids.reshape(-1)
        np.add.at(self.counts, flat[flat != 0], 1)

    def _grow_table(self, more: int) -> None:
        known = len(self.counts)
        self.offsets = np.pad(self.offsets, (0, more))
        self.lengths = np.pad(self.lengths, (0, more))
        self.references = np.pad(self.references, (0, more))
        self.counts = np.pad(self.counts, (0, more))
        self.free.frombytes(np.arange(known + more - 1, known - 1, -1, dtype=np.uintc).tobytes())

    def _make_room(self, streams: int) -> None:
        more = streams - len(self.recent)
        if more > 0:
            self.recent = np.pad(self.recent, ((0, more), (0, 0), (0, 0)))
            self.recent_ids = np.pad(self.recent_ids, ((0, more), (0, 0)))

    def _charge(self) -> None:
        """Tell the budget what the tables and the coder grew by; the heap tells it by itself."""
        if self.budget.max_bytes is None:
            return
        more = self.nbytes - self.heap.data.nbytes - self._charged
        self.budget.charge(more)
        self._charged += more
