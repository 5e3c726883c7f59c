"""`make_env`: Atari games, stacked and channel-first."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.training_utils.atari import make_env

PONG = "PongNoFrameskip-v4"


@pytest.mark.parametrize(("framestack", "channels"), [(4, 4), (2, 2), (1, 1), (0, 1)])
def test_observations(framestack: int, channels: int) -> None:
    env = make_env(PONG, 2, DummyVecEnv, framestack)
    obs = env.reset()
    assert env.observation_space.shape == (channels, 84, 84)
    assert obs.shape == (2, channels, 84, 84)
    assert obs.dtype == np.uint8
    for _ in range(5):
        obs, *_ = env.step([0, 1])
    assert obs.any()
    env.close()


def test_seeds() -> None:
    def play(seed: int) -> Any:
        env = make_env(PONG, n_envs=2, vec_env_cls=DummyVecEnv, seed=seed)
        seen = [env.reset(), *(env.step([t % 6, 2])[0] for t in range(30))]
        env.close()
        return np.array(seen)

    first = play(3)
    assert np.array_equal(first, play(3))
    assert not np.array_equal(first, play(4))


def test_options_of_the_wrapper_and_of_the_game() -> None:
    env = make_env(PONG, 1, DummyVecEnv, wrapper_kwargs={"screen_size": 42}, render_mode="rgb_array")
    env.reset()
    assert env.observation_space.shape == (4, 42, 42)
    assert env.render().shape == (210, 160, 3)
    env.close()
    with pytest.raises(TypeError, match="rendermode"):
        make_env(PONG, 1, DummyVecEnv, rendermode="rgb_array")


def test_processes_of_their_own() -> None:
    env = make_env(PONG, 2, seed=0)
    assert isinstance(env.unwrapped, SubprocVecEnv)
    assert env.reset().shape == (2, 4, 84, 84)
    env.close()


@pytest.mark.parametrize("arguments", [{"n_envs": 0}, {"n_envs": 1, "framestack": -1}])
def test_bad_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        make_env(PONG, vec_env_cls=DummyVecEnv, **arguments)


def test_without_ale() -> None:
    code = f"""
import sys
sys.modules["ale_py"] = None
from sb3_extra_buffers.training_utils.atari import make_env
try:
    make_env({PONG!r}, 1)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "sb3-extra-buffers[atari]"' in done.stdout
