"""Atari games through ALE: 84 x 84 grey frames, four to an observation."""

from __future__ import annotations

import ale_py
import gymnasium as gym
from recordings import Recording
from stable_baselines3.common.env_util import make_atari_env

from recorders.playing import play


def record(game: str, steps: int, n_envs: int) -> dict[str, Recording]:
    """Play `game`, such as `MsPacman`."""
    gym.register_envs(ale_py)
    env = make_atari_env(f"{game}NoFrameskip-v4", n_envs=n_envs, seed=0)
    return {game: play(env, game, steps, stack=4)}
