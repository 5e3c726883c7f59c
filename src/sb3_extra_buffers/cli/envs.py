"""Any env id as the vector env that SB3 would train on."""

from __future__ import annotations

from functools import partial

import gymnasium
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers.codecs import optional


def open_env(env_id: str, n_envs: int, stack: int | None, seed: int) -> VecEnv:
    """Return `n_envs` of `env_id` in this process: Atari games preprocessed as usual, images channel-first.

    Raises:
        ValueError: there is no such env.
        ImportError: what it needs is missing.
    """
    if _is_atari(env_id):
        from sb3_extra_buffers.training_utils.atari import make_env

        return make_env(env_id, n_envs, DummyVecEnv, 4 if stack is None else stack, seed)
    if env_id.startswith("Vizdoom"):
        optional.require("vizdoom.gymnasium_wrapper", "ViZDoom", "vizdoom")  # registers its scenarios
    try:
        env: VecEnv = DummyVecEnv([partial(gymnasium.make, env_id)] * n_envs)
    except gymnasium.error.Error as error:
        raise ValueError(f"cannot make {env_id!r}: {error}") from error
    env.seed(seed)
    if stack is not None and stack > 1:
        env = VecFrameStack(env, stack)
    space = env.observation_space
    if isinstance(space, spaces.Box) and is_image_space(space) and not is_image_space_channels_first(space):
        env = VecTransposeImage(env)
    return env


def _is_atari(env_id: str) -> bool:
    if optional.has("ale_py"):
        import ale_py

        gymnasium.register_envs(ale_py)
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    return env_id.startswith("ALE/") or "NoFrameskip-" in env_id or "ale_py" in str(getattr(spec, "entry_point", ""))
