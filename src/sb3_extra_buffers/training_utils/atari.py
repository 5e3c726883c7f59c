"""Atari games as SB3's algorithms want them."""

from __future__ import annotations

import inspect
from typing import Any

from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers.codecs import optional

__all__ = ["make_env"]


def make_env(
    env_id: str,
    n_envs: int,
    vec_env_cls: type[Any] = SubprocVecEnv,
    framestack: int = 4,
    seed: int | None = None,
    **kwargs: Any,
) -> VecEnv:
    """Return a vector of Atari games: 84 x 84 grey frames, stacked, channel-first.

    Args:
        env_id: such as `PongNoFrameskip-v4`.
        n_envs: games side by side.
        vec_env_cls: `SubprocVecEnv`, or `DummyVecEnv` for one process.
        framestack: frames in an observation; 0 or 1 for no stacking.
        seed: of the first game; the others count on from it.
        **kwargs: of SB3's `make_atari_env`, such as `wrapper_kwargs`; all others are the game's, such as `render_mode`.

    Raises:
        ImportError: ale-py is missing; it holds the pip command.
        ValueError: no game, or a negative stack.
    """
    if n_envs < 1 or framestack < 0:
        raise ValueError(f"n_envs is at least 1 and framestack at least 0; got {n_envs} and {framestack}")
    optional.require("ale_py", "an Atari game", "atari")
    known = inspect.signature(make_atari_env).parameters.keys()
    options = {name: value for name, value in kwargs.items() if name in known}
    game = {name: value for name, value in kwargs.items() if name not in known}
    options["env_kwargs"] = {**(options.get("env_kwargs") or {}), **game}
    name = env_id if ":" in env_id else f"ale_py:{env_id}"  # so the game is also known in a process of its own
    env: VecEnv = make_atari_env(name, n_envs=n_envs, seed=seed, vec_env_cls=vec_env_cls, **options)
    if framestack > 1:
        env = VecFrameStack(env, n_stack=framestack)
    return VecTransposeImage(env)
