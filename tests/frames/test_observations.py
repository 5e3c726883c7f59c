"""Arrays that come and go over one `ObservationStore`, before and after it has made its plan, against ndarrays."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sb3_extra_buffers.frames import ObservationStore
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.frames.observations import IdTable

ROWS, ENVS = 6, 2


class ArraysMachine(RuleBasedStateMachine):
    """Several arrays share frames; each has a twin. A view's twin is a view of the twin."""

    def __init__(self, method: str, obs_shape: tuple[int, ...], frame_stack: int | str) -> None:
        super().__init__()
        self.store = ObservationStore(
            obs_shape, np.dtype(np.uint8), method=method, frame_stack=frame_stack, streams=ENVS
        )
        self.pairs: list[tuple[FrameArray, np.ndarray]] = []
        self.obs = np.zeros((ENVS, *obs_shape), np.uint8)
        self.first = obs_shape[0] == 4
        self.number = 0
        self.remembered: list[tuple[FrameArray, int, np.ndarray]] = []  # marks of tables, and their ids then

    def step(self) -> np.ndarray:
        """Return the next observations: a stack, shifted by a frame."""
        self.number += 1
        axis = 1 if self.first else -1
        frame = np.full((ENVS, 16, 16), 7, np.uint8)
        frame[:, self.number % 16, self.number // 16 % 16] = self.number % 200 + 1
        shifted = np.delete(self.obs, 0, axis=axis)
        self.obs = np.concatenate([shifted, np.expand_dims(frame, axis)], axis=axis)
        return self.obs

    def choose(self, which: int) -> tuple[FrameArray, np.ndarray]:
        return self.pairs[which % len(self.pairs)]

    @precondition(lambda self: len(self.pairs) < 6)
    @rule()
    def new_array(self):
        twin = np.zeros((ROWS, ENVS, *self.store.obs_shape), np.uint8)
        self.pairs.append((FrameArray.zeros(self.store, (ROWS, ENVS)), twin))

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 99), rows=st.lists(st.integers(0, 99), min_size=1, max_size=12))
    def write_rows(self, which, rows):
        array, twin = self.choose(which)
        for row in rows:
            value = self.step()
            if twin.shape[1:] != value.shape:  # a view or a flat copy
                value = value[0]
            place = row % len(twin) - len(twin) * (row % 2)  # from the end, too
            array[place] = value
            twin[place] = value

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 99), rows=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def write_many(self, which, rows):
        array, twin = self.choose(which)
        index, value = np.array(rows) % len(twin), self.step()[0]
        array[index] = value
        twin[index] = value

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 99), row=st.integers(0, 99), value=st.integers(0, 255))
    def write_an_element(self, which, row, value):
        array, twin = self.choose(which)
        array[row % len(twin), ..., 3] = value
        twin[row % len(twin), ..., 3] = value

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 99), other=st.integers(0, 99))
    def copy_between(self, which, other):
        (array, twin), (source, truth) = self.choose(which), self.choose(other)
        if twin.shape == truth.shape:
            array[:] = source
            twin[:] = truth.copy()

    @precondition(lambda self: self.pairs and len(self.pairs) < 6)
    @rule(which=st.integers(0, 99), how=st.sampled_from(["swap", "flatten", "both"]))
    def view(self, which, how):
        array, twin = self.choose(which)
        if twin.ndim != 2 + len(self.store.obs_shape):
            return
        if how in ("swap", "both"):
            array, twin = array.swapaxes(0, 1), twin.swapaxes(0, 1)
        if how in ("flatten", "both"):
            shape = (ROWS * ENVS, *self.store.obs_shape)
            array, twin = array.reshape(shape), twin.reshape(shape)
        self.pairs.append((array, twin))

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 99))
    def drop(self, which):
        dropped, _ = self.pairs.pop(which % len(self.pairs))
        self.remembered = [part for part in self.remembered if part[0] is not dropped]

    @rule(how=st.sampled_from(["pickle", "deepcopy"]))
    def copy_all(self, how):
        """Views become arrays of their own: their twins too."""
        arrays = [array for array, _ in self.pairs]
        store, arrays = (
            pickle.loads(pickle.dumps((self.store, arrays))) if how == "pickle" else copy.deepcopy((self.store, arrays))
        )
        # Go on with those that are still compressed.
        self.pairs = [
            (array, twin.copy())
            for array, (_, twin) in zip(arrays, self.pairs, strict=True)
            if type(array) is FrameArray
        ]
        self.store = store
        self.remembered.clear()

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 99))
    def remember(self, which):
        array = self.choose(which)[0]
        self.remembered.append((array, array._table.mark(), array._table.ids.copy()))

    @rule()
    def plan_now(self):
        self.store.settle()

    @invariant()
    def every_array_is_exact(self):
        for array, twin in self.pairs:
            assert array.shape == twin.shape
            assert np.asarray(array).tobytes() == twin.tobytes()

    @invariant()
    def what_was_written_is_known(self):
        """Saving relies on it."""
        for array, mark, before in self.remembered:
            table = array._table
            written = np.repeat(table.written_since(mark), table.part)[: len(table.ids)]
            if before.shape == table.ids.shape:
                assert written[(before != table.ids).reshape(len(before), -1).any(axis=1)].all()
            else:
                assert written.all()

    @invariant()
    def nothing_is_kept_that_nobody_needs(self):
        assert self.store.nbytes > 0  # releases what was dropped
        layout = self.store.layout
        observations = [twin.reshape(-1, *self.store.obs_shape) for _, twin in self.pairs]
        frames = np.concatenate([layout.split(obs).reshape(-1, layout.frame_bytes) for obs in observations] or [[]])
        places = len(frames)
        assert self.store.frames.n_frames <= places + ENVS * layout.stack


@pytest.mark.parametrize(
    ("method", "obs_shape", "frame_stack"),
    [
        ("auto", (4, 16, 16), "auto"),
        ("auto", (16, 16, 4), "auto"),
        ("delta", (4, 16, 16), "auto"),
        ("zstd3", (16, 16, 4), 1),
        ("none", (4, 16, 16), 4),
    ],
)
def test_arrays_over_one_store(method, obs_shape, frame_stack, monkeypatch):
    monkeypatch.setattr(IdTable, "part", 4)
    run_state_machine_as_test(
        lambda: ArraysMachine(method, obs_shape, frame_stack),
        settings=settings(max_examples=30, stateful_step_count=30),
    )
