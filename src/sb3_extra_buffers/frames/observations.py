"""`ObservationStore`: what the arrays of one observation key share. Casts, cuts into frames, plans, stores.

    obs [n, *obs_shape] --cast, Layout.split--> frames [n, stack, bytes] --FrameStore.put--> ids [n, stack]

With `auto` the first writes are kept as they come; when they have shown how observations are stacked and what
compresses them, they are stored anew by that plan. Nobody outside notices: ids are looked up in `IdTable`, which the
store rewrites.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import Codec, get_codec
from sb3_extra_buffers.codecs.base import Bytes
from sb3_extra_buffers.codecs.registry import for_channels, likely_channels
from sb3_extra_buffers.frames.auto import candidates, choose_codec, find_stack, likely_stack
from sb3_extra_buffers.frames.batches import Fresh, Recycler
from sb3_extra_buffers.frames.cast import clipped_cast
from sb3_extra_buffers.frames.finishing import finish
from sb3_extra_buffers.frames.heap import Budget
from sb3_extra_buffers.frames.layout import Layout, stack_axis
from sb3_extra_buffers.frames.lock import Lock
from sb3_extra_buffers.frames.pairs import Pairs
from sb3_extra_buffers.frames.spill import Spill, SpilledFrames
from sb3_extra_buffers.frames.store import FrameStore, Ids, warm_up
from sb3_extra_buffers.frames.writes import Stored, Write, in_one, rows_that_wait

Output = Literal["raw", "float", "normalized"]

_TRIAL = 16  # writes after which a plan is made with what is known
_TRIAL_BYTES = 1 << 26


class ObservationStore:
    """Compressed observations of one shape and dtype.

    Args:
        obs_shape: shape of one observation.
        dtype: what observations are; what reading gives unless `output` says otherwise.
        storage: what they are stored as; a narrower dtype clips. None: `dtype`.
        method: compression method string.
        compression_kwargs: settings of the codec.
        decompression_kwargs: settings of the codec.
        runs_type: integer type of run lengths, for the rle family.
        frame_stack: frames per observation, or `"auto"`.
        streams: how many envs write.
        output: `"raw"` reads `dtype`, `"float"` float32, `"normalized"` float32 divided by 255.
        budget: limit of bytes, shared with other stores.
        lock: shared with whoever must see several arrays change at once.
        spill: keep payloads in a file there. None: in memory.

    Attributes:
        alone: whether no buffer cares for the lock: then arrays do, when they are pickled.
        waiting: assignments that count as made, in the order they came; `frames` holds their observations.
    """

    alone = False
    reads_pairs = True  # two arrays at once; see `pairs`

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        storage: np.dtype[Any] | None = None,
        method: str = "auto",
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        runs_type: Any = None,
        frame_stack: int | Literal["auto"] = "auto",
        streams: int = 1,
        output: Output = "raw",
        budget: Budget | None = None,
        lock: Lock | None = None,
        spill: Spill | None = None,
    ) -> None:
        self.spill = spill
        self.obs_shape = tuple(int(n) for n in obs_shape)
        self.dtype = np.dtype(dtype)
        self.storage = self.dtype if storage is None else np.dtype(storage)
        self.output = output
        self.method = method
        self.frame_stack = frame_stack
        self.streams = max(streams, 1)
        self.row_streams = np.arange(self.streams, dtype=np.int64)
        self.row_shape = (self.streams, *self.obs_shape)
        self.budget = Budget() if budget is None else budget
        self.lock = Lock() if lock is None else lock
        self.alone = lock is None
        self.tables: weakref.WeakSet[IdTable] = weakref.WeakSet()
        self.n_tables = 0
        self.orphans: deque[Ids] = deque()
        self.fresh = Fresh()
        self.recycler = Recycler()
        self.pairs = Pairs()
        self.staged: list[Write] | None = None
        self.accepted: list[Write] = []
        self.prepared: list[Stored] = []
        self.waiting: list[Write] = []
        self.storing = False
        self._settings = {
            "compression_kwargs": dict(compression_kwargs or {}),
            "decompression_kwargs": dict(decompression_kwargs or {}),
            "item_bytes": self.storage.itemsize if self.storage.itemsize in (1, 2, 4, 8) else 1,
            "runs_type": runs_type,
        }
        if method == "auto" and (compression_kwargs or decompression_kwargs):
            raise ValueError("compression_kwargs are settings of one codec: name it with compression_method")
        stack = likely_stack(self.obs_shape, self.storage) if frame_stack == "auto" else _as_stack(frame_stack)
        self.layout = Layout(self.obs_shape, self.storage, stack, stack_axis(self.obs_shape, stack))
        self.planned = method != "auto" and frame_stack != "auto"
        self.writes = 0
        self.found: tuple[int, int] | None = None
        opened = self._codecs(self.layout)
        self.codec = get_codec("none") if method == "auto" else opened(method)
        for layout in (self.layout, Layout(self.obs_shape, self.storage)):  # as it may turn out
            likely = candidates(self._codecs(layout)).values() if method == "auto" else (self.codec,)
            for codec in (get_codec("none"), *likely):
                warm_up(codec)
                codec.coder(layout.frame_bytes)
        self.frames = self._open(self.codec if self.planned else get_codec("none"), self.layout)

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            _flush_all(self.budget)
            self.collect()
            state = {**vars(self), "tables": list(self.tables), "orphans": deque()}
            del state["pairs"], state["waiting"]
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.tables = weakref.WeakSet(state["tables"])
        self.pairs, self.waiting = Pairs(), []

    @property
    def read_dtype(self) -> np.dtype[Any]:
        """What reading gives."""
        return self.dtype if self.output == "raw" else np.dtype(np.float32)

    @property
    def is_limited(self) -> bool:
        """Whether there may be no room for more."""
        return self.budget.max_bytes is not None

    def put(self, obs: NDArray[Any], streams: NDArray[np.int64]) -> Ids:
        """Store checked observations `[n, *obs_shape]`; see `FrameStore.put`."""
        obs = self._narrowed(obs)
        with self.lock:
            self.collect()
            self.settle_if_due()
            self.writes += 1
            if not self.planned and len(obs) > _TRIAL * self.streams:
                self._look_ahead(obs, streams)
            return self.frames.put(self._split(obs), streams)

    def take(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Return the observations `[n, *obs_shape]` of ids `[n, stack]`, in a new array."""
        memory = self.recycler.memory(ids.size * self.layout.frame_bytes)
        return self._joined(_decoded(self.frames, ids, memory))

    def take_both(self, first: Ids, second: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the observations of both, as `take` does for each."""
        memory = self.recycler.memory(2 * first.size * self.layout.frame_bytes)
        self.frames.take_both(first, second, memory.reshape(-1, self.layout.frame_bytes))
        one, other = memory.reshape(2, *first.shape, self.layout.frame_bytes)
        return self._joined(one), self._joined(other)

    def _joined(self, frames: Bytes) -> NDArray[Any]:
        obs = self.layout.join(frames)
        if self.output == "normalized":
            return obs.astype(np.float32) / np.float32(255)
        return obs.astype(self.read_dtype, copy=False)

    def stored(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Return the observations of `ids` as they were put in, whatever reading gives."""
        return self.layout.join(_decoded(self.frames, ids)).astype(self.dtype, copy=False)

    def assign(self, table: IdTable, index: Any, obs: NDArray[Any], streams: NDArray[np.int64]) -> None:
        """Store checked observations `[n, *obs_shape]` at `table.ids[index]`; after `begin`, when `publish` comes."""
        table.check(index)
        write = Write(table, index, self._narrowed(obs), streams)
        if self.staged is not None:
            self.staged.append(write)
            return
        is_stored = False
        try:
            self.begin()
            self.staged = [write]
            self.prepare()
            is_stored = True
            self.publish()
        except BaseException:  # also of Ctrl-C
            if is_stored:
                self.publish()
            else:
                self.rollback()
            raise

    def stage(self, table: IdTable, row: int, obs: NDArray[Any]) -> None:
        """Assign a row, `[streams, *obs_shape]`, between `begin` and `publish`."""
        table.check(row)
        row %= len(table.stored)  # not counted from the end: rows that follow each other are written in one
        self.staged.append(Write(table, row, self._narrowed(obs), self.row_streams))  # type: ignore[union-attr]

    def begin(self) -> None:
        """Hold assignments back: `prepare` and `publish` do them, `rollback` forgets them."""
        self.settle_if_due()
        self.staged = []

    def prepare(self, share: float = 0) -> None:
        """Store the observations of the assignments since `begin`: all that can fail. Nothing shows yet.

        Args:
            share: if what is kept of some rows are at most so many frames for each observation of their tables, they
                may be compared only, to be stored with later ones, or when somebody reads.

        Raises:
            StoreFullError: `max_bytes` is reached; the assignments are forgotten.
        """
        writes, self.staged = self.staged or [], None
        with self.lock:
            if self.is_limited:
                self.collect()  # first: there may be no room otherwise
            self.writes += len(writes)
            try:
                if writes and not self._hold(writes, share):
                    self.flush()
                    self._store(writes)
            except BaseException:
                self.rollback()
                raise

    def _rows_that_wait(self, writes: list[Write], share: float) -> int:
        """Return how many rows like this one may be stored at once, later: that will not be refused. 0: none waits."""
        if not share:
            return 0
        for write in writes:
            if write.streams is not self.row_streams:
                return 0
        if self.waiting:
            return 1  # with those before; `hold` refuses a row for which there is no room
        if not self.planned or self.is_limited or self.spill is not None:
            return 0
        rows = rows_that_wait(writes, share, self.layout.frame_bytes)
        return rows if rows > 1 else 0

    def _hold(self, writes: list[Write], share: float) -> bool:
        """Compare a row, to be stored with others, or now if it is the last there is room for. False: it may not."""
        rows = self._rows_that_wait(writes, share)
        if rows == 0:
            return False
        try:
            self.storing = True
            blocks = [self._split(write.obs) for write in writes]
            if not self.frames.hold(blocks, self.row_streams, rows):
                return False
            for write in writes:
                del write.obs
            self.accepted = writes
            if not self.frames.can_hold(len(writes)):
                self._store_held()
            return True
        finally:
            self.storing = False

    def _store_held(self) -> None:
        """Store what waits, and the row that is accepted, to be published."""
        waiting, accepted = self.waiting, self.accepted

        def done(ids: Ids) -> None:
            n = len(waiting)
            new = [Stored(write.table, write.index, ids[n + i]) for i, write in enumerate(accepted)]
            self.prepared = [*in_one(waiting, ids[:n]), *new]

        self.frames.put_held(self._drained(), done)

    def _store(self, writes: list[Write]) -> None:
        """Store the observations of `writes`, to be published."""
        groups = [writes]  # one call for all arrays of a row: their streams are the same
        for write in writes:
            if write.streams is not self.row_streams:
                groups = [[write] for write in writes]
                break
        try:
            self.storing = True
            for group in groups:
                blocks = [self._split(write.obs) for write in group]
                ids = self.frames.put_blocks(blocks, group[0].streams, self._drained())
                self.prepared += [Stored(write.table, write.index, ids[i]) for i, write in enumerate(group)]
        finally:
            self.storing = False

    def flush(self) -> None:
        """Store what waits, for somebody who reads.

        Raises:
            RuntimeError: this thread is about to do so, and somebody reads meanwhile.
        """
        if not self.waiting and not self.frames.is_holding:
            return
        with self.lock:
            if self.storing or self.prepared or self.accepted:
                raise RuntimeError(
                    "observations are read in the middle of a call that stores some, on the same thread, as from the "
                    "handler of a signal: note there that it came, and read them when the step is done"
                )
            if not self.waiting:
                return  # another thread was faster
            try:
                self.storing = True
                self._store_held()
                self.publish()
            except BaseException:  # also of Ctrl-C
                if self.prepared:
                    self.publish()
                raise
            finally:
                self.storing = False

    def publish(self) -> None:
        """Make the prepared assignments show. Interrupted, it can be called again to do the rest."""
        with self.lock:
            if self.prepared:
                self.waiting = []  # they are the first of these
            elif self.accepted and self.accepted[-1:] != self.waiting[-1:]:  # once, should this have been interrupted
                self.waiting = [*self.waiting, *self.accepted]
            self.accepted = []
            if not self.prepared:
                return
            for stored in self.prepared:
                table, ids = stored.table, stored.ids
                place = table.stored[stored.index]  # a view: the index is of integers, or a slice
                if stored.replaced is None:
                    stored.replaced = place.flatten()
                table.touch(stored.index)
                place[...] = ids if ids.shape == place.shape else ids.reshape(place.shape)
            done, self.prepared = self.prepared, []
            for stored in done:
                if stored.replaced is not None and stored.replaced.tobytes().strip(b"\0"):  # not only frames of zeros
                    self.orphans.append(stored.replaced)

    def rollback(self) -> None:
        """Forget the assignments since `begin`, prepared or not. What waited before stays, or shows if it is stored."""
        with self.lock:
            self.staged, self.accepted = None, []
            self.storing = False  # should this have been interrupted just before
            self.frames.drop_held(len(self.waiting))
            forgotten = [stored for stored in self.prepared if not stored.waited]
            self.prepared = [stored for stored in self.prepared if stored.waited]
            for stored in forgotten:
                self.frames.release(stored.ids)
            self.publish()

    def collect(self) -> None:
        """Store what waits; release the frames of what was overwritten, and of arrays that are gone."""
        self.flush()
        if self.orphans:
            self.frames.release(np.concatenate(self._drained()))

    def _drained(self) -> list[Ids]:
        """Return the ids of such frames, flat arrays, from now on for the caller to release."""
        gone = []
        while self.orphans:
            gone.append(self.orphans.popleft())
        return gone

    def settle(self, coming: NDArray[Any] | None = None) -> None:
        """Make the plan now, with what is known: what was written, and observations about to be."""
        with self.lock:
            if not self.planned:
                self._replan(coming)
                self.planned = True

    def settle_if_due(self) -> None:
        """Make the plan if the first writes have shown enough."""
        if self.planned:
            return
        if self.writes >= _TRIAL or self.frames.heap.nbytes > _TRIAL_BYTES:
            self.settle()

    @property
    def nbytes(self) -> int:
        """Every byte kept for these observations, ids included."""
        with self.lock:
            self.collect()
            return self.frames.nbytes + sum(table.nbytes for table in self.tables)

    def _codecs(self, layout: Layout) -> Callable[..., Codec]:
        """Return what opens codecs for frames of this layout: `codec(method, **settings)`."""

        def codec(method: str, **settings: Any) -> Codec:
            kwargs = {**self._settings["compression_kwargs"], **settings}
            picture = layout.picture
            if not self.planned and "filter" in kwargs and method == self.method:
                picture["channels"] = likely_channels(kwargs["filter"], picture["channels"], layout.stack)
            return get_codec(method, **{**self._settings, **picture, "compression_kwargs": kwargs})

        return codec

    def _split(self, obs: NDArray[Any]) -> Bytes:
        """Return the frames of observations, pixel by pixel where the store likes them so and they come so."""
        pixels = self.layout.split_pixels(obs) if self.frames.likes_pixels else None
        if pixels is None or pixels.shape[3] != self.frames.coder.pixel_channels:
            return self.layout.split(obs)
        return pixels

    def _narrowed(self, obs: NDArray[Any]) -> NDArray[Any]:
        return obs if self.storage == self.dtype else clipped_cast(obs, self.storage)

    def _open(self, codec: Codec, layout: Layout) -> FrameStore:
        settings = (layout.frame_bytes, codec, layout.stack, self.streams, self.budget, self.lock)
        return FrameStore(*settings) if self.spill is None else SpilledFrames(*settings, self.spill)

    def _admit(self, codec: Codec, frames: FrameStore) -> None:
        """Raise `StoreFullError` if these frames of a new plan may not be kept."""

    def _look_ahead(self, obs: NDArray[Any], streams: NDArray[np.int64]) -> None:
        """Make the plan from many observations that come at once."""
        if self.frame_stack == "auto" and self.found is None and self.obs_shape:
            self._find_stack(obs, streams)
        self.settle(obs[:64])

    def _find_stack(self, obs: NDArray[Any], streams: NDArray[np.int64]) -> None:
        """Look at the observations of each stream, in the order they came, for how they are stacked."""
        order = np.argsort(streams, kind="stable")
        pairs = np.flatnonzero(streams[order[:-1]] == streams[order[1:]])[:64]
        item = self.storage.itemsize
        shape = (len(pairs), *self.obs_shape[:-1], self.obs_shape[-1] * item)  # bytes: NaN differs from itself
        before, after = (np.ascontiguousarray(obs[order[pairs + i]]).view(np.uint8).reshape(shape) for i in (0, 1))
        self.found = find_stack(before, after, item)

    def _replan(self, coming: NDArray[Any] | None) -> None:
        self.collect()
        old, old_layout = self.frames, self.layout
        tables = sorted(self.tables, key=lambda table: table.number)
        kept = [np.flatnonzero(table.ids.any(axis=-1)) for table in tables]
        self.orphans.clear()  # ids of the old plan: they go with its store
        written = [
            old_layout.join(_decoded(old, table.ids.reshape(-1, old_layout.stack)[rows]))
            for table, rows in zip(tables, kept, strict=True)
        ]
        # In the order of the ring's rows, all arrays of a row together: that is how they were written.
        places = sorted(
            (place // tables[i].streams, i, place, j)
            for i, rows in enumerate(kept)
            for j, place in enumerate(rows.tolist())
        )
        streams = np.array([place % tables[i].streams for _, i, place, _ in places], np.int64)
        if self.frame_stack == "auto" and self.found is None and self.obs_shape and places:
            self._find_stack(np.stack([written[i][j] for _, i, _, j in places]), streams)
        unstacked = (1, 0) if self.frame_stack == "auto" else (old_layout.stack, old_layout.axis)
        stack, axis = self.found or unstacked
        layout = Layout(self.obs_shape, self.storage, stack, axis)
        if self.method == "auto":
            samples = [*written, *([] if coming is None else [coming])]
            codec = choose_codec([layout.split(obs) for obs in samples], self._codecs(layout))
        else:
            codec = for_channels(self.codec, layout.picture["channels"]).adapted(**layout.picture)
        new_ids = [np.zeros((*table.ids.shape[:-1], stack), np.uint32) for table in tables]
        new_parts = [table.parts_of(ids) for table, ids in zip(tables, new_ids, strict=True)]

        def follow() -> None:
            self.layout, self.codec, self.frames = layout, codec, frames
            for table, ids, parts in zip(tables, new_ids, new_parts, strict=True):
                table.stored, table.parts = ids, parts

        try:
            self.budget.owners.discard(old)
            frames = self._open(codec, layout)
            for (_, i), row in groupby(places, key=itemgetter(0, 1)):
                _, _, at, j = np.array([*row]).T
                new_ids[i].reshape(-1, stack)[at] = frames.put(layout.split(written[i][j]), at % tables[i].streams)
            self._admit(codec, frames)
            self.budget.check(sum(ids.nbytes - table.nbytes for table, ids in zip(tables, new_ids, strict=True)))
            finish(follow)
        except BaseException:
            self.budget.owners.add(old)  # the old plan stands, or nobody has that store any more
            raise


class IdTable:
    """Ids of a block of observations, `[*leading, stack]`; owns one count of each.

    It knows when each `part` of its rows was written to: who writes ids says so with `touch`.

    Attributes:
        stored: the ids, without those of what waits to be stored.
    """

    part = 64
    marks = 0

    def __init__(self, store: ObservationStore, ids: Ids) -> None:
        store.budget.check(ids.nbytes)
        self.store = store
        self.stored = ids
        self.parts = self.parts_of(ids)
        self.streams = ids.shape[-2] if ids.ndim > 2 else 1
        self.is_rows = ids.shape[1:-1] == (store.streams,)
        self.number = store.n_tables = store.n_tables + 1  # they are written in the order they were made
        store.tables.add(self)
        store.budget.owners.add(self)

    @property
    def ids(self) -> Ids:
        """All ids: what waits is stored now."""
        self.store.flush()
        return self.stored

    @property
    def nbytes(self) -> int:
        """Bytes of the ids."""
        return self.stored.nbytes

    def __getstate__(self) -> dict[str, Any]:
        _flush_all(self.store.budget)
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.parts = self.parts_of(self.stored)

    def parts_of(self, ids: Ids) -> NDArray[np.uint32]:
        """Return after which mark each part of new `ids` was written: the last one."""
        return np.full(-(-len(ids) // self.part), self.marks, np.uint32)

    def check(self, index: Any) -> None:
        """Raise `IndexError` as NumPy does if there is no such place."""
        self.stored[index]

    def touch(self, index: int | tuple[int, ...] | slice | None = None) -> None:
        """Say that ids are about to be written: those at `index` (of a slice, from `start` to `stop`), or any."""
        if index is None:
            self.parts[:] = self.marks
        elif type(index) is slice:
            self.parts[index.start // self.part : (index.stop - 1) // self.part + 1] = self.marks
        else:
            row = index[0] if isinstance(index, tuple) else index
            self.parts[row % len(self.stored) // self.part] = self.marks

    def mark(self) -> int:
        """Return a number for `written_since`: from now on."""
        self.store.flush()
        self.marks += 1
        return self.marks

    def written_since(self, mark: int) -> NDArray[np.bool_]:
        """Tell for each part whether it may have been written to since."""
        self.store.flush()
        written: NDArray[np.bool_] = self.parts >= mark
        return written

    def __del__(self) -> None:
        # Not released here: the collector may run this in the middle of a `put`.
        if hasattr(self, "store") and hasattr(self.store, "orphans"):  # not when copying or unpickling has failed
            self.store.orphans.append(self.stored.reshape(-1))


def _flush_all(budget: Budget) -> None:
    """Store what waits in all stores that share a budget: who pickles one of them comes to the others through that."""
    for owner in list(budget.owners):
        if isinstance(owner, IdTable):
            owner.store.flush()


def _as_stack(frame_stack: int) -> int:
    if isinstance(frame_stack, bool) or not isinstance(frame_stack, int | np.integer):
        raise TypeError(f"frame_stack is 'auto' or a number of frames, not {frame_stack!r}")
    if frame_stack < 1:
        raise ValueError(f"frame_stack is 'auto' or at least 1, not {frame_stack}")
    return int(frame_stack)


def _decoded(store: FrameStore, ids: NDArray[Any], memory: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    shape = (*ids.shape, store.frame_bytes)
    frames = np.empty(shape, np.uint8) if memory is None else memory.reshape(shape)
    store.take(ids.reshape(-1), frames.reshape(-1, store.frame_bytes))
    return frames
