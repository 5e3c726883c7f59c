"""Real frames to measure on: recorded once from Atari games, replayed as the arguments of `ReplayBuffer.add`.

A recording keeps each env's newest frame only; the stacks of 4 are put together again while replaying, exactly as
SB3's `VecFrameStack` does, terminal observations included.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CACHE = Path(os.environ.get("SB3_EXTRA_BUFFERS_CACHE", Path.home() / ".cache" / "sb3-extra-buffers"))
STACK = 4

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]


@dataclass(frozen=True)
class Recording:
    """One recorded session of several envs.

    Attributes:
        first: newest frame after the first reset, `[envs, H, W]`.
        frames: newest frame of each `next_obs` (of the terminal one where an episode ended), `[steps, envs, H, W]`.
        resets: first frame of each following episode, in order of its end, `[episodes, H, W]`.
    """

    name: str
    first: np.ndarray
    frames: np.ndarray
    resets: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray
    n_actions: int

    @property
    def n_envs(self) -> int:
        return int(self.frames.shape[1])

    @property
    def obs_shape(self) -> tuple[int, int, int]:
        return (STACK, *self.frames.shape[2:])

    def steps(self, limit: int | None = None) -> Iterator[Step]:
        """Yield `(obs, next_obs, action, reward, done, infos)` as SB3's collectors hand them to `add`.

        The observations are channel-first views of channel-last memory, as `VecTransposeImage` gives them.
        """
        resets = iter(self.resets)
        stack = np.zeros((self.n_envs, *self.frames.shape[2:], STACK), np.uint8)
        stack[..., -1] = self.first
        for t in range(len(self.frames) if limit is None else limit):
            following = np.roll(stack, -1, axis=-1)
            following[..., -1] = self.frames[t]
            infos = [{"TimeLimit.truncated": bool(flag)} for flag in self.timeouts[t]]
            yield (
                stack.transpose(0, 3, 1, 2),
                following.transpose(0, 3, 1, 2),
                self.actions[t],
                self.rewards[t],
                self.dones[t],
                infos,
            )
            stack = following.copy()
            for env in np.flatnonzero(self.dones[t]):
                stack[env] = 0
                stack[env, ..., -1] = next(resets)


def record_atari(game: str, steps: int, n_envs: int = 4, seed: int = 0) -> Recording:
    """Play `game` with random actions and keep the frames."""
    import ale_py
    import gymnasium as gym
    from stable_baselines3.common.env_util import make_atari_env
    from tqdm import tqdm

    gym.register_envs(ale_py)
    env = make_atari_env(f"{game}NoFrameskip-v4", n_envs=n_envs, seed=seed)
    rng = np.random.default_rng(seed)
    first = env.reset()[..., 0]
    frames, actions, rewards, dones, timeouts, resets = [], [], [], [], [], []
    for _ in tqdm(range(steps), desc=game):
        action = rng.integers(env.action_space.n, size=n_envs)
        obs, reward, done, infos = env.step(action)
        newest = obs[..., 0].copy()
        for i in np.flatnonzero(done):
            resets.append(newest[i].copy())
            newest[i] = infos[i]["terminal_observation"][..., 0]
        frames.append(newest)
        actions.append(action)
        rewards.append(reward)
        dones.append(done)
        timeouts.append([info.get("TimeLimit.truncated", False) for info in infos])
    env.close()
    shape = first.shape[1:]
    return Recording(
        name=game,
        first=first,
        frames=np.array(frames),
        resets=np.array(resets, np.uint8).reshape(-1, *shape),
        actions=np.array(actions),
        rewards=np.array(rewards),
        dones=np.array(dones),
        timeouts=np.array(timeouts),
        n_actions=int(env.action_space.n),
    )


def load(game: str, steps: int = 5000, n_envs: int = 4) -> Recording:
    """Return the recording of `game`, made now if the cache folder has none."""
    path = CACHE / f"{game}-{n_envs}x{steps}.npz"
    if not path.exists():
        made = record_atari(game, steps, n_envs)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.stem}.{os.getpid()}.npz")
        np.savez_compressed(partial, **vars(made))
        partial.replace(path)
        return made
    with np.load(path) as data:
        fields = {key: data[key] for key in data.files}
    return Recording(**{**fields, "name": str(fields["name"]), "n_actions": int(fields["n_actions"])})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("games", nargs="+", help="Atari games, such as MsPacman Pong")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--envs", type=int, default=4)
    options = parser.parse_args()
    for game in options.games:
        found = load(game, options.steps, options.envs)
        print(f"{game}: {found.frames.shape}, {int(found.dones.sum())} episodes ended")
