"""HalfCheetah: 17 floats to an observation."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformObservation
from recordings import Recording
from stable_baselines3.common.env_util import make_vec_env

from recorders.playing import play


def record(name: str, steps: int, n_envs: int) -> dict[str, Recording]:
    """Play HalfCheetah. Its float64 observations are kept as the float32 that policies are given."""
    env = make_vec_env(_make, n_envs=n_envs, seed=0)
    return {name: play(env, name, steps, stack=1)}


def _make() -> gym.Env:
    env = gym.make("HalfCheetah-v5")
    space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda obs: obs.astype(np.float32), space)
