"""`FrameStore`: every frame once, found again by comparing, decoded in batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit, optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, Encoded, Ints, array_bytes, grown
from sb3_extra_buffers.codecs.delta import DeltaCoder
from sb3_extra_buffers.codecs.interleave import to_pixels, to_planes
from sb3_extra_buffers.frames import matching, pairs
from sb3_extra_buffers.frames.heap import Budget, Heap
from sb3_extra_buffers.frames.held import WORD, Candidates, Held, words_of
from sb3_extra_buffers.frames.lock import Lock

Ids = NDArray[np.uint32]

_ENTRY = 24  # bytes of tables per frame
_ENTRIES = 64  # ids by which the tables grow at least, where bytes are not limited
_NOTHING = np.zeros(0, np.int64)
_NO_FRAMES = Encoded(np.zeros(0, np.uint8), _NOTHING, _NOTHING)
_BEGUN = np.array((0, 0, -1, -1), np.int64)  # what `progress` of `fused` is at first


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

    by_pixel = False  # whether frames of several channels are compared pixel by pixel, as they came
    n_puts = 0  # how often something was stored: an id may now be that of another frame

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
        self.free = np.zeros(1, np.uint32)  # ids that are free, the first `n_free` of them
        self.n_free = 0
        self.n_words = words_of(frame_bytes)
        self.recent: NDArray[Any] = np.zeros((streams, stack, self.n_words), np.uint64)
        self.recent_ids = np.zeros((streams, stack), np.int64)
        self._prepare()
        self.budget.owners.add(self)
        self.budget.check(0)

    @property
    def likes_pixels(self) -> bool:
        """Whether frames of several channels may come pixel by pixel, and take less time so."""
        return self.stack == 1 and self.coder.pixel_channels > 0

    def _prepare(self) -> None:
        self._weights = matching.hash_weights()
        self._overlap = matching.overlap()
        self._overlap_interleaved = matching.overlap_interleaved()
        self._look_up = matching.look_up()
        self._confirm = matching.confirm()
        self._tell = matching.tell()
        self._finish = matching.finish()
        self._count = matching.count()
        self._groups = pairs.grouping()
        self._identify = self._steps
        if isinstance(self.coder, DeltaCoder) and optional.has_numba():
            from sb3_extra_buffers.frames import fused

            self._fused, self._identify = fused, self._in_one_call
        self._held: Held | None = None
        self._clear_index()

    def _clear_index(self) -> None:
        self._index_hashes = np.zeros(matching.INDEX, np.uint64)
        self._index_ids = np.zeros(matching.INDEX, np.int64)

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def put(self, frames: Bytes, streams: Ints) -> Ids:
        """Store observations; frames that are stored already are found, not stored again.

        Args:
            frames: `[n, stack, frame_bytes]`. Fastest if they are C-contiguous, or a stack of 4 pixel by pixel. Or
                `[n, 1, pixels, channels]`, C-contiguous, of frames that are channel by channel, if it `likes_pixels`.
            streams: `[n]`, the env each observation comes from. It decides what is compared, not what is stored.

        Returns:
            Ids `[n, stack]`, each counted once for the caller.

        Raises:
            StoreFullError: `max_bytes` is reached; the store is as it was.
        """
        ids: Ids = self.put_blocks([frames], streams)[0]
        return ids

    def put_blocks(self, blocks: Sequence[Bytes], streams: Ints, gone: Sequence[Ids] = ()) -> Ids:
        """Store several blocks of the same streams in one go; of each stream, one after another.

        Args:
            blocks: each as `put` takes them.
            streams: `[n]`, of every block.
            gone: flat arrays of ids to release, which takes less time here. They are released as well if this raises.

        Returns:
            Ids `[blocks, n, stack]`.
        """
        with self.lock:
            if self.is_holding:
                raise RuntimeError("blocks are held: store them first, with put_held")
            self.n_puts += 1
            streams = np.ascontiguousarray(streams, np.int64)
            codes = np.empty((len(blocks), len(streams), self.stack), np.int64)
            candidates = Candidates(codes.size, self.frame_bytes)
            # More streams come with ids 0, which are not counted.
            before = np.concatenate([self.recent_ids.reshape(-1), *gone])
            try:
                self._compare(blocks, streams, codes, candidates)
                k = candidates.n
                return self._resolve(candidates.frames[:k], candidates.sources[:k], codes, before, _ignore)
            except BaseException:
                self._forget_recent()
                self._clear_index()
                self.release(before)
                raise

    def hold(self, blocks: Sequence[Bytes], streams: Ints, rows: int) -> bool:
        """Do the first step for a row of blocks; `put_held` does the others, for several rows at once.

        If this raises, `drop_held` has to be called.

        Args:
            blocks: as `put_blocks` takes them. They are not needed any more afterwards.
            streams: `[n]`, int64, of every block and every row.
            rows: how many such rows to have room for.

        Returns:
            Whether they are held; False if there is no room for so many blocks, or blocks of this size.
        """
        with self.lock:
            held = self._held
            if held is None or not held.ends:
                shape = (rows * len(blocks), len(streams), self.stack)
                if held is None or held.codes.shape != shape:
                    self._held = held = Held(rows, len(blocks), *shape[1:], self.frame_bytes)
                held.candidates.progress[0] = 0
                held.before = self.recent_ids.flatten()
            n = held.n_blocks
            codes = held.codes[n : n + len(blocks)]
            if codes.shape[:2] != (len(blocks), len(streams)):
                return False
            held.comparing = True
            self._compare(blocks, streams, codes, held.candidates)
            held.ends = [*held.ends, (n + len(blocks), held.candidates.n)]
            held.comparing = False
            return True

    def put_held(self, gone: Sequence[Ids], done: Callable[[Ids], None]) -> None:
        """Store the blocks that are held. If this raises before they are stored, they are held on.

        Args:
            gone: as of `put_blocks`.
            done: is given the ids `[blocks, n, stack]` at the very moment they are stored; once more if that is
                interrupted.
        """
        with self.lock:
            held = self._held
            if held is None or not held.ends:
                raise RuntimeError("no blocks are held")
            self.n_puts += 1
            n_before, before = held.before.size, np.concatenate([held.before, *gone])

            def let_go(ids: Ids) -> None:
                held.ends = []
                if held.has_grown:
                    self._held = None
                done(ids)

            try:
                self._resolve(*held.contents, before, let_go)
            except BaseException:
                if held.ends:
                    self._forget_recent()
                    self._clear_index()
                    before[:n_before] = 0  # they stay counted
                self.release(before)
                raise

    def drop_held(self, n: int) -> None:
        """Forget held blocks but the first `n`, and a row of which the comparison was interrupted.

        The last observations of all streams are then forgotten, too. Interrupted, it can be called again.
        """
        with self.lock:
            held = self._held
            if held is None or (not held.comparing and held.n_blocks <= n):
                return
            held.comparing = True
            held.ends = [end for end in held.ends if end[0] <= n]
            held.candidates.progress[0] = held.ends[-1][1] if held.ends else 0
            self._forget_recent()
            if not held.ends:
                before, held.before = held.before, _NOTHING
                self.release(before)
            held.comparing = False

    @property
    def is_holding(self) -> bool:
        """Whether blocks are held, or being compared to be."""
        return self._held is not None and (bool(self._held.ends) or self._held.comparing)

    @property
    def n_held(self) -> int:
        """How many blocks are held."""
        return 0 if self._held is None else self._held.n_blocks

    def can_hold(self, n: int) -> bool:
        """Tell whether there is room for `n` more blocks."""
        held = self._held
        return held is None or (held.n_blocks + n <= len(held.codes) and not held.has_grown)

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

    def take_both(self, first: Ids, second: Ids, out: Bytes) -> None:
        """Decode the frames of two arrays of ids `[n, stack]` into `out` `[2 * n * stack, frame_bytes]`.

        Frames that an observation of one has in common with that of the other are decoded once.
        """
        with self.lock:
            ids, rows, sources = np.empty((3, 2 * first.size), np.int64)
            self._groups(first, second, ids, rows, sources)
            self.coder.decode_groups(
                self.heap.data,
                self.offsets[ids],
                self.lengths[ids].astype(np.int64),
                self.references[ids].astype(np.int64),
                out,
                rows,
                sources,
                2 * first.shape[1],
            )

    def retain(self, ids: NDArray[Any]) -> None:
        """Count each of `ids` once more."""
        with self.lock:
            ids = ids.reshape(-1)
            self._recount(ids, ids[:0])

    def release(self, ids: NDArray[Any]) -> None:
        """Count each of `ids` once less; frames that nobody counts are gone."""
        with self.lock:
            ids = ids.reshape(-1)
            self._recount(ids[:0], ids)

    def stored_since(self, mark: int, n: int) -> NDArray[np.bool_]:
        """Tell for each `n` ids, one after another, whether a frame may have been stored under one since.

        A frame that was has its payload in a segment that was written to since the heap's `mark`.
        """
        starts, size = np.arange(0, len(self.offsets), n), self.heap.segment_bytes
        written = self.heap.written_since(mark)
        counted = np.concatenate([[0], written.cumsum()])
        first, last = (f.reduceat(self.offsets, starts) // size for f in (np.minimum, np.maximum))
        # Ids that are free may have come from a file with any offset.
        stored: NDArray[np.bool_] = counted.take(last + 1, mode="clip") > counted.take(first, mode="clip")
        for i in stored.nonzero()[0].tolist():
            stored[i] = written.take(self.offsets[i * n : (i + 1) * n] // size, mode="clip").any()
        return stored

    @property
    def n_frames(self) -> int:
        """How many different frames are stored, the frame of zeros not counted."""
        return len(self.counts) - 1 - self.n_free

    @property
    def nbytes(self) -> int:
        """Every byte this store owns."""
        held = 0 if self._held is None else self._held.nbytes
        return array_bytes(self) + self.heap.nbytes + self.coder.nbytes + held

    def _compare(self, blocks: Sequence[Bytes], streams: Ints, codes: Ints, candidates: Candidates) -> None:
        """Do the first step."""
        for b in range(0, len(blocks), 2):
            self._overlap_pair(blocks[b : b + 2], streams, codes[b : b + 2], candidates)

    def _overlap_pair(self, blocks: Sequence[Bytes], streams: Ints, codes: Ints, candidates: Candidates) -> None:
        """Do the first step for one or two blocks."""
        frames = blocks[0]
        interleaved = self.recent.ndim == 2  # the frames of a stack pixel by pixel
        if not interleaved and self.stack == 4 and frames.strides[1:] == (1, 4) and self.frame_bytes > 1:
            # From now on compare pixel by pixel, as they come.
            self.recent, interleaved = _as_pixels(self.recent.view(np.uint8)[..., : self.frame_bytes]), True
        if frames.ndim == 4 and not self.by_pixel and candidates.n == 0:  # likewise
            self.recent, self.by_pixel = self._as_words(self._pixels(self.recent.view(np.uint8))), True
        prepare: Callable[[Bytes], NDArray[Any]] = _as_pixels if interleaved else self._as_words
        overlap = self._overlap_interleaved if interleaved else self._overlap
        first = prepare(frames)
        second = prepare(blocks[1]) if len(blocks) > 1 else first[:0]
        progress = candidates.progress
        progress[1] = 0
        while True:
            out = candidates.frames.view(np.uint8) if interleaved else candidates.frames
            if overlap(first, second, streams, self.recent, self.recent_ids, codes, out, candidates.sources, progress):
                break
            if 0 <= streams[progress[1]] < len(self.recent):
                candidates.grow(codes.size)
            else:
                self._make_room(streams)

    def _forget_recent(self) -> None:
        self.recent[:], self.recent_ids[:] = 0, 0

    def _pixels(self, frames: Bytes) -> Bytes:
        """Return frames `[..., frame_bytes or more]` that are channel by channel pixel by pixel."""
        flat = frames[..., : self.frame_bytes].reshape(-1, self.frame_bytes)
        return to_pixels(flat, self.coder.pixel_channels).reshape(*frames.shape[:-1], self.frame_bytes)

    def _as_words(self, frames: Bytes) -> NDArray[np.uint64]:
        if frames.ndim == 4:
            frames = frames.reshape(len(frames), 1, self.frame_bytes)
            if not self.by_pixel:
                frames = to_planes(frames[:, 0], self.coder.pixel_channels)[:, None]
        elif self.by_pixel:
            frames = self._pixels(frames)
        if self.frame_bytes % WORD == 0:
            return jit.contiguous(frames).view(np.uint64)
        padded = np.zeros((*frames.shape[:2], self.n_words * WORD), np.uint8)
        padded[..., : self.frame_bytes] = frames
        return padded.view(np.uint64)

    def _resolve(
        self,
        candidates: NDArray[np.uint64],
        sources: Ints,
        codes: Ints,
        before: Ints,
        done: Callable[[Ids], None],
    ) -> Ids:
        """Return the ids for `codes`, after finding the candidates among the frames or storing them.

        `recent` counts its frames too, so that they do not go while they are compared with: those in `before`, where
        ids to release are as well, no more. `done` is called when nothing can fail any more.
        """
        return self._identify(candidates, sources, codes, before, done)

    def _steps(
        self,
        candidates: NDArray[np.uint64],
        sources: Ints,
        codes: Ints,
        before: Ints,
        done: Callable[[Ids], None],
    ) -> Ids:
        """Resolve them, step by step."""
        k = len(candidates)
        same_as, hints = np.empty(k, np.int64), np.empty(k, np.int64)
        known = self._look_up(
            candidates, self._weights, self._index_hashes, self._index_ids, self.counts, same_as, hints
        )
        frames = candidates.view(np.uint8)
        if known and self.coder.payloads_tell:
            encoded = self._encoded(frames, sources)
            tables = self.heap.data, self.offsets, self.lengths
            n = self._tell(encoded.data, encoded.lengths, *tables, same_as, hints)
            encoded = Encoded(encoded.data, encoded.lengths[:n], encoded.references[:n])
        else:
            if known:
                hinted = (hints > 0).nonzero()[0]
                if hinted.size:
                    stored = np.empty((len(hinted), self.frame_bytes), np.uint8)
                    self.take(hints[hinted], stored)
                    self._confirm(self._pixels(stored) if self.by_pixel else stored, frames, hinted, hints)
                new = ((hints < 0) & (same_as == np.arange(k))).nonzero()[0]
                frames, sources = frames[new], sources[new]
            encoded = self._encoded(frames, sources)
        offsets, lengths, references = self._append(encoded)
        ids, left = np.empty(codes.shape, np.uint32), np.full(1, -1, np.int64)

        def complete() -> None:
            self.n_free = int(left[0])
            done(ids)

        try:
            self._finish(
                *(same_as, hints, offsets, lengths, references),
                *(self.offsets, self.lengths, self.references, self.counts, self.free, self.n_free),
                *(codes.reshape(-1), self.recent_ids.reshape(-1), self._index_ids, ids.reshape(-1), left),
            )
            complete()
        except BaseException:  # also of Ctrl-C
            if left[0] >= 0:
                complete()
            raise
        gone = before.copy()
        before[:] = 0  # once, whatever happens from here on
        self.release(gone)
        return ids

    def _in_one_call(
        self,
        candidates: NDArray[np.uint64],
        sources: Ints,
        codes: Ints,
        before: Ints,
        done: Callable[[Ids], None],
    ) -> Ids:
        """Do the steps for `delta`, compiled as one; see `fused`."""
        coder, heap, k, fused = self.coder, self.heap, len(candidates), self._fused
        assert isinstance(coder, DeltaCoder)
        store_new = fused.store_new()
        self._check_budget(k)
        ids = np.empty(codes.shape, np.uint32)
        scratch = np.empty((6, k), np.int64)
        frames, data = np.empty((k, coder.n_words), np.uint32), np.empty(k * self.frame_bytes, np.uint8)
        progress, copied, empty = _BEGUN.copy(), _BEGUN[:3].copy(), np.empty(1 + before.size, np.int64)
        copied[2], state = heap.at, heap.state

        def complete() -> None:
            heap.at, self.n_free = int(copied[2]), int(progress[3])
            done(ids)

        try:
            while full := store_new(
                *(candidates, sources, codes.reshape(-1), before, ids.reshape(-1)),
                *(self._weights, self._index_hashes, self._index_ids, self.recent_ids.reshape(-1)),
                *(heap.data, heap.limit, heap.segment_bytes, heap.alive, empty),
                *(self.offsets, self.lengths, self.references, self.counts, self.free, self.n_free),
                *coder.state,
                *(scratch, frames, data, progress, copied),
            ):
                n, streams, lengths = progress[2], scratch[2], scratch[3]
                if full == fused.KEYS_FULL:
                    coder.make_room(int(streams[:n].max()) + 1)
                elif full == fused.TABLES_FULL:
                    self._grow_table(n)
                else:
                    heap.at = int(copied[2])
                    heap.make_room(int(lengths[copied[0]]))
                    copied[2] = heap.at
            complete()
        except BaseException:  # also of Ctrl-C
            if progress[3] >= 0:
                complete()
            else:
                coder.release(scratch[4, : progress[0]])
                heap.undo(state, scratch[5, : copied[0]])
            raise
        self._let_go(0, empty)
        return ids

    def _encoded(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of frames, which may have padding at their ends."""
        if not len(frames):
            return _NO_FRAMES
        self._check_budget(len(frames))
        encode = self.coder.encode_pixels if self.by_pixel else self.coder.encode
        return encode(frames[:, : self.frame_bytes], streams)

    def _append(self, encoded: Encoded) -> tuple[Ints, Ints, Ints]:
        """Store the payloads of new frames, and make sure there are ids for them."""
        data, lengths, references = encoded
        if not len(lengths):
            return _NOTHING, _NOTHING, _NOTHING
        try:
            if len(lengths) > self.n_free:
                self._grow_table(len(lengths))
            return self.heap.append(data, lengths), lengths, references
        except BaseException:
            self.coder.release(references)
            raise

    def _recount(self, up: NDArray[Any], down: NDArray[Any]) -> None:
        known, heap, empty = self.n_free, self.heap, np.empty(1 + down.size, np.int64)
        tables = (self.counts, self.free, known, self.offsets, heap.segment_bytes, heap.alive)
        self.n_free = self._count(up, down, *tables, empty)
        self._let_go(self.n_free - known, empty)

    def _let_go(self, n: int, empty: Ints) -> None:
        """Give up what the last `n` free ids had, and the segments that nobody needs any more."""
        if n:
            self.coder.release(self.references[self.free[self.n_free - n : self.n_free]])
        if empty[0]:
            self.heap.reopen(empty[1 : 1 + empty[0]])

    def _check_budget(self, n_frames: int) -> None:
        """Ask for what the coder must have, and whether it may learn from so many frames."""
        if self.budget.max_bytes is not None:
            missing = self.coder.missing_bytes(len(self.recent))
            self.budget.check(missing)
            self.coder.learning = self.budget.allows(missing + self.coder.growth_bytes(n_frames))

    def _grow_table(self, n_frames: int) -> None:
        """Make room for ids of so many frames."""
        more = max(n_frames - self.n_free, len(self.counts) >> 4, _ENTRIES if self.budget.max_bytes is None else 0)
        self.budget.check(more * _ENTRY)
        known, free = len(self.counts), grown(self.free, more)
        free[self.n_free : self.n_free + more] = np.arange(known + more - 1, known - 1, -1)
        tables = [grown(table, more) for table in (self.offsets, self.lengths, self.references, self.counts)]
        # All of them, or none if there is no memory. Nothing is called in between, where Ctrl-C could come.
        self.offsets, self.lengths, self.references, self.counts = tables
        self.free, self.n_free = free, self.n_free + more

    def _make_room(self, streams: Ints) -> None:
        if streams.min() < 0:
            raise ValueError(f"streams are numbered from 0, not {streams.min()}")
        more = int(streams.max()) + 1 - len(self.recent)
        self.budget.check(more * self.stack * self.frame_bytes)
        self.recent, self.recent_ids = grown(self.recent, more), grown(self.recent_ids, more)


def _ignore(ids: Ids) -> None:
    """Do nothing: the caller is given the ids."""


def _as_pixels(frames: Bytes) -> NDArray[np.uint32]:
    """Return the stacks `[n, 4, pixels]` with the 4 values of a pixel as one word, `[n, pixels]`."""
    return jit.contiguous(frames.transpose(0, 2, 1)).view(np.uint32)[..., 0]


@functools.cache
def warm_up(codec: Codec) -> None:
    """Store and read some frames, once in a process: so nothing is compiled or loaded in the first training step."""
    frames = np.arange(1, 65, dtype=np.uint8).reshape(2, 4, 8)
    pixels = np.ascontiguousarray(frames.transpose(0, 2, 1)).transpose(0, 2, 1)
    for obs in (frames, pixels):
        store = FrameStore(8, codec, stack=4)
        for turn in range(3):
            ids = store.put_blocks([obs, np.roll(obs, turn, axis=1)], np.arange(2))
            store.take(ids.reshape(-1), np.empty((ids.size, 8), np.uint8))
            store.take_both(ids[0], ids[1], np.empty((ids.size, 8), np.uint8))
            store.release(ids)
