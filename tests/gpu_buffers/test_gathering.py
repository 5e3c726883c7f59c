"""Batches are gathered by SB3's code from stand-ins: it must get what SB3's own arrays would give it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st
from kinds import KINDS, steps
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from twins import TWINS, Twin, assert_same, assert_same_draws, sample

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.compressed.observations import CompressedObservations
from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuReplayBuffer
from sb3_extra_buffers.gpu_buffers.gathering import Cells, Field
from sb3_extra_buffers.gpu_buffers.observations import GpuObservations

ROWS, ENVS = 6, 3
REPLAY, DICT = TWINS["replay"], TWINS["dict-replay"]
BOTH = {
    "replay": REPLAY,
    "dict-replay": DICT,
    "gpu-replay": Twin("gpu-replay", REPLAY.sb3, GpuReplayBuffer, REPLAY.keyed, REPLAY.rollout),
    "gpu-dict-replay": Twin("gpu-dict-replay", DICT.sb3, GpuDictReplayBuffer, DICT.keyed, DICT.rollout),
}
NAME = pytest.mark.parametrize("name", BOTH)


def box(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def filled(twin: Twin, kind: Any = None, **given: Any) -> tuple[Any, Any]:
    kind = twin.default_kind if kind is None else kind
    ours, sb3 = twin.make(kind, ROWS, ENVS, **given)
    for step in steps(kind, ENVS, ROWS + 2, end=0.3):
        twin.add(ours, step)
        twin.add(sb3, step)
    return ours, sb3


numbers = st.integers(-ROWS - 1, ROWS + 1)
index_arrays = st.lists(numbers, min_size=1, max_size=9).map(np.array)
env_arrays = st.lists(st.integers(0, ENVS - 1), min_size=1, max_size=9).map(np.array)


@example(rows=np.array([0]), envs=np.array([0]), rest=(slice(None),), dtype=np.int64, shape=())
@given(
    rows=st.one_of(index_arrays, numbers, st.just(slice(None)), st.just(np.array([[0, 1]]))),
    envs=st.one_of(env_arrays, numbers, st.just(np.zeros(4, np.uint8)), st.just(np.ones(ENVS, bool))),
    rest=st.sampled_from([(), (slice(None),), (slice(1),), (0,), (None,), (...,), (np.array([0]),)]),
    dtype=st.sampled_from([np.int64, np.int32]),
    shape=st.sampled_from([(), (2,), (2, 3)]),
)
def test_every_index_gives_what_the_array_gives(rows: Any, envs: Any, rest: Any, dtype: Any, shape: Any) -> None:
    array = np.random.default_rng(0).random((ROWS, ENVS, *shape))
    rows = rows.astype(dtype) if isinstance(rows, np.ndarray) else rows
    field = Field(array, Cells((ROWS, ENVS)))
    for index in ((rows, envs, *rest), (rows, *rest), rows):
        try:
            wanted = array[index]
        except IndexError:
            with pytest.raises(IndexError):
                field[index]
            continue
        got = field[index]
        assert_same(got, wanted)
        assert np.shares_memory(got, array) == np.shares_memory(wanted, array)


@NAME
def test_rows_from_the_end(name: str) -> None:
    ours, sb3 = filled(BOTH[name])
    rows = np.array([-1, 0, -ROWS, 3])
    for change in (0, 0, 2):  # the same array, and not the same rows
        rows += change
        np.random.seed(0)
        got = ours._get_samples(rows)
        np.random.seed(0)
        assert_same(got, sb3._get_samples(rows))
    with pytest.raises(IndexError):
        ours._get_samples(np.array([ROWS]))
    assert_same_draws(ours, sb3, sample(20))


@pytest.mark.parametrize("name", ["replay", "gpu-replay"])
@pytest.mark.parametrize("kind", ["small-float32", "noise-stack"])
def test_tensors_are_nobody_elses(name: str, kind: str) -> None:
    ours, sb3 = filled(BOTH[name], KINDS[kind])
    for _ in range(3):
        for tensor in ours.sample(20)[:5]:
            tensor.zero_()
    assert_same_draws(ours, sb3, sample(20))
    batch = ours.sample(20)[:5]
    assert len({tensor.data_ptr() for tensor in batch}) == 5


class Shared(ReplayBuffer):
    """Keeps the rewards of its first batch, and gives them every time."""

    def _normalize_reward(self, reward: Any, env: Any = None) -> Any:
        if not hasattr(self, "kept"):
            self.kept = reward
        return self.kept


class OursShared(CompressedObservations, Shared):
    """Two lines."""


class GpuShared(GpuObservations, Shared):
    """Two lines."""


@pytest.mark.parametrize("cls", [OursShared, GpuShared])
def test_an_array_that_somebody_keeps_is_copied(cls: Any) -> None:
    ours, _ = filled(Twin("shared", Shared, cls, REPLAY.keyed, REPLAY.rollout), KINDS["small-float32"])
    first = ours.sample(20).rewards
    kept = ours.kept.copy()
    for rewards in (first, ours.sample(20).rewards):
        rewards += 1
        assert_same(ours.kept, kept)


class Squared(ReplayBuffer):
    """A buffer of somebody else: it asks its arrays for more than items."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        assert len(self.rewards) == self.buffer_size
        assert np.asarray(self.rewards).dtype == np.float32
        before, self.rewards = self.rewards, self.rewards**2
        try:
            return super()._get_samples(batch_inds, env)
        finally:
            self.rewards = before


class OursSquared(CompressedObservations, Squared):
    """Two lines."""


class GpuSquared(GpuObservations, Squared):
    """Two lines."""


@pytest.mark.parametrize("ours", [OursSquared, GpuSquared])
def test_code_that_is_not_known_gets_the_arrays_themselves(ours: Any) -> None:
    twin = Twin("squared", Squared, ours, REPLAY.keyed, REPLAY.rollout)
    assert_same_draws(*filled(twin), sample(20))


@NAME
def test_arrays_that_are_replaced(name: str) -> None:
    ours, sb3 = filled(BOTH[name])
    assert_same_draws(ours, sb3, sample(20))
    for buffer in (ours, sb3):
        buffer.rewards = buffer.rewards * 2
    assert_same_draws(ours, sb3, sample(20))
    if BOTH[name].keyed:
        key = next(iter(sb3.observations))
        for buffer in (ours, sb3):
            buffer.observations[key] = np.array(sb3.next_observations[key])
        assert_same_draws(ours, sb3, sample(20))


@NAME
def test_nothing_is_kept_alive(name: str) -> None:
    ours, _ = filled(BOTH[name])
    gc.collect()
    gc.disable()
    try:
        ours.sample(5)
        buffer = weakref.ref(ours)
        del ours
        assert buffer() is None
    finally:
        gc.enable()


class Floats(GpuReplayBuffer):
    def to_torch(self, array: Any, copy: bool = True) -> Any:
        return super().to_torch(np.asarray(array, np.float32), copy)


class Doubles(CompressedReplayBuffer):
    def to_torch(self, array: Any) -> Any:
        return torch.as_tensor(array).double()


@pytest.mark.parametrize(("cls", "dtype"), [(Floats, torch.float32), (Doubles, torch.float64)])
@pytest.mark.parametrize("kind", ["small-float32", "noise-stack"])
def test_to_torch_of_a_subclass_is_asked(cls: Any, dtype: Any, kind: str) -> None:
    ours, sb3 = filled(Twin("converting", REPLAY.sb3, cls, REPLAY.keyed, REPLAY.rollout), KINDS[kind])
    for n in (5, 7):
        np.random.seed(n)
        got = ours.sample(n)[:5]
        np.random.seed(n)
        for one, other in zip(got, sb3.sample(n)[:5], strict=True):
            assert_same(one, other.to(dtype))


class Stateful(CompressedReplayBuffer):
    def __getstate__(self) -> Any:
        return self.__dict__.copy()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class GpuStateful(GpuReplayBuffer):
    def __getstate__(self) -> Any:
        return self.__dict__.copy()


@pytest.mark.parametrize("cls", [Stateful, GpuStateful])
@pytest.mark.parametrize("kind", ["small-float32", "noise-stack"])
def test_buffers_that_pickle_all_they_have(cls: Any, kind: str) -> None:
    ours, sb3 = filled(Twin("stateful", REPLAY.sb3, cls, REPLAY.keyed, REPLAY.rollout), KINDS[kind])
    ours.sample(5)
    for again in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert_same_draws(again, sb3, sample(20))


@pytest.mark.parametrize(
    ("cls", "base", "space", "actions"),
    [
        (CompressedReplayBuffer, ReplayBuffer, box((4,)), box((0,))),
        (CompressedReplayBuffer, ReplayBuffer, box((0,)), box((2,))),
        (CompressedDictReplayBuffer, DictReplayBuffer, spaces.Dict(a=box((4,)), e=box((0,))), box((2,))),
    ],
)
def test_spaces_of_nothing(cls: Any, base: Any, space: Any, actions: Any) -> None:
    ours, sb3 = (kind(ROWS * ENVS, space, actions, "cpu", n_envs=ENVS) for kind in (cls, base))
    keys = space.spaces if isinstance(space, spaces.Dict) else None
    for n in range(ROWS + 2):
        parts = {key: np.full((ENVS, *part.shape), n, np.float32) for key, part in (keys or {None: space}).items()}
        obs = parts if keys else parts[None]
        rest = np.zeros((ENVS, *actions.shape), np.float32), np.arange(ENVS), np.zeros(ENVS), [{}] * ENVS
        for buffer in (ours, sb3):
            buffer.add(obs, obs, *rest)
    assert_same_draws(ours, sb3, sample(20))


@pytest.mark.parametrize("name", ["replay", "gpu-replay"])
def test_settings_that_are_changed(name: str) -> None:
    ours, sb3 = filled(BOTH[name], KINDS["small-float32"])
    ours.sample(5)
    for buffer in (ours, sb3):
        buffer.n_envs = 1
    assert_same_draws(ours, sb3, sample(20))


class Nested(ReplayBuffer):
    """Draws a batch while it gathers one."""

    deep = False

    def _normalize_reward(self, reward: Any, env: Any = None) -> Any:
        if self.deep:
            return reward
        self.deep = True
        try:
            return reward - self._get_samples(np.zeros(len(reward), np.int64)).rewards.numpy()
        finally:
            self.deep = False


class OursNested(CompressedObservations, Nested):
    """Two lines."""


class GpuNested(GpuObservations, Nested):
    """Two lines."""


@pytest.mark.parametrize("cls", [OursNested, GpuNested])
def test_a_batch_within_a_batch(cls: Any) -> None:
    twin = Twin("nested", Nested, cls, REPLAY.keyed, REPLAY.rollout)
    assert_same_draws(*filled(twin, KINDS["small-float32"]), sample(20))


class Patched(NamedTuple):
    """A batch of nothing."""


@pytest.mark.parametrize("name", ["replay", "gpu-replay"])
def test_code_that_is_patched_later(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = filled(BOTH[name])
    ours.sample(5)
    monkeypatch.setattr(ReplayBuffer, "_get_samples", lambda self, batch_inds, env=None: Patched())
    assert isinstance(ours.sample(5), Patched)


@pytest.mark.parametrize("name", ["dict-replay", "gpu-dict-replay"])
def test_keys_that_are_renamed(name: str) -> None:
    ours, _ = filled(BOTH[name])
    ours.sample(5)
    renamed = {f"new {key}": array for key, array in ours.observations.items()}
    ours.observations.clear()
    ours.observations.update(renamed)
    assert ours.sample(5).observations.keys() == renamed.keys()


@pytest.mark.parametrize("name", ["replay", "gpu-replay"])
def test_a_normalizer_of_the_instance_may_keep_what_it_sees(name: str) -> None:
    ours, _ = filled(BOTH[name], KINDS["small-float32"])
    ours.sample(5)
    kept: list[Any] = []
    ours._normalize_reward = lambda reward, env=None: kept.append(reward) or reward
    ours.sample(20).rewards.fill_(7)
    assert not (kept[0] == 7).any()


def test_what_code_of_sb3_sets_is_set_in_the_buffer() -> None:
    ours, _ = filled(BOTH["gpu-replay"])
    ours.sample(5)
    stand_in = ours._gathered_from

    def gathers(self: Any, value: Any) -> Any:
        self.last_seen = value
        return self.last_seen, self.to_torch(np.zeros(2))

    seen, array = stand_in.gather(gathers, ours, 7)
    assert seen == ours.last_seen == 7
    assert type(array) is np.ndarray  # converted with the others
    assert not hasattr(type(stand_in), "last_seen")
    assert "last_seen" not in vars(stand_in)
