"""Fill replay buffers with what a trained model does, before another one learns from them."""

from __future__ import annotations

from math import ceil, isfinite
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.training_utils.eval_model import as_buffers, eval_model

__all__ = ["warm_up"]


def warm_up(
    buffer: Any,
    n_envs: int,
    warmup_env: VecEnv,
    warmup_model: Any,
    warmup_episodes: int | None = None,
    mean_ep_len: float | None = None,
    *,
    deterministic: bool = False,
    verbose: bool = True,
) -> tuple[list[float], list[float]]:
    """Play episodes with a trained model and add all transitions to the buffers.

    Args:
        buffer: a replay buffer, or several.
        n_envs: envs of the training, for which the buffers are.
        warmup_env: where to play; a multiple of `n_envs`. It is not closed.
        warmup_model: anything with SB3's `predict`.
        warmup_episodes: how many to play, at least one for each env of `warmup_env`. None: enough to fill the buffers.
        mean_ep_len: steps of an episode, to know how many fill the buffers. Needed without `warmup_episodes`.
        deterministic: whether the model takes its best action; without, it explores as it was trained to.
        verbose: as of `eval_model`.

    Returns:
        As `eval_model`: the return of each episode, and the seconds that each buffer has spent in `add`.

    Raises:
        ValueError: something that does not fit together. Nothing is played then.
    """
    buffers = as_buffers(buffer)
    if not buffers:
        raise ValueError("there is no buffer to fill")
    for each in buffers:
        if each.n_envs != n_envs:
            raise ValueError(f"{type(each).__name__} has n_envs={each.n_envs}; the training has n_envs={n_envs}")
    if n_envs < 1 or warmup_env.num_envs % n_envs:
        raise ValueError(f"warmup_env has {warmup_env.num_envs} envs, which is no multiple of n_envs={n_envs}")
    if warmup_episodes is None:
        if mean_ep_len is None or not isfinite(mean_ep_len) or mean_ep_len <= 0:
            raise ValueError(f"give warmup_episodes, or a mean_ep_len above 0; got mean_ep_len={mean_ep_len}")
        steps = max(each.buffer_size for each in buffers) * n_envs
        warmup_episodes = max(ceil(steps / mean_ep_len), warmup_env.num_envs)
    return eval_model(
        warmup_episodes,
        warmup_env,
        warmup_model,
        close_env=False,
        buffer=buffers,
        deterministic=deterministic,
        verbose=verbose,
    )
