"""Real observations to measure on: recorded once to a cache folder, replayed as the arguments of `ReplayBuffer.add`.

    python benchmarks/recordings.py MsPacman doom-deathmatch-rgb HalfCheetah --steps 7000

A recording keeps each env's newest frame only; stacks are put together again while replaying, exactly as SB3's
`VecFrameStack` does, terminal observations included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

CACHE = Path(os.environ.get("SB3_EXTRA_BUFFERS_CACHE", Path.home() / ".cache" / "sb3-extra-buffers"))

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]


@dataclass(frozen=True)
class Recording:
    """One recorded session of several envs. A frame is `[H, W, C]` of an image, or a vector.

    Attributes:
        first: newest frame after the first reset, `[envs, *frame]`.
        frames: newest frame of each `next_obs` (of the terminal one where an episode ended), `[steps, envs, *frame]`.
        resets: first frame of each following episode, in order of its end, `[episodes, *frame]`.
        n_actions: number of discrete actions, 0 where actions are vectors.
        stack: frames in an observation.
    """

    first: np.ndarray
    frames: np.ndarray
    resets: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray
    n_actions: int
    stack: int

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def n_envs(self) -> int:
        return int(self.frames.shape[1])

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape as SB3 sees it: images are channel-first."""
        *image, channels = self.frames.shape[2:]
        return (channels * self.stack, *image)

    @property
    def obs_bytes(self) -> int:
        return int(np.prod(self.obs_shape)) * self.frames.dtype.itemsize

    @property
    def observation_space(self) -> spaces.Box:
        low, high = (0, 255) if self.frames.dtype == np.uint8 else (-np.inf, np.inf)
        return spaces.Box(low, high, self.obs_shape, self.frames.dtype.type)

    @property
    def action_space(self) -> spaces.Space[Any]:
        if self.n_actions:
            return spaces.Discrete(self.n_actions)
        return spaces.Box(-1, 1, self.actions.shape[2:], np.float32)

    def steps(self, noise: np.random.Generator | None = None, pixels: int = 4) -> Iterator[Step]:
        """Yield `(obs, next_obs, action, reward, done, infos)` as SB3's collectors hand them to `add`.

        Images are channel-first views of channel-last memory, as `VecTransposeImage` gives them. The last step is
        truncated, so that another pass may follow.

        Args:
            noise: if given, each frame gets new values at `pixels` random places: no two passes are then the same.
            pixels: how many.
        """
        resets = iter(self.resets)
        stacks = self._begin(noisy(self.first, noise, pixels))
        for t in range(len(self)):
            following = self._push(stacks, noisy(self.frames[t], noise, pixels))
            done, timeout = self.dones[t], self.timeouts[t]
            if t == len(self) - 1:
                done, timeout = np.ones_like(done), np.ones_like(timeout)
            infos = [{"TimeLimit.truncated": bool(flag)} for flag in timeout]
            yield _seen(stacks), _seen(following), self.actions[t], self.rewards[t], done, infos
            stacks = following.copy()
            for env in np.flatnonzero(self.dones[t]):
                stacks[env] = self._begin(noisy(next(resets)[None], noise, pixels))[0]

    def endless(self, noise: np.random.Generator | None = None, pixels: int = 4) -> Iterator[Step]:
        """Yield `steps` again and again."""
        while True:
            yield from self.steps(noise, pixels)

    def _begin(self, frames: np.ndarray) -> np.ndarray:
        """Return the stacks `[envs, *image, channels * stack]` of fresh episodes: zeros, and their first frame."""
        stacks = np.zeros((*frames.shape[:-1], frames.shape[-1] * self.stack), frames.dtype)
        return self._push(stacks, frames)

    def _push(self, stacks: np.ndarray, frames: np.ndarray) -> np.ndarray:
        if self.stack == 1:
            return np.array(frames)
        return np.concatenate([stacks[..., frames.shape[-1] :], frames], axis=-1)


def _seen(stacks: np.ndarray) -> np.ndarray:
    return stacks.transpose(0, 3, 1, 2) if stacks.ndim == 4 else stacks


def noisy(frames: np.ndarray, noise: np.random.Generator | None, pixels: int) -> np.ndarray:
    """Return uint8 `frames` `[envs, ...]` with new values at `pixels` random places of each, or as they are."""
    if noise is None:
        return frames
    changed = np.array(frames).reshape(len(frames), -1)
    where = noise.integers(changed.shape[1], size=(len(frames), pixels))
    np.put_along_axis(changed, where, noise.integers(256, size=where.shape, dtype=np.uint8), axis=1)
    return changed.reshape(frames.shape)


def load(name: str, steps: int, n_envs: int = 4) -> Recording:
    """Return the first `steps` steps of a recording, made now if the cache folder has none that is long enough.

    Args:
        name: an Atari game such as `MsPacman`, `doom-<scenario>-rgb` or `doom-<scenario>-labels`, or `HalfCheetah`.
        steps: steps of all envs together.
        n_envs: envs that were played side by side.
    """
    folder = CACHE / "recordings"
    found = [path for path in folder.glob(f"{name}-{n_envs}x*") if not path.name.endswith(".partial")]
    long_enough = sorted((p for p in found if _steps_of(p) >= steps), key=_steps_of)
    path = long_enough[0] if long_enough else folder / f"{name}-{n_envs}x{steps}"
    if not long_enough:
        for made, recording in _record(name, steps, n_envs).items():
            _write(recording, folder / f"{made}-{n_envs}x{steps}")
    arrays = {file.stem: np.load(file, mmap_mode="r" if file.stem == "frames" else None) for file in path.glob("*.npy")}
    recording = Recording(**arrays, **json.loads((path / "numbers.json").read_text()))
    return replace(recording, frames=recording.frames[:steps])


def _steps_of(path: Path) -> int:
    return int(path.name.rpartition("x")[2])


def _record(name: str, steps: int, n_envs: int) -> dict[str, Recording]:
    """Return new recordings by name: those of `name`'s session."""
    if name.startswith("doom-"):
        from recorders.vizdoom import record
    elif name == "HalfCheetah":
        from recorders.mujoco import record
    else:
        from recorders.atari import record
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # ViZDoom and MuJoCo leave files in the folder they run in
        try:
            return record(name, steps, n_envs)
        finally:
            os.chdir(here)


def _write(recording: Recording, path: Path) -> None:
    """Write one `.npy` file per array, which processes map and share; the folder appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=path.name, suffix=".partial", dir=path.parent))
    fields = asdict(recording)
    numbers = {key: fields.pop(key) for key in ("n_actions", "stack")}
    for key, array in fields.items():
        np.save(partial / f"{key}.npy", array)
    (partial / "numbers.json").write_text(json.dumps(numbers))
    try:
        partial.rename(path)
    except OSError:  # another process was faster
        shutil.rmtree(partial)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="such as MsPacman, doom-deathmatch-rgb, HalfCheetah")
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--envs", type=int, default=4)
    options = parser.parse_args()
    for name in options.names:
        recording = load(name, options.steps, options.envs)
        ended = int(recording.dones[: len(recording)].sum())
        print(f"{name}: {recording.frames.shape} {recording.frames.dtype}, {ended} episodes ended")
