"""Two arrays read at once: the same observations as one by one, whatever happens between the two reads."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sb3_extra_buffers.codecs import get_codec, jit, optional
from sb3_extra_buffers.codecs.base import CodecError
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.frames.observations import ObservationStore
from sb3_extra_buffers.frames.pairs import _groups_kernel, grouping, groups_reference
from sb3_extra_buffers.frames.store import FrameStore

STACK, SIDE, ROWS, ENVS = 4, 12, 20, 2
ODD = slice(None, None, 2)


@given(
    hnp.arrays(np.uint32, st.tuples(st.just(2), st.integers(0, 5), st.integers(1, 5)), elements=st.integers(0, 3)),
)
def test_groups(ids: Any) -> None:
    first, second = ids
    n, stack = first.shape
    known = np.empty((3, 2 * first.size), np.int64)
    for group in (groups_reference, grouping(), _groups_kernel):
        found = np.full((3, 2 * first.size), -7)
        group(first, second, *found)
        if group is groups_reference:
            known = found
        np.testing.assert_array_equal(found, known)
    frames, rows, sources = known
    assert sorted(rows) == list(range(2 * n * stack))
    np.testing.assert_array_equal(ids.reshape(-1)[rows], frames)
    for at, source in enumerate(sources):
        begin = at - at % (2 * stack)
        earlier = [rows[i] for i in range(begin, at) if frames[i] == frames[at]]
        assert source == (earlier[0] if earlier else -1)


METHODS = ["delta", "delta/2", "zstd3", "none", "rle"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("jitted", [True, False])
def test_take_both(method: str, jitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not jitted:
        monkeypatch.setattr(optional, "has_numba", lambda: False)
        jit.compiled.cache_clear()
    random = np.random.default_rng(0)
    frames = random.integers(0, 255, (30, 1, 400), np.uint8) * (random.random((30, 1, 400)) < 0.1)
    store = FrameStore(400, get_codec(method), 1)
    ids = np.concatenate([store.put(frame[None], np.zeros(1, np.int64)) for frame in frames])[:, 0]
    first, second = (ids[random.integers(0, 6, (7, 3))] for _ in range(2))
    out = np.full((2 * first.size + 2, 400), 77, np.uint8)  # with guards
    store.take_both(first, second, out[1:-1])
    expected = np.empty((2 * first.size, 400), np.uint8)
    store.take(np.concatenate([first, second]).reshape(-1), expected)
    np.testing.assert_array_equal(out[1:-1], expected)
    assert (out[[0, -1]] == 77).all()


class Pair:
    """Two arrays over one store, and plain ones beside them."""

    def __init__(self, method: str = "delta") -> None:
        self.store = ObservationStore(
            (STACK, SIDE, SIDE), np.dtype(np.uint8), method=method, frame_stack=STACK, streams=ENVS
        )
        self.arrays: list[Any] = [FrameArray.zeros(self.store, (ROWS, ENVS)) for _ in range(2)]
        self.plain = [np.zeros((ROWS, ENVS, STACK, SIDE, SIDE), np.uint8) for _ in range(2)]
        self.random = np.random.default_rng(0)
        self.frames = [self._frame() for _ in range(STACK)]
        for row in range(ROWS):
            self.step(row)

    def _frame(self) -> Any:
        return self.random.integers(0, 9, (ENVS, SIDE, SIDE)).astype(np.uint8)

    def step(self, row: int) -> None:
        before = np.stack(self.frames[-STACK:], axis=1)
        self.frames.append(self._frame())
        for which, obs in enumerate((before, np.stack(self.frames[-STACK:], axis=1))):
            self.write(which, row, obs)

    def write(self, which: int, row: int, obs: Any) -> None:
        self.arrays[which][row] = obs
        self.plain[which][row] = obs

    def places(self, n: int = 6) -> tuple[Any, Any]:
        return self.random.integers(0, ROWS, n), self.random.integers(0, ENVS, n)

    def check(self, which: int, index: Any) -> Any:
        read = self.arrays[which][index]
        np.testing.assert_array_equal(read, self.plain[which][index])
        assert read.flags.c_contiguous
        assert read.flags.writeable
        return read

    def sample(self) -> list[Any]:
        rows, envs = self.places()
        return [self.check(which, (rows, envs, slice(None))) for which in (1, 0)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    for name in ("take", "take_both"):
        original = getattr(ObservationStore, name)

        def noted(self: Any, *args: Any, name: str = name, original: Any = original) -> Any:
            done.append(name)
            return original(self, *args)

        monkeypatch.setattr(ObservationStore, name, noted)
    return done


def test_learns_which_are_read_together(reads: list[str]) -> None:
    pair = Pair()
    for _ in range(4):
        pair.sample()
    assert reads == ["take", "take", "take_both", "take_both", "take_both"]


def test_batches_are_apart() -> None:
    pair = Pair()
    pair.sample()
    held = [pair.sample() for _ in range(5)]
    kept = [[part.copy() for part in batch] for batch in held]
    for batch in held:
        batch[0][:] = 99  # whoever changes one finds the other as it was
    for batch, before in zip(held, kept, strict=True):
        np.testing.assert_array_equal(batch[1], before[1])
    pair.sample()


def test_the_first_may_be_changed_before_the_second_is_read() -> None:
    pair = Pair()
    pair.sample()
    rows, envs = pair.places()
    pair.check(1, (rows, envs))[:] = 3
    pair.check(0, (rows, envs))


@pytest.mark.parametrize("method", ["delta", "auto", "zstd3"])
@pytest.mark.parametrize("change", ["write", "other", "index", "copy", "again", "settle", "pickle", "slice"])
def test_what_happens_between(change: str, method: str) -> None:
    pair = Pair(method)
    for turn in range(4):
        pair.sample()
        rows, envs = pair.places()
        pair.check(1, (rows, envs))
        match change:
            case "write":
                pair.write(0, int(rows[0]), pair._frame()[:, None].repeat(STACK, 1))
            case "other":
                pair.write(1, int(rows[0]), pair.plain[0][turn])
            case "index":
                rows[:] = rows[::-1].copy()
            case "copy":
                pair.arrays[0] = copy.deepcopy(pair.arrays[0])
            case "again":
                pair.check(1, (rows, envs))
            case "settle":
                pair.store.settle()
            case "pickle":
                pair.arrays = pickle.loads(pickle.dumps(pair.arrays))
            case "slice":
                pair.check(0, (slice(2, 5), 1))
        pair.check(0, (rows, envs))
    pair.sample()


def test_stops_after_a_wrong_guess(reads: list[str]) -> None:
    pair = Pair()
    pair.sample()
    for _ in range(5):
        pair.check(1, pair.places())
    assert reads.count("take_both") == 1
    for _ in range(3):
        pair.sample()
    assert reads.count("take_both") == 3


def test_nothing_is_kept_of_an_array_that_is_gone() -> None:
    pair = Pair()
    pair.sample()
    pair.arrays[0] = None
    pair.store.collect()
    pair.check(1, pair.places())


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, ROWS - 1), st.integers(0, 2)), max_size=30))
def test_any_order(steps: list[tuple[int, int, int]]) -> None:
    pair = Pair()
    index = pair.places()
    for which, row, kind in steps:
        if kind == 0:
            pair.write(which, row, pair.plain[1 - which][(row * 7) % ROWS])
        elif kind == 1:
            index = pair.places()
        pair.check(which, index)


@pytest.mark.parametrize("index", [(slice(2, 9), 1), (3, slice(0, 2)), (slice(None, None, 3), 0), (np.array(3), ODD)])
def test_slices(index: Any) -> None:
    """They give views of the ids, which need not be contiguous."""
    pair = Pair()
    for turn in range(4):
        pair.check(1, index)
        if turn > 2:
            pair.write(0, 3, pair.plain[1][7])
        pair.check(0, index)


def test_no_places() -> None:
    pair, nothing = Pair(), np.zeros(0, np.int64)
    for _ in range(3):
        pair.check(1, (nothing, nothing))
        pair.check(0, (nothing, nothing))


def test_a_damaged_frame_of_the_other_does_not_matter() -> None:
    pair = Pair("zstd3")
    pair.sample()
    only = np.setdiff1d(pair.arrays[0]._ids, pair.arrays[1]._ids)
    pair.store.frames.lengths[only] -= 1
    rows = np.arange(ROWS)
    for _ in range(3):
        pair.check(1, (rows, rows % ENVS))
        with pytest.raises(CodecError):
            pair.arrays[0][rows, rows % ENVS]


def test_pickles_know_nothing_of_it() -> None:
    """An earlier version can read them, and what that has written can be read."""
    pair = Pair()
    pair.sample()
    state = pair.store.__getstate__()
    assert "pairs" not in state
    assert b"frames.pairs" not in pickle.dumps(pair.arrays)
    pair.arrays = pickle.loads(pickle.dumps(pair.arrays))
    for _ in range(3):
        pair.sample()
