"""The loop that all recorders share: random actions in a vector env, every frame kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from recordings import Recording
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm


def play(env: VecEnv, name: str, steps: int, stack: int, seed: int = 0) -> Recording:
    """Play `steps` steps of unstacked `env` and close it. A longer recording begins like a shorter one."""
    rng = np.random.default_rng(seed)
    n_actions = int(getattr(env.action_space, "n", 0))
    first = env.reset()
    frames = np.empty((steps, *first.shape), first.dtype)
    actions, rewards, dones, timeouts, resets = [], [], [], [], []
    for t in tqdm(range(steps), desc=f"recording {name}", unit="step"):
        action = _random_action(rng, env, n_actions)
        frames[t], reward, done, infos = env.step(action)
        for i in np.flatnonzero(done):
            resets.append(frames[t, i].copy())
            frames[t, i] = infos[i]["terminal_observation"]
        actions.append(action)
        rewards.append(reward)
        dones.append(done)
        timeouts.append([info.get("TimeLimit.truncated", False) for info in infos])
    env.close()
    return Recording(
        first=first,
        frames=frames,
        resets=np.array(resets, first.dtype).reshape(-1, *first.shape[1:]),
        actions=np.array(actions),
        rewards=np.array(rewards, np.float32),
        dones=np.array(dones),
        timeouts=np.array(timeouts),
        n_actions=n_actions,
        stack=stack,
    )


def _random_action(rng: np.random.Generator, env: VecEnv, n_actions: int) -> Any:
    if n_actions:
        return rng.integers(n_actions, size=env.num_envs)
    return rng.uniform(-1, 1, (env.num_envs, *env.action_space.shape)).astype(np.float32)
