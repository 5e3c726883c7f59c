"""`warm_up`: buffers are full of a model's play before training, or nothing was played at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envs import Catch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from twins import assert_same_arrays

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.buffer_warmup import warm_up


class Counted(DummyVecEnv):
    steps = resets = 0
    closed = False

    def step_wait(self) -> Any:
        self.steps += 1
        return super().step_wait()

    def reset(self) -> Any:
        self.resets += 1
        return super().reset()

    def close(self) -> None:
        self.closed = True
        super().close()


def stacked(n_envs: int) -> Any:
    env = VecFrameStack(Counted([Catch] * n_envs), 4)
    env.seed(0)
    return env


def teacher() -> DQN:
    return DQN("CnnPolicy", stacked(1), buffer_size=10, policy_kwargs={"net_arch": [8]}, seed=0)


def buffers(model: DQN, n_envs: int, size: int = 120) -> list[Any]:
    given = (size, model.observation_space, model.action_space, "cpu", n_envs)
    return [ReplayBuffer(*given), CompressedReplayBuffer(*given)]


@pytest.mark.parametrize(("n_envs", "warmup_envs"), [(1, 1), (2, 2), (1, 3), (2, 4)])
def test_episodes_fill_the_buffers(n_envs: int, warmup_envs: int) -> None:
    """Episodes have 9 or 12 steps: a mean of 9 is on the safe side."""
    model, env = teacher(), stacked(warmup_envs)
    sb3, ours = both = buffers(model, n_envs)
    returns, seconds = warm_up(both, n_envs, env, model, mean_ep_len=9, verbose=False)
    assert len(returns) == max(-(-120 // 9), warmup_envs)
    assert len(seconds) == 2
    assert ours.full
    assert_same_arrays(ours, sb3)
    assert not env.venv.closed


def test_a_number_of_episodes() -> None:
    model, env = teacher(), stacked(2)
    (buffer, _) = buffers(model, 2)
    returns, _ = warm_up(buffer, 2, env, model, 3, verbose=False)
    assert len(returns) == 3
    assert buffer.pos == env.venv.steps


def test_training_goes_on_from_a_warm_buffer() -> None:
    model = DQN(
        "CnnPolicy",
        stacked(2),
        replay_buffer_class=CompressedReplayBuffer,
        buffer_size=200,
        learning_starts=0,
        policy_kwargs={"net_arch": [8]},
        seed=0,
    )
    warm_up(model.replay_buffer, model.n_envs, stacked(4), teacher(), mean_ep_len=10, verbose=False)
    assert model.replay_buffer.full
    before = [weights.clone() for weights in model.policy.parameters()]
    model.learn(16)
    assert any((old != new).any() for old, new in zip(before, model.policy.parameters(), strict=True))


def test_the_model_explores_unless_told_not_to() -> None:
    asked = []

    class Asked:
        def predict(self, obs: Any, deterministic: bool, **others: Any) -> Any:
            asked.append(deterministic)
            return np.zeros(len(obs), int), None

    env = DummyVecEnv([Catch])
    buffer = ReplayBuffer(20, env.observation_space, env.action_space, "cpu")
    warm_up(buffer, 1, env, Asked(), 1, verbose=False)
    assert set(asked) == {False}
    asked.clear()
    warm_up(buffer, 1, env, Asked(), 1, deterministic=True, verbose=False)
    assert set(asked) == {True}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"buffer": []}, "no buffer"),
        ({"n_envs": 1}, "n_envs=2"),
        ({"n_envs": 4}, "n_envs=2"),
        ({"n_envs": 0}, "n_envs=0"),
        ({"warmup_env": 3}, "multiple"),
        ({"warmup_env": 1}, "multiple"),
        ({"warmup_episodes": None}, "mean_ep_len"),
        ({"warmup_episodes": None, "mean_ep_len": 0}, "mean_ep_len"),
        ({"warmup_episodes": None, "mean_ep_len": float("nan")}, "mean_ep_len"),
        ({"warmup_episodes": 1}, "at least 2 episodes"),
        ({"warmup_episodes": 0}, "at least 2 episodes"),
    ],
)
def test_bad_input_is_found_before_playing(arguments: dict[str, Any], problem: str) -> None:
    model = teacher()
    env = stacked(arguments.pop("warmup_env", 2))
    buffer = buffers(model, 2)
    given = {"buffer": buffer, "n_envs": 2, "warmup_env": env, "warmup_model": model, "warmup_episodes": 4}
    with pytest.raises(ValueError, match=problem):
        warm_up(**{**given, **arguments}, verbose=False)
    assert env.venv.steps == env.venv.resets == 0
    assert all(each.size() == 0 for each in buffer)
