"""`FrameStore` against a plain dict of arrays: every frame exact, every frame once, and no more memory than it says."""

import contextlib
import functools
import itertools
import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from interrupting import interrupts

from sb3_extra_buffers.codecs import get_codec, optional
from sb3_extra_buffers.frames import FrameStore, StoreFullError, matching
from sb3_extra_buffers.frames.heap import Budget
from sb3_extra_buffers.frames.held import Candidates

METHODS = ["none", "rle", "rle-jit", "gzip1", "igzip0", "zstd3", "zstd-3", "lz4-frame", "lz4-block", "delta", "near"]
with_and_without_numba = pytest.mark.parametrize("numba", [True, False], ids=["numba", "numpy"])


@contextlib.contextmanager
def numba_or_not(numba: bool):
    with pytest.MonkeyPatch.context() as patch:
        if not numba:
            patch.setattr(optional, "has_numba", lambda: False)
        yield


def taken(store: FrameStore, ids: np.ndarray) -> np.ndarray:
    """Return the frames `[*ids.shape, frame_bytes]`."""
    out = np.full((*ids.shape, store.frame_bytes), 0xA5, np.uint8)
    store.take(ids.reshape(-1), out.reshape(-1, store.frame_bytes))
    return out


def numbered_frame(number: int, size: int) -> np.ndarray:
    """Return one of many frames: 0 is all zeros, the others are one of three scenes with a mark of their own."""
    if number == 0:
        return np.zeros(size, np.uint8)
    frame = np.random.default_rng(number % 3).integers(0, 256, size, np.uint8)
    frame[number % size] = number % 251
    frame[0] = number // 251
    return frame


def stacks(n: int, stack: int, size: int, first: int = 1) -> np.ndarray:
    """Return observations `[n, stack, size]` of one env: each is the last one, shifted, and a new frame."""
    frames = np.stack([numbered_frame(first + i, size) for i in range(n + stack - 1)])
    return np.stack([frames[i : i + stack] for i in range(n)])


def fail(*args: object) -> None:
    raise MemoryError


def spoiled(call):
    """Return a function that calls, and then raises."""

    def step(*args: object) -> None:
        call(*args)
        raise MemoryError

    return step


def noise(n: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 1, size), np.uint8)


class StoreMachine(RuleBasedStateMachine):
    """Puts, takes, retains, releases, overwrites, pickles; a list of plain arrays says what must come out."""

    def __init__(self, method: str, stack: int, size: int, numba: bool) -> None:
        super().__init__()
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(numba_or_not(numba))
        self.stack, self.size, self.streams = stack, size, 2
        name, _, kind = method.partition(", ")
        settings = {"keys": 2} if name == "delta" else {}
        codec = get_codec(name, {**settings, "filter": kind} if kind else settings, channels=3)
        self.store = FrameStore(size, codec, stack, self.streams)
        self.turns = 0
        self.held: list[tuple[np.ndarray, np.ndarray]] = []  # ids [stack] that we own, frames [stack, size]
        self.ring: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=8)
        self.last = {stream: np.zeros((stack, size), np.uint8) for stream in range(5)}
        self.fresh = 1000
        self.remembered: list[tuple[int, list[np.ndarray], np.ndarray]] = []  # marks, tables, keys

    def teardown(self) -> None:
        self.patches.close()

    @initialize(by_pixel=st.sampled_from(["never", "always", "by turns"]))
    def choose_layout(self, by_pixel):
        self.by_pixel = by_pixel

    def put(self, obs: np.ndarray, streams: list[int], gone: Sequence[np.ndarray] = ()) -> np.ndarray:
        before = obs.copy()
        ids = self.store.put_blocks([self.given(obs)], np.array(streams), gone)[0]
        assert ids.shape == obs.shape[:2]
        assert ids.dtype == np.uint32
        assert np.array_equal(obs, before)
        assert np.array_equal(taken(self.store, ids), obs)
        for i, stream in enumerate(streams):
            self.last[stream] = obs[i]
        self.streams = max(self.streams, max(streams) + 1)
        return ids

    def given(self, obs: np.ndarray) -> np.ndarray:
        self.turns += 1
        if self.by_pixel == "never" or (self.by_pixel == "by turns" and self.turns % 3):
            return obs
        if self.store.likes_pixels:
            return np.ascontiguousarray(obs.reshape(len(obs), 1, 3, -1).transpose(0, 1, 3, 2))
        # Channel-last memory seen channel-first, as SB3 gives it.
        return np.ascontiguousarray(obs.transpose(0, 2, 1)).transpose(0, 2, 1)

    def observation(self, stream: int, kind: str, numbers: list[int]) -> np.ndarray:
        frames = np.stack([numbered_frame(number, self.size) for number in numbers[: self.stack]])
        if kind == "repeated":
            return self.last[stream].copy()
        if kind == "zeros":
            return np.zeros_like(frames)
        if kind == "shifted":
            return np.concatenate([self.last[stream][1:], frames[:1]])
        if kind == "standing still":
            return np.repeat(frames[:1], self.stack, axis=0)
        if kind == "fresh":
            self.fresh += self.stack
            return np.stack([numbered_frame(self.fresh + s, self.size) for s in range(self.stack)])
        return frames

    @rule(
        parts=st.lists(
            st.tuples(
                st.integers(0, 4),
                st.sampled_from(["repeated", "zeros", "shifted", "standing still", "fresh", "known"]),
                st.lists(st.integers(0, 12), min_size=4, max_size=4),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def put_observations(self, parts):
        obs = np.stack([self.observation(*part) for part in parts])
        self.held += zip(self.put(obs, [part[0] for part in parts]), obs, strict=True)

    @rule(
        kinds=st.lists(st.sampled_from(["repeated", "shifted", "fresh"]), min_size=2, max_size=2),
        number=st.integers(0, 12),
        at_once=st.booleans(),
    )
    def write_the_ring(self, kinds, number, at_once):
        obs = np.stack([self.observation(env, kind, [number] * 4) for env, kind in enumerate(kinds)])
        gone = [self.ring.popleft()[0].reshape(-1)] if len(self.ring) == self.ring.maxlen else []
        ids = self.put(obs, [0, 1], gone if at_once else ())
        if gone and not at_once:
            self.store.release(gone[0])
        self.ring.append((ids, obs))

    @rule(
        rows=st.lists(
            st.tuples(
                st.lists(st.sampled_from(["repeated", "shifted", "fresh", "known"]), min_size=4, max_size=4),
                st.integers(0, 12),
                st.sampled_from(["kept", "kept", "dropped", "interrupted"]),
            ),
            min_size=1,
            max_size=6,
        ),
        n_blocks=st.integers(1, 2),
        fails=st.booleans(),
    )
    def hold_rows(self, rows, n_blocks, fails):
        """Rows of two envs, compared when they come and stored later; some are taken back."""
        kept = []
        for kinds, number, outcome in rows:
            blocks = []
            for b in range(n_blocks):
                obs = [self.observation(env, kinds[2 * b + env], [number + b] * 4) for env in range(2)]
                blocks.append(np.stack(obs))
                self.last.update(enumerate(obs))
            n, given = self.store.n_held, [self.given(block) for block in blocks]
            if outcome == "interrupted":
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(self.store, "_overlap_pair", spoiled(self.store._overlap_pair))
                    with pytest.raises(MemoryError):
                        self.store.hold(given, np.arange(2), 4)
                self.store.drop_held(n)
                assert self.store.n_held == n
                continue
            lent = [block.copy() for block in blocks]
            is_held = self.store.hold([self.given(block) for block in lent], np.arange(2), 4)
            for block in lent:
                block[...] = 0xEE  # nobody needs it any more
            assert self.store.n_held == n + n_blocks * is_held
            if not is_held:
                self.put_held(kept, fails)
                kept = []
                for block in blocks:
                    self.held += zip(self.put(block, [0, 1]), block, strict=True)
            elif outcome == "dropped":
                self.store.drop_held(n)
                assert self.store.n_held == n
            else:
                kept += blocks
        self.put_held(kept, fails)

    def put_held(self, blocks: list[np.ndarray], fails: bool) -> None:
        if not blocks:
            return
        gone = [self.ring.popleft()[0].reshape(-1)] if self.ring else []
        if fails:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self.store, "_resolve", fail)
                with pytest.raises(MemoryError):
                    self.store.put_held(gone, fail)
            gone = []
        assert self.store.n_held == len(blocks)
        done: list[np.ndarray] = []
        self.store.put_held(gone, done.append)
        assert self.store.n_held == 0
        (ids,) = done
        for some, block in zip(ids, blocks, strict=True):
            self.held += zip(some, block, strict=True)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 10**6))
    def release(self, which):
        ids, _ = self.held.pop(which % len(self.held))
        self.store.release(ids)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 10**6))
    def retain(self, which):
        ids, frames = self.held[which % len(self.held)]
        self.store.retain(ids)
        self.held.append((ids.copy(), frames))

    @rule()
    def release_all(self):
        for ids, _ in [*self.held, *self.ring]:
            self.store.release(ids)
        self.held.clear()
        self.ring.clear()

    @rule()
    def pickle(self):
        self.store = pickle.loads(pickle.dumps(self.store))
        self.remembered.clear()

    @rule()
    def remember(self):
        tables = [self.store.offsets, self.store.lengths, self.store.references]
        keys = getattr(self.store.coder, "keys", np.zeros((0, 1)))
        self.remembered.append((self.store.heap.mark(), [table.copy() for table in tables], keys.copy()))

    @invariant()
    def what_has_changed_is_known(self):
        """Saving relies on it."""
        store, n = self.store, 4
        for mark, tables, keys in self.remembered:
            stored = np.repeat(store.stored_since(mark, n), n)[: len(store.offsets)]
            for before, now in zip(tables, (store.offsets, store.lengths, store.references), strict=True):
                assert stored[: len(before)][before != now[: len(before)]].all()
            if len(keys):
                coder = store.coder
                known = coder.rewritten([store.references[stored]])["keys"][: len(keys)]
                differ = (coder.keys[: len(keys)] != keys).any(axis=1)
                assert known[differ & (coder.uses[: len(keys)] > 0)].all()

    @invariant()
    def every_frame_is_exact(self):
        for ids, frames in [*self.held, *self.ring]:
            assert np.array_equal(taken(self.store, ids), frames)

    @invariant()
    def no_frame_is_kept_that_nobody_needs(self):
        owned = [*self.held, *self.ring]
        ids = {int(i) for part, _ in owned for i in part.reshape(-1)} - {0}
        contents = {frame.tobytes() for _, part in owned for frame in part.reshape(-1, self.size)} - {bytes(self.size)}
        assert len(contents) <= len(ids) <= self.store.n_frames <= len(ids) + self.streams * self.stack

    @invariant()
    def frames_of_zeros_have_id_0(self):
        for ids, frames in [*self.held, *self.ring]:
            assert np.array_equal(ids == 0, ~frames.any(axis=-1))


@with_and_without_numba
@pytest.mark.parametrize(
    ("method", "stack", "size"),
    [
        *itertools.product(["none", "delta", "rle", "zstd", "near"], [1], [5]),
        *itertools.product(["none", "delta", "rle", "zstd", "near"], [4], [64, 97]),
        *itertools.product(["none", "delta", "rle", "zstd"], [3], [40]),
        *itertools.product(["none, palette", "zstd, palette", "delta, interleave"], [1], [24, 57]),
        ("zstd, palette", 2, 24),
    ],
)
def test_any_sequence_of_calls(method, stack, size, numba):
    run_state_machine_as_test(
        lambda: StoreMachine(method, stack, size, numba),
        settings=settings(max_examples=12, stateful_step_count=25),
    )


def pixel_by_pixel(obs: np.ndarray) -> np.ndarray:
    """Return frames `[n, 1, size]` of three channels as they come from channel-last memory."""
    return np.ascontiguousarray(obs.reshape(len(obs), 1, 3, -1).transpose(0, 1, 3, 2))


@with_and_without_numba
@pytest.mark.parametrize("kind", ["palette", "interleave"])
@pytest.mark.parametrize("size", [24, 57])
def test_frames_that_come_pixel_by_pixel(size, kind, numba):
    """One frame comes with the bytes that another one has channel by channel: they are told apart."""
    with numba_or_not(numba):
        store = FrameStore(size, get_codec("zstd3", {"filter": kind}, channels=3), streams=3)
        assert store.likes_pixels
        one = np.stack([numbered_frame(7, size)])[:, None]
        other = np.ascontiguousarray(one.reshape(1, -1, 3).transpose(0, 2, 1)).reshape(one.shape)
        assert pixel_by_pixel(other).tobytes() == one.tobytes()
        ids: list[list[int]] = []
        for stream in (0, 0, 1, 2):  # compared with the last one, or found by its hash
            ids.append([])
            for obs, given in [
                (one, one),
                (other, pixel_by_pixel(other)),
                (one, pixel_by_pixel(one)),
                (other, other),
            ]:
                got = store.put(given, np.array([stream]))
                assert np.array_equal(taken(store, got), obs)
                ids[-1].append(int(got[0, 0]))
        assert ids[1] == ids[2] == ids[3]  # of the first ones the hashes are others
        assert ids[1][:2] == ids[1][2:] == ids[0][1:3][::-1]


@with_and_without_numba
def test_held_frames_that_come_pixel_by_pixel(numba):
    """Those held before came otherwise."""
    with numba_or_not(numba):
        store = FrameStore(57, get_codec("none", {"filter": "palette"}, channels=3), streams=2)
        rows = [np.stack([numbered_frame(2 * i + env + 1, 57) for env in range(2)])[:, None] for i in range(4)]
        for i, obs in enumerate(rows):
            assert store.hold([pixel_by_pixel(obs) if i % 2 else obs], np.arange(2), 4)
        done: list[np.ndarray] = []
        store.put_held((), done.append)
        assert np.array_equal(taken(store, done[0]), np.stack(rows))
        again = store.put(pixel_by_pixel(rows[-1]), np.arange(2))
        assert np.array_equal(again, done[0][-1])
        assert np.array_equal(store.put(rows[-1], np.arange(2)), again)


@with_and_without_numba
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 7, 8, 1000, 7056])
def test_what_is_put_can_be_taken(method, size, numba):
    with numba_or_not(numba), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rle-jit without numba
        store = FrameStore(size, get_codec(method), stack=2, streams=3)
        blocks = [stacks(6, 2, size), np.repeat(noise(6, size), 2, axis=1), np.zeros((6, 2, size), np.uint8)]
        ids = [store.put(block, np.arange(6) % 3) for block in blocks]
        for block, some in zip(blocks, ids, strict=True):
            assert np.array_equal(taken(store, some), block)
        everything = np.concatenate(ids)
        order = np.random.default_rng(0).permutation(len(everything))
        assert np.array_equal(taken(store, everything[order]), np.concatenate(blocks)[order])


@with_and_without_numba
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [64, 61])
def test_more_new_frames_than_there_is_room_for(size, interleaved, numba):
    """In a row that is held: there is made room, for this once, and every frame is found as ever."""
    streams, restarts = np.arange(6), (3, 4, 9)
    obs = [stacks(20, 4, size, first=100 * stream + 1) for stream in streams]
    anew = [stacks(20, 4, size, first=100 * stream + 51) for stream in streams]
    with numba_or_not(numba):
        stores = [FrameStore(size, get_codec("delta"), stack=4, streams=6) for _ in range(2)]
    found, waiting = [], []
    for step in range(19):
        rows = [(anew if step in restarts and stream < 3 else obs)[stream][step : step + 2] for stream in streams]
        blocks = [np.stack([row[b] for row in rows]) for b in range(2)]
        if interleaved:
            blocks = [np.ascontiguousarray(block.transpose(0, 2, 1)).transpose(0, 2, 1) for block in blocks]
        expected = stores[0].put_blocks(blocks, streams)
        assert stores[1].hold(blocks, streams, 4)
        waiting.append((expected, blocks))
        if not stores[1].can_hold(2):
            stores[1].put_held([], found.append)
            assert len(found[-1]) == 2 * len(waiting)
            for i, (_, blocks) in enumerate(waiting):
                assert np.array_equal(taken(stores[1], found[-1][2 * i : 2 * i + 2]), np.stack(blocks))
            waiting.clear()
            if step in restarts:
                assert stores[1]._held is None  # nobody keeps the room
        if not stores[1].is_holding:
            assert stores[0].n_frames == stores[1].n_frames
    assert 4 < len(found) < 10


def test_ctrl_c_while_room_is_made():
    """Who compares looks at the frames to see how much room there is."""
    where, interrupted = 0, True
    while interrupted:
        candidates = Candidates(4, 61)
        interrupted = interrupts(lambda made=candidates: made.grow(3), where, ("sb3_extra_buffers",))
        assert 4 <= len(candidates.frames) <= len(candidates.sources) <= 7
        where += 1
    assert len(candidates.frames) == 7


@with_and_without_numba
@pytest.mark.parametrize("method", ["delta", "none", "near"])
@pytest.mark.parametrize("during", ["put_held", "drop_held"])
def test_ctrl_c_while_rows_are_held(during, method, numba):
    """They are stored, or held on, or taken back when that is asked for again; later rows are right, too."""
    obs, streams = [stacks(16, 2, 24, first=100 * stream + 1) for stream in range(2)], np.arange(2)
    rows = [np.stack([some[i] for some in obs]) for i in range(16)]
    where, interrupted = 0, True
    while interrupted:
        with numba_or_not(numba):
            store = FrameStore(24, get_codec(method), stack=2, streams=2)
        known = [(store.put(row, streams), row) for row in rows[:3]]
        for row in rows[3:6]:
            assert store.hold([row], streams, 4)
        found: list[np.ndarray] = []
        gone = known.pop(0)[0].reshape(-1)
        arguments = ([gone], found.append) if during == "put_held" else (1,)
        call = functools.partial(getattr(store, during), *arguments)
        interrupted = interrupts(call, where, ("sb3_extra_buffers",))
        if during == "drop_held":
            store.drop_held(1)
            store.release(gone)
        kept = rows[3:6] if during == "put_held" else rows[3:4]
        if store.n_held:
            assert not found
            assert store.n_held == len(kept)
            kept = [*kept, rows[6]]
            assert store.hold([rows[6]], streams, 4)  # compared with what is known of the last ones
            store.put_held([], found.append)
        known += zip(found[-1], kept, strict=True)
        known += [(store.put(row, streams), row) for row in rows[7:]]
        for ids, row in known:
            assert np.array_equal(taken(store, ids), row)
        where += 3
    assert where > 30


def test_held_blocks_are_stored_first():
    store = FrameStore(40, get_codec("delta"), stack=1)
    with pytest.raises(RuntimeError, match="no blocks"):
        store.put_held([], fail)
    assert store.hold([noise(1, 40)], np.zeros(1, np.int64), 4)
    with pytest.raises(RuntimeError, match="held"):
        store.put(noise(1, 40), np.zeros(1, np.int64))
    assert not store.hold([noise(2, 40)], np.zeros(2, np.int64), 4)  # another size
    assert store.n_held == 1


def test_putting_and_taking_nothing():
    store = FrameStore(40, get_codec("delta"), stack=4)
    assert store.put(np.empty((0, 4, 40), np.uint8), np.empty(0, np.int64)).shape == (0, 4)
    assert taken(store, np.empty((0, 4), np.uint32)).shape == (0, 4, 40)
    assert store.n_frames == 0
    store.release(np.empty(0, np.uint32))
    store.retain(np.empty(0, np.uint32))
    store.release(np.zeros(5, np.uint32))  # the frame of zeros needs no counting
    assert not taken(store, np.zeros(2, np.uint32)).any()


def test_a_frame_has_a_size():
    with pytest.raises(ValueError, match="0"):
        FrameStore(0, get_codec("none"))


@with_and_without_numba
def test_read_only_and_strided_observations(numba):
    with numba_or_not(numba):
        for size in (64, 61):
            store = FrameStore(size, get_codec("delta"), stack=4)
            obs = stacks(5, 4, size)
            read_only = obs.copy()
            read_only.flags.writeable = False
            strided = np.ascontiguousarray(obs.transpose(0, 2, 1)).transpose(0, 2, 1)
            every_second = np.repeat(obs, 2, axis=2)[..., ::2]
            backwards = obs[::-1].copy()[::-1]
            for given in (read_only, strided, every_second, backwards):
                assert np.array_equal(taken(store, store.put(given, np.zeros(5, np.int64))), obs)
            assert store.n_frames == 8


@pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")
@pytest.mark.parametrize(
    ("stack", "size"), [(1, 1), (1, 63), (4, 1), (4, 64), (4, 97), (4, 512), (4, 700), (3, 1000), (2, 7056)]
)
@pytest.mark.parametrize("layout", ["planes", "pixels"])
@pytest.mark.parametrize("method", ["delta", "near"])
def test_kernels_equal_references(stack, size, layout, method):
    """The same frames found and stored, the same account, with numba and without."""
    stores = []
    for numba in (True, False):
        with numba_or_not(numba):
            stores.append(FrameStore(size, get_codec(method, {"keys": 3} if method == "delta" else {}), stack, 2))
    rng = np.random.default_rng(size)
    last = np.zeros((4, stack, size), np.uint8)
    held: deque[list[np.ndarray]] = deque()
    for step in range(120):
        streams = rng.integers(0, 4, rng.integers(1, 6)) if step % 3 else rng.permutation(4)
        blocks = []
        for _ in range(1 + step % 4):
            obs = np.stack([last[stream] for stream in streams])
            for i, stream in enumerate(streams):
                kind = rng.integers(0, 5)
                new = np.stack([numbered_frame(n, size) for n in rng.integers(0, 20, stack)])
                if step % 60 > 30:
                    new[:, :-1] = 9  # they differ at their end only
                moved = np.concatenate([last[stream][1:], new[:1]])
                changed = last[stream].copy()
                changed[-1, rng.integers(size)] ^= 1
                obs[i] = [last[stream], moved, new, new[:1].repeat(stack, 0), changed][kind]
                last[stream] = obs[i]
            blocks.append(obs)
        given = blocks
        if layout == "pixels":
            given = [np.ascontiguousarray(obs.transpose(0, 2, 1)).transpose(0, 2, 1) for obs in blocks]
        gone = [ids.reshape(-1) for ids in held.popleft()] if len(held) == 10 else []
        held.append([store.put_blocks(given, streams, gone[i : i + 1]) for i, store in enumerate(stores)])
        assert stores[0].n_frames == stores[1].n_frames
        if method == "delta":
            assert stores[0].coder.uses.sum() == stores[1].coder.uses.sum()
        assert stores[0].nbytes == stores[1].nbytes
        for store, ids in zip(stores, held[-1], strict=True):
            assert np.array_equal(taken(store, ids), np.stack(blocks))
        kernel, reference = (np.concatenate([pair[i].reshape(-1) for pair in held]) for i in range(2))
        assert len(set(zip(kernel.tolist(), reference.tolist(), strict=True))) == len(set(kernel.tolist()))


@with_and_without_numba
def test_blocks_are_stored_one_after_another(numba):
    """Observations and next observations in one call."""
    with numba_or_not(numba):
        store = FrameStore(64, get_codec("none"), stack=4, streams=2)
        obs = np.stack([stacks(40, 4, 64), stacks(40, 4, 64, first=300)], axis=1)  # [40, 2, 4, 64]
        held = deque()
        for step in range(39):
            ids = store.put_blocks([obs[step], obs[step + 1]], np.arange(2))
            assert ids.shape == (2, 2, 4)
            held.append(ids)
            if len(held) > 10:
                store.release(held.popleft())
            for i, block in enumerate(held, start=step + 1 - len(held)):
                assert np.array_equal(taken(store, block), obs[i : i + 2])
            assert store.n_frames == 2 * (len(held) + 4)


@with_and_without_numba
@pytest.mark.parametrize("size", [257, 512, 700])
def test_comparing_two_observations_leaves_no_trace_of_the_second(numba, size):
    """The first begins as the last one and ends as that shifted; the second begins so that both would be shifted."""
    with numba_or_not(numba):
        store = FrameStore(size, get_codec("none"), stack=4)
        last, first, second = np.zeros((3, 1, 4, size), np.uint8)
        last[..., :256] = first[..., :256] = np.reshape([10, 20, 30, 40], (4, 1))
        last[..., 256:], first[..., 256:] = np.reshape([1, 2, 3, 4], (4, 1)), np.reshape([2, 3, 4, 5], (4, 1))
        second[..., :256] = np.reshape([0, 10, 20, 30], (4, 1))
        given = [np.ascontiguousarray(obs.transpose(0, 2, 1)).transpose(0, 2, 1) for obs in (last, first, second)]
        streams = np.zeros(1, np.int64)
        store.put(given[0], streams)
        assert np.array_equal(taken(store, store.put_blocks(given[1:], streams)), np.stack([first, second]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork here")
def test_the_callers_streams_may_change():
    def check() -> None:
        store, streams = FrameStore(64, get_codec("none"), stack=4), np.zeros(1, np.int64)
        obs = stacks(40, 4, 64)
        for step in range(40):
            streams[0] = 50 * step
            assert np.array_equal(taken(store, store.put(obs[step][None], streams)), obs[step][None])
            assert len(store.recent) > 50 * step

    assert in_a_child(check) == 0  # in a process of its own: a write out of bounds would end it


def test_the_callers_frames_may_change():
    store, frames = FrameStore(64, get_codec("none")), np.zeros((1, 1, 64), np.uint8)
    held = []
    for number in [1, 2, 2, 3, 1]:
        frames[0, 0] = numbered_frame(number, 64)
        held.append((store.put(frames, np.zeros(1, np.int64)), number))
    for ids, number in held:
        assert np.array_equal(taken(store, ids)[0, 0], numbered_frame(number, 64))


# Every frame once.


@with_and_without_numba
@pytest.mark.parametrize("layout", ["planes", "pixels"])
@pytest.mark.parametrize("size", [64, 97])
def test_a_step_of_a_stack_stores_one_new_frame(numba, layout, size):
    with numba_or_not(numba):
        store = FrameStore(size, get_codec("none"), stack=4)
        obs = stacks(30, 4, size)
        if layout == "pixels":
            obs = np.ascontiguousarray(obs.transpose(0, 2, 1)).transpose(0, 2, 1)
        stream = np.zeros(1, np.int64)
        for step in range(29):
            now = store.put(obs[step : step + 1], stream)
            assert store.n_frames == 4 + step
            then = store.put(obs[step + 1 : step + 2], stream)  # the next observation of the same transition
            assert store.n_frames == 5 + step
            assert np.array_equal(now[0, 1:], then[0, :-1])


@with_and_without_numba
def test_steps_of_one_stream_within_a_batch(numba):
    with numba_or_not(numba):
        store = FrameStore(64, get_codec("none"), stack=4)
        ids = store.put(stacks(30, 4, 64), np.zeros(30, np.int64))
        assert store.n_frames == 33
        assert np.array_equal(ids[1:, :-1], ids[:-1, 1:])


@with_and_without_numba
def test_an_episode_starts_with_a_repeated_frame(numba):
    with numba_or_not(numba):
        store = FrameStore(64, get_codec("none"), stack=4)
        ids = store.put(np.repeat(numbered_frame(7, 64)[None, None], 4, axis=1), np.zeros(1, np.int64))
        assert store.n_frames == 1
        assert len(set(ids.reshape(-1).tolist())) == 1


@with_and_without_numba
def test_equal_frames_of_different_streams_are_one(numba):
    """All envs start with the same picture."""
    with numba_or_not(numba):
        store = FrameStore(64, get_codec("none"), stack=4, streams=8)
        same = np.repeat(stacks(1, 4, 64), 8, axis=0)
        ids = store.put(same, np.arange(8))
        assert store.n_frames == 4
        later = store.put(same[:1], np.array([11]))
        assert store.n_frames == 4
        assert np.array_equal(later[0], ids[0])


@with_and_without_numba
def test_frames_of_zeros_are_not_stored(numba):
    with numba_or_not(numba):
        store = FrameStore(64, get_codec("none"), stack=4, streams=2)
        obs = stacks(2, 4, 64)
        obs[:, 1] = 0
        ids = store.put(obs, np.arange(2))
        assert not ids[:, 1].any()
        assert (ids[:, [0, 2, 3]] > 0).all()
        assert store.n_frames == 5  # frames 1, 3, 4 of the first and 2, 4, 5 of the second


@with_and_without_numba
@pytest.mark.parametrize("envs", [3, 8])
def test_more_envs_than_streams(numba, envs):
    """A warm-up may write 8 interleaved envs into a buffer made for one: the index finds their frames."""
    with numba_or_not(numba):
        store = FrameStore(64, get_codec("none"), stack=4, streams=1)
        obs = [stacks(41, 4, 64, first=1 + 1000 * env) for env in range(envs)]
        held = []
        for step in range(40):
            for env in range(envs):
                for which in (step, step + 1):
                    held.append((store.put(obs[env][which][None], np.zeros(1, np.int64)), obs[env][which]))
        distinct = {frame.tobytes() for _, part in held for frame in part}
        # The index is small and forgets: some frames may be stored again. Without it each would be, 4 times or more.
        assert len(distinct) <= store.n_frames <= (1.15 if envs == 3 else 1.5) * len(distinct)
        for ids, frames in held:
            assert np.array_equal(taken(store, ids)[0], frames)


@with_and_without_numba
@pytest.mark.parametrize("method", ["none", "near"])
def test_equal_hashes_do_not_make_frames_equal(method, numba):
    with numba_or_not(numba), pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "hash_weights", lambda: np.zeros(64, np.uint64))
        store = FrameStore(64, get_codec(method), stack=1, streams=1)
        numbers = np.random.default_rng(0).integers(0, 9, 300)
        held = []
        for start in range(0, 300, 5):
            obs = np.stack([numbered_frame(n, 64)[None] for n in numbers[start : start + 5]])
            held.append((store.put(obs, np.arange(5) % 3), obs))
            if len(held) > 6:
                store.release(held.pop(0)[0])
            for ids, frames in held:
                assert np.array_equal(taken(store, ids), frames)


def test_ids_that_were_reused_are_not_taken_for_what_they_held():
    store = FrameStore(64, get_codec("none"))
    stream = np.zeros(1, np.int64)
    for number in [1, 2, 3, 1, 4, 1, 5, 2, 1]:
        ids = store.put(numbered_frame(number, 64)[None, None], stream)
        assert np.array_equal(taken(store, ids)[0, 0], numbered_frame(number, 64))
        store.release(ids)
        assert store.n_frames <= 1


# No more memory than the frames need.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1000, 7056])
def test_incompressible_frames_take_64_bytes_more_at_most(method, size):
    n = 2000
    store = FrameStore(size, get_codec(method))
    stream = np.zeros(1, np.int64)
    for i, frame in enumerate(noise(n, size)):
        if i == 200:
            early = store.nbytes
        store.put(frame[None], stream)
    assert store.n_frames == n
    assert store.nbytes - early <= (n - 200) * (size + 64)
    assert store.nbytes <= n * (size + 64)  # with what does not grow: last frames, keys, index
    assert store.nbytes >= n * size  # and it does not make its account better than it is


@pytest.mark.parametrize("method", ["none", "rle-jit", "zstd3", "lz4-block", "delta"])
@pytest.mark.parametrize("kind", ["game", "noise", "mixed"])
def test_memory_stays_when_the_ring_wraps(method, kind):
    size, rows, stream = 400, 60, np.zeros(1, np.int64)
    store = FrameStore(size, get_codec(method), stack=2)
    ring: deque[tuple[np.ndarray, np.ndarray]] = deque()
    after = []
    random = noise(12 * rows + 2, size)[:, 0]
    scene = random[0].copy()
    frames = []
    for i in range(12 * rows + 1):
        if i % 37 == 0:
            scene = random[i].copy()
        frame = scene.copy()
        frame[i % 390 : i % 390 + 8] = i % 256
        frames.append(random[i] if kind == "noise" or (kind == "mixed" and i // 20 % 2) else frame)
    for i in range(12 * rows):
        if len(ring) == rows:
            store.release(ring.popleft()[0])
        obs = np.stack(frames[i : i + 2])[None]
        ring.append((store.put(obs, stream), obs))
        if i % rows == rows - 1:
            after.append(store.nbytes)
            for ids, obs in ring:
                assert np.array_equal(taken(store, ids), obs)
    assert store.n_frames <= rows + 3
    assert max(after[2:]) <= 1.1 * after[1] + 2 * store.heap.segment_bytes


@pytest.mark.parametrize("method", ["none", "delta", "zstd3"])
def test_releasing_in_any_order_gives_memory_back(method):
    rng = np.random.default_rng(0)
    store, held, sizes = FrameStore(200, get_codec(method)), [], []
    for turn in range(30):
        frames = noise(40, 200, seed=turn)
        frames[:, :, : rng.integers(0, 200)] = 7
        held += zip(store.put(frames, np.zeros(40, np.int64)), frames, strict=True)
        rng.shuffle(held)
        for ids, _ in held[40:]:
            store.release(ids)
        del held[40:]
        assert np.array_equal(taken(store, np.array([ids for ids, _ in held])), [frames for _, frames in held])
        sizes.append(store.nbytes)
    assert store.n_frames <= 41
    # A segment goes when its last frame does: half of the frames die each turn, so that takes a few turns.
    assert max(sizes[15:]) <= 200 * 40 * 12 + 20_000 + store.coder.nbytes


def test_empty_payloads_at_the_end_of_a_segment():
    """Noise fills segments of the heap exactly; a frame equal to a key takes no byte more."""
    size = 256
    store = FrameStore(size, get_codec("delta"), streams=2)
    scene = noise(1, size, seed=5)[0, 0]
    marked = np.repeat(scene[None, None], 40, axis=0)
    marked[np.arange(40), 0, np.arange(40) * 6] ^= 255
    held = []
    for i in range(40):
        held.append((store.put(marked[i][None], np.zeros(1, np.int64)), marked[i]))
    random = noise(1200, size)
    for i in range(1200):
        ids = store.put(random[i][None], np.ones(1, np.int64))
        held.append((ids, random[i]))
        plain = store.put(scene[None, None], np.array([2 + i % 3]))
        held.append((plain, scene[None]))
        if len(held) > 100:
            for ids, _ in held[:60]:
                store.release(ids)
            del held[:60]
        if i % 50 == 0:
            for ids, frames in held:
                assert np.array_equal(taken(store, ids)[0], frames)


def filled(store: FrameStore, size: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Put noise until the store is full."""
    held = []
    for frame in noise(2000, size, seed):
        try:
            held.append((store.put(frame[None], np.zeros(1, np.int64)), frame))
        except StoreFullError:
            return held
    pytest.fail("the store never was full")
    return held


@pytest.mark.parametrize("method", ["none", "delta", "rle", "zstd3"])
@pytest.mark.parametrize("max_bytes", [40_000, 40_500, 60_001])
@pytest.mark.parametrize("streams", [1, 7], ids=["", "more streams"])
def test_a_full_store_says_so_and_is_as_it_was(method, max_bytes, streams):
    size = 300
    store = FrameStore(size, get_codec(method), budget=Budget(max_bytes))
    held = filled(store, size)
    assert len(held) > 40
    assert store.nbytes <= max_bytes + 1000
    n_frames = store.n_frames
    new = noise(7, size, seed=9)
    for _ in range(3):
        with pytest.raises(StoreFullError, match="max_bytes"):
            store.put(new, np.arange(7) % streams)
    assert store.n_frames <= n_frames
    for ids, frame in held:
        assert np.array_equal(taken(store, ids)[0], frame)
    # There is room again once frames are released.
    for ids, _ in held:
        store.release(ids)
    for frame in new:
        assert np.array_equal(taken(store, store.put(frame[None], np.zeros(1, np.int64)))[0], frame)
    assert store.nbytes <= max_bytes + 1000


@with_and_without_numba
@pytest.mark.parametrize("method", ["none", "delta", "zstd3", "near"])
@pytest.mark.parametrize("before", [True, False])
def test_frames_stay_after_an_interrupt(method, before, numba):
    """Ctrl-C comes when a frame is stored, and the one before it no longer compared with: that is still counted."""
    with numba_or_not(numba):
        store = FrameStore(300, get_codec(method))
    frames, first = noise(40, 300), np.zeros(1, np.int64)
    held = [(store.put(frame[None], first), frame) for frame in frames[:5]]
    usual = FrameStore._let_go

    def interrupted(self, *args):
        if not before:
            usual(self, *args)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameStore, "_let_go", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put_blocks([frames[5][None]], first, [held.pop()[0].reshape(-1)])
    held += [(store.put(frame[None], first), frame) for frame in frames[6:]]
    for ids, frame in held:
        assert np.array_equal(taken(store, ids)[0], frame)


def test_of_two_blocks_that_do_not_fit_neither_is_stored():
    store = FrameStore(300, get_codec("none"), budget=Budget(40_000))
    held = filled(store, 300)
    n_frames = store.n_frames
    known = np.concatenate([frame[None] for _, frame in held[-2:]])
    with pytest.raises(StoreFullError):
        store.put_blocks([known, noise(2, 300, seed=9)], np.zeros(2, np.int64), [held.pop(0)[0].reshape(-1)])
    assert store.n_frames < n_frames  # what was to be released is
    for ids, frame in held:
        assert np.array_equal(taken(store, ids)[0], frame)


def test_two_stores_share_one_budget():
    budget = Budget(100_000)
    one, two = (FrameStore(300, get_codec("none"), budget=budget) for _ in range(2))
    filled(one, 300)
    with pytest.raises(StoreFullError):
        two.put(noise(1, 300), np.zeros(1, np.int64))


def test_no_store_fits_into_nothing():
    with pytest.raises(StoreFullError, match="max_bytes=10"):
        FrameStore(300, get_codec("none"), budget=Budget(10))


# Pickle, threads, processes.


@with_and_without_numba
@pytest.mark.parametrize("method", METHODS)
def test_a_pickled_store_goes_on(method, numba):
    with numba_or_not(numba), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rle-jit without numba
        store = FrameStore(97, get_codec(method), stack=4, streams=2)
        obs = stacks(60, 4, 97)
        first = store.put(obs[:30], np.zeros(30, np.int64))
        copy = pickle.loads(pickle.dumps(store))
        assert copy.n_frames == store.n_frames
        for one in (store, copy):
            more = one.put(obs[30:], np.zeros(30, np.int64))
            assert one.n_frames == 63
            one.release(first[:20])
            assert one.n_frames == 43
            assert np.array_equal(taken(one, first[20:]), obs[20:30])
            assert np.array_equal(taken(one, more), obs[30:])


def test_a_pickled_store_is_small():
    frames = np.repeat(noise(1, 7056), 200, axis=0)
    frames[np.arange(200), 0, np.arange(200) * 30] ^= 1
    store = FrameStore(7056, get_codec("delta"))
    for frame in frames:
        store.put(frame[None], np.zeros(1, np.int64))
    assert len(pickle.dumps(store)) <= store.nbytes


@pytest.mark.parametrize("method", ["none", "delta", "zstd3"])
def test_one_thread_writes_while_others_read(method):
    size, rows, steps = 500, 40, 600
    store = FrameStore(size, get_codec(method), stack=2)
    obs = stacks(steps, 2, size)
    ring: dict[int, tuple[np.ndarray, int]] = {}
    errors: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            for step in range(steps):
                ids = store.put(obs[step][None], np.zeros(1, np.int64))
                with store.lock:
                    replaced = ring.get(step % rows)
                    ring[step % rows] = (ids, step)
                if replaced is not None:
                    store.release(replaced[0])
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not done.is_set():
                with store.lock:
                    if not ring:
                        continue
                    chosen = [ring[row] for row in rng.integers(0, len(ring), 8)]
                    ids = np.concatenate([ids for ids, _ in chosen])
                    store.retain(ids)
                assert np.array_equal(taken(store, ids), obs[[step for _, step in chosen]])
                store.release(ids)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(2)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
    assert store.n_frames <= rows + 3


def in_a_child(check) -> int:
    """Run `check` in a forked process; returns its exit status, -9 if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of a fork beside threads: that is the test
        child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork here")
@pytest.mark.parametrize("method", ["none", "delta", "rle-jit", "zstd3"])
def test_forked_children_go_on(method):
    """Also while another thread is in the middle of a `put`."""
    size = 2000
    store = FrameStore(size, get_codec(method), stack=2, streams=2)
    obs = stacks(40, 2, size)
    first = store.put(obs[:20], np.zeros(20, np.int64))
    stop = threading.Event()

    def write() -> None:
        step = 0
        while not stop.is_set():
            store.release(store.put(obs[step % 40][None], np.ones(1, np.int64)))
            step += 1

    def check() -> None:
        assert np.array_equal(taken(store, first), obs[:20])
        more = store.put(obs[20:], np.zeros(20, np.int64))
        assert np.array_equal(taken(store, more), obs[20:])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert [in_a_child(check) for _ in range(8)] == [0] * 8
    finally:
        stop.set()
        writer.join(30)
    check()
