"""The snippets of the spec and of the README run as they are written; only the numbers of steps are small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envs import Catch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

from sb3_extra_buffers.codecs import parse_method
from sb3_extra_buffers.compressed import (
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    find_buffer_dtypes,
    find_smallest_dtype,
)

FEW: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 0}


@pytest.fixture
def env() -> Any:
    return VecFrameStack(DummyVecEnv([Catch, Catch]), 4)


def test_image_env_with_a_jit_codec(env: Any) -> None:
    obs = env.observation_space
    dtypes = find_buffer_dtypes(obs_shape=obs.shape, elem_dtype=obs.dtype, compression_method="rle-jit")
    assert dtypes == {"elem_type": np.uint8, "runs_type": np.uint16}
    model = PPO(
        "CnnPolicy",
        env,
        rollout_buffer_class=CompressedRolloutBuffer,
        rollout_buffer_kwargs=dict(dtypes=dtypes, compression_method="rle-jit"),  # noqa: C408
        **FEW,
    )
    model.learn(64)
    assert "rle-jit" in str(model.rollout_buffer.memory_usage())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and later, where torch has threads
def test_image_env_in_subprocesses_after_compiling() -> None:
    """`find_buffer_dtypes` compiles before any subprocess starts."""
    dtypes = find_buffer_dtypes(obs_shape=(4, 36, 36), elem_dtype=np.uint8, compression_method="rle-jit")
    env = VecFrameStack(SubprocVecEnv([Catch, Catch], start_method="fork"), 4)
    try:
        model = PPO(
            "CnnPolicy",
            env,
            rollout_buffer_class=CompressedRolloutBuffer,
            rollout_buffer_kwargs={"dtypes": dtypes, "compression_method": "rle-jit"},
            **FEW,
        )
        model.learn(32)
    finally:
        env.close()


def test_explicit_lossy_dtypes_on_a_float_env() -> None:
    with pytest.warns(UserWarning, match="clip") as caught:
        model = PPO(
            "MlpPolicy",
            "CartPole-v1",
            rollout_buffer_class=CompressedRolloutBuffer,
            rollout_buffer_kwargs=dict(  # noqa: C408
                dtypes=dict(elem_type=np.uint8, runs_type=find_smallest_dtype(4)),  # noqa: C408
                compression_method="rle",
            ),
            **FEW,
        )
    assert len(caught) == 1
    model.learn(64)  # warns no more
    kept = model.rollout_buffer.observations
    assert kept.dtype == np.float32
    assert (kept >= 0).all()
    assert (np.asarray(kept) == np.trunc(kept)).all()


def test_explicit_jit_warm_up() -> None:
    from sb3_extra_buffers.compressed.compression_methods import HAS_NUMBA
    from sb3_extra_buffers.compressed.compression_methods.compression_methods_numba import init_jit

    if HAS_NUMBA:
        init_jit(elem_type=np.uint8, runs_type=np.uint16)
        init_jit()
        init_jit(elem_type=np.float32)


def test_that_is_all(env: Any) -> None:
    model = DQN("CnnPolicy", env, replay_buffer_class=CompressedReplayBuffer, buffer_size=100, learning_starts=40)
    model.learn(80)
    assert isinstance(model.replay_buffer, CompressedReplayBuffer)
    assert model.replay_buffer.size() == 40


@pytest.mark.parametrize(
    "method", ["none", "rle", "gzip3", "igzip0", "zstd-100", "zstd22", "lz4-frame/12", "lz4-block/1"]
)
def test_methods_of_the_published_table(env: Any, method: str) -> None:
    model = DQN(
        "CnnPolicy",
        env,
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={
            "dtypes": find_buffer_dtypes((4, 36, 36), np.uint8, method),
            "compression_method": method,
        },
        buffer_size=100,
        learning_starts=200,
        device="cpu",
    )
    model.learn(60)
    buffer = model.replay_buffer
    assert buffer.memory_usage().raw_bytes == buffer.size() * 2 * 2 * 4 * 36 * 36 > 0
    assert buffer.memory_usage().method == parse_method(method)[0]
