"""A buffer class that SB3 does not have yet: two lines make it a compressed one."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kinds import DICT_KINDS, KINDS, steps
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer
from twins import TWINS, Twin, assert_same, assert_same_arrays, assert_same_draws, check_rollout, sample

from sb3_extra_buffers.compressed import CompressedObservations, CompressedReplayBuffer, compressed_class


class PrioritySamples(NamedTuple):
    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    initial_observations: torch.Tensor
    weights: torch.Tensor


class PriorityReplayBuffer(ReplayBuffer):
    """Written against SB3 alone: an array of observations of its own, its own `add`, `sample` and arguments."""

    def __init__(self, *args: Any, alpha: float = 0.5, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self.initial_observations = np.zeros_like(self.observations)
        self.priorities = np.zeros((self.buffer_size, self.n_envs), np.float32)
        self._initial: Any = None

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        if self._initial is None:
            self._initial = np.array(obs)
        self.initial_observations[self.pos] = self._initial
        self.priorities[self.pos] = np.abs(reward) ** self.alpha
        self._initial = np.where(np.reshape(done, (-1, *(1,) * (self._initial.ndim - 1))), next_obs, self._initial)
        super().add(obs, next_obs, action, reward, done, infos)

    def sample(self, batch_size: int, env: Any = None) -> PrioritySamples:
        chances = self.priorities[: self.size()].reshape(-1) / self.priorities[: self.size()].sum()
        chosen = np.random.choice(len(chances), batch_size, p=chances / chances.sum())
        rows, envs = np.unravel_index(chosen, (self.size(), self.n_envs))
        return PrioritySamples(
            self.to_torch(self.observations[rows, envs]),
            self.to_torch(self.actions[rows, envs]),
            self.to_torch(self.next_observations[rows, envs]),
            self.to_torch(self.dones[rows, envs].reshape(-1, 1)),
            self.to_torch(self.rewards[rows, envs].reshape(-1, 1)),
            self.to_torch(self.initial_observations[rows, envs]),
            self.to_torch(chances[chosen].astype(np.float32)),
        )


class CompressedPriorityReplayBuffer(CompressedObservations, PriorityReplayBuffer):
    """The same with compressed observations."""


class PairRolloutBuffer(RolloutBuffer):
    """A rollout buffer that makes another array of observations whenever it is reset."""

    def reset(self) -> None:
        super().reset()
        shape = (self.buffer_size, self.n_envs, *self.obs_shape)
        self.mirrored = np.zeros(shape, dtype=self.observation_space.dtype)

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        self.mirrored[self.pos] = np.array(obs)[..., ::-1]
        super().add(obs, *args, **kwargs)


class KeyedReplayBuffer(DictReplayBuffer):
    """A Dict buffer with one more Dict of arrays."""

    def __init__(self, buffer_size: int, observation_space: spaces.Dict, action_space: Any, **kwargs: Any) -> None:
        super().__init__(buffer_size, observation_space, action_space, **kwargs)
        self.second = {key: np.zeros_like(array) for key, array in self.observations.items()}

    def add(self, obs: Any, next_obs: Any, *args: Any) -> None:
        for key, array in self.second.items():
            array[self.pos] = np.maximum(obs[key], next_obs[key])
        super().add(obs, next_obs, *args)


PRIORITY = [
    Twin("two-lines", PriorityReplayBuffer, CompressedPriorityReplayBuffer),
    Twin("compressed-class", PriorityReplayBuffer, compressed_class(PriorityReplayBuffer)),
]


@pytest.mark.parametrize("method", ["auto", "rle", "zstd3", "delta"])
@pytest.mark.parametrize("kind", ["stack-view", "image", "float32", "small-uint8"])
@pytest.mark.parametrize("twin", PRIORITY, ids=str)
def test_replay_buffer_with_an_array_of_its_own(twin: Twin, kind: str, method: str) -> None:
    ours, new = twin.make(KINDS[kind], 12, 2, sb3={"alpha": 0.7}, compression_method=method)
    assert ours.alpha == 0.7
    for i, step in enumerate(steps(KINDS[kind], 2, 41)):
        ours.add(*step.replay())
        new.add(*step.replay())
        if i % 8 == 0:
            assert_same_arrays(ours, new)
            assert_same_draws(ours, new, sample(20))
    assert_same_arrays(ours, new)


@pytest.mark.parametrize("twin", PRIORITY, ids=str)
def test_its_array_is_compressed_too(twin: Twin) -> None:
    ours, _ = twin.make(KINDS["stack-view"], 200, 2)
    for step in steps(KINDS["stack-view"], 2, 200):
        ours.add(*step.replay())
    for name in ("observations", "next_observations", "initial_observations"):
        assert type(getattr(ours, name)) is not np.ndarray
    assert ours.memory_usage().ratio < 0.5


@pytest.mark.parametrize("twin", PRIORITY, ids=str)
def test_it_persists(twin: Twin) -> None:
    ours, new = twin.make(KINDS["stack-view"], 12, 2)
    data = steps(KINDS["stack-view"], 2, 30)
    for step in data[:20]:
        ours.add(*step.replay())
        new.add(*step.replay())
    for copied in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        other = copy.deepcopy(new)
        for step in data[20:]:
            copied.add(*step.replay())
            other.add(*step.replay())
        assert type(copied) is twin.ours
        assert_same_arrays(copied, other)
        assert_same_draws(copied, other, sample(20))


def test_bad_input_leaves_it_as_it_was() -> None:
    ours, _ = PRIORITY[0].make(KINDS["stack-view"], 12, 2)
    data = steps(KINDS["stack-view"], 2, 15)
    for step in data:
        ours.add(*step.replay())
    before = {name: np.array(getattr(ours, name)) for name in ("initial_observations", "priorities", "observations")}
    obs, next_obs, action, reward, done, _ = data[0].replay()
    for infos in ([{}] * 5, [1, 2]):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            ours.add(obs, next_obs, action, reward, done, infos)
        for name, array in before.items():
            assert_same(getattr(ours, name), array, name)


class LateReplayBuffer(ReplayBuffer):
    """Looks at its input when everything is written already."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        super().add(obs, next_obs, action, reward, done, infos)
        if np.any(reward > 100):
            raise ValueError("reward is too large")


@pytest.mark.parametrize("n", [0, 3, 11, 12, 23, 24])
def test_errors_after_all_is_written(n: int) -> None:
    """Also when that write has filled the ring."""
    twin = Twin("late", LateReplayBuffer, compressed_class(LateReplayBuffer))
    ours, new = twin.make(KINDS["stack-view"], 12, 2)
    data = steps(KINDS["stack-view"], 2, n + 6)
    for step in data[:n]:
        ours.add(*step.replay())
        new.add(*step.replay())
    obs, next_obs, action, _, done, infos = data[n].replay()
    for _ in range(3):
        with pytest.raises(ValueError, match="too large"):
            ours.add(obs, next_obs, action, np.full(2, 1000.0), done, infos)
        assert_same_arrays(ours, new)
    for step in data[n:]:
        ours.add(*step.replay())
        new.add(*step.replay())
    assert_same_arrays(ours, new)
    assert_same_draws(ours, new, sample(20))


def test_rollout_buffer_with_an_array_of_its_own() -> None:
    twin = Twin("pair", PairRolloutBuffer, compressed_class(PairRolloutBuffer), rollout=True)
    ours, new = twin.make(KINDS["stack"], 8, 2)
    assert type(ours.mirrored) is not np.ndarray
    check_rollout(twin, ours, new, steps(KINDS["stack"], 2, 24))


@pytest.mark.parametrize("kind", list(DICT_KINDS))
def test_dict_buffer_with_a_dict_of_its_own(kind: str) -> None:
    twin = Twin("keyed", KeyedReplayBuffer, compressed_class(KeyedReplayBuffer), keyed=True)
    ours, new = twin.make(DICT_KINDS[kind], 12, 2)
    data = steps(DICT_KINDS[kind], 2, 30)
    for step in data:
        # SB3's add reshapes Discrete observations in the dict; this class reads them before it does
        obs, next_obs, *rest = step.replay()
        for part in (obs, next_obs):
            if "discrete" in part:
                part["discrete"] = part["discrete"].reshape(2, 1)
        ours.add(dict(obs), dict(next_obs), *rest)
        new.add(dict(obs), dict(next_obs), *rest)
    assert_same_arrays(ours, new)
    assert_same_draws(ours, new, sample(20))


def test_compressed_class_gives_one_class() -> None:
    cls = compressed_class(PriorityReplayBuffer)
    assert cls is compressed_class(PriorityReplayBuffer)
    assert cls is compressed_class(cls)
    assert issubclass(cls, PriorityReplayBuffer)
    assert cls.__name__ == "CompressedPriorityReplayBuffer"


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_compressed_class_of_sb3s_own_classes(twin: Twin) -> None:
    cls = compressed_class(twin.sb3)
    assert issubclass(cls, twin.sb3)
    assert cls.__name__ == twin.ours.__name__
    assert compressed_class(twin.ours) is twin.ours


def test_subclasses_of_ours() -> None:
    class Half(CompressedReplayBuffer):
        def sample(self, batch_size: int, env: Any = None) -> Any:
            return super().sample(batch_size // 2, env)

    ours = Half(20, KINDS["image"].space, spaces.Discrete(4), "cpu")
    for step in steps(KINDS["image"], 1, 10):
        ours.add(*step.replay())
    assert ours.sample(8).observations.shape == (4, 1, 20, 20)


def test_subclasses_of_ours_with_more_arguments() -> None:
    class Named(CompressedReplayBuffer):
        def __init__(self, *args: Any, name: str, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.name = name

    ours = Named(20, KINDS["image"].space, spaces.Discrete(4), "cpu", name="x", compression_method="rle")
    assert ours.name == "x"
    with pytest.raises(TypeError, match="naem"):
        Named(20, KINDS["image"].space, spaces.Discrete(4), "cpu", name="x", naem="y")


def test_it_trains() -> None:
    from envs import Catch

    model = DQN(
        "MlpPolicy",
        Catch(flat=True),
        replay_buffer_class=compressed_class(PriorityReplayBuffer),
        replay_buffer_kwargs={"alpha": 0.1, "compression_method": "zstd"},
        buffer_size=100,
        learning_starts=2000,
        device="cpu",
    )
    model.learn(50)
    assert model.replay_buffer.alpha == 0.1
    model.replay_buffer.sample(10)
