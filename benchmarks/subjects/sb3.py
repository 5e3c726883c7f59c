"""SB3's own buffers: what everything is compared with. `sb3:again` is a second process of it, which shows the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from recordings import Recording
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from subjects import Different

NOTE = ""
REPLAY, ROLLOUT = ReplayBuffer, RolloutBuffer
ARRAYS = "observations", "next_observations", "actions", "rewards", "dones", "timeouts"  # of a replay buffer


def options(space: spaces.Box, method: str) -> dict[str, Any]:
    """Return the keyword arguments of `REPLAY` and `ROLLOUT` that SB3's own do not have."""
    return {}


def replay(recording: Recording, rows: int, method: str = "") -> ReplayBuffer:
    return make_replay(ReplayBuffer, recording, rows)


def rollout(recording: Recording, rows: int, method: str = "") -> RolloutBuffer:
    return make_rollout(RolloutBuffer, recording, rows)


def make_replay(kind: type[Any], recording: Recording, rows: int, **options: Any) -> Any:
    spaces = recording.observation_space, recording.action_space
    return kind(rows * recording.n_envs, *spaces, "cpu", n_envs=recording.n_envs, **options)


def make_rollout(kind: type[Any], recording: Recording, rows: int, **options: Any) -> Any:
    spaces = recording.observation_space, recording.action_space
    return kind(rows, *spaces, "cpu", gae_lambda=0.95, n_envs=recording.n_envs, **options)


def owned_bytes(buffer: Any) -> int:
    # By name: asked for `vars`, Python 3.11 gives the buffer a dict, and all its attributes are slower from then on.
    arrays = [getattr(buffer, name, None) for name in ARRAYS]
    return sum(array.nbytes for array in arrays if type(array) is np.ndarray)


def same(buffer: Any, reference: ReplayBuffer) -> None:
    """Compare samples drawn with the same seeds."""
    for seed in range(20):
        batches = []
        for each in (buffer, reference):
            np.random.seed(seed)
            batches.append(each.sample(64))
        compare(*batches)


def compare(batch: Any, expected: Any) -> None:
    """Raise unless two batches of SB3's are equal, field by field, dtypes included."""
    for field, got, wanted in zip(expected._fields, batch, expected, strict=True):
        if wanted is None and got is None:
            continue
        if got.dtype != wanted.dtype or not torch.equal(got, wanted):
            raise Different(f"{field} differ from SB3's")
