"""TorchRL's storages: obs and next_obs are both stored, as they are given.

`LazyTensorStorage` keeps tensors, `LazyMemmapStorage` keeps them in files, `CompressedListStorage` compresses each
tensor with its default function at its default level 3 (zlib; zstd from Python 3.14).
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from recordings import Recording
from stable_baselines3.common.buffers import ReplayBuffer as Sb3ReplayBuffer
from tensordict import TensorDict
from torchrl.data import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

from subjects import Different

NOTE = "RSS of LazyMemmapStorage excludes its files"
FIELDS = ("obs", "action", "next_obs", "done", "reward")


class Replay:
    """A TorchRL replay buffer behind SB3's `add` and `sample`."""

    def __init__(self, size: int, n_envs: int, storage: str) -> None:
        self.n_envs = n_envs
        self.files = tempfile.TemporaryDirectory(prefix="torchrl-")
        self.storage = {
            "LazyTensorStorage": lambda: LazyTensorStorage(size),
            "LazyMemmapStorage": lambda: LazyMemmapStorage(size, scratch_dir=self.files.name),
            "CompressedListStorage": lambda: CompressedListStorage(size),
        }[storage]()
        self.buffer = ReplayBuffer(storage=self.storage, batch_size=32)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        ended = [d and not info["TimeLimit.truncated"] for d, info in zip(done, infos, strict=True)]
        self.buffer.extend(
            TensorDict(
                {
                    "obs": torch.from_numpy(obs),
                    "action": torch.from_numpy(action),
                    "next_obs": torch.from_numpy(next_obs),
                    "done": torch.tensor(ended, dtype=torch.float32),
                    "reward": torch.from_numpy(reward),
                },
                batch_size=[self.n_envs],
            )
        )

    def sample(self, batch_size: int) -> list[torch.Tensor]:
        batch = self.buffer.sample(batch_size)
        return [batch[field] for field in FIELDS]  # taking them also stacks what a list storage returns


def replay(recording: Recording, rows: int, method: str) -> Replay:
    return Replay(rows * recording.n_envs, recording.n_envs, method)


def rollout(recording: Recording, rows: int, method: str) -> None:
    return None


def owned_bytes(buffer: Replay) -> int:
    if isinstance(buffer.storage, CompressedListStorage):
        return int(buffer.storage.bytes())
    return sum(tensor.nbytes for tensor in buffer.storage._storage.values())


def same(buffer: Replay, reference: Sb3ReplayBuffer) -> None:
    """Compare samples with what SB3's buffer holds at the places that TorchRL says it drew."""
    for seed in range(20):
        torch.manual_seed(seed)
        batch, info = buffer.buffer.sample(64, return_info=True)
        rows, envs = np.divmod(np.asarray(info["index"]), buffer.n_envs)
        expected = {
            "obs": reference.observations[rows, envs],
            "action": reference.actions[rows, envs].reshape(batch["action"].shape),
            "next_obs": reference.next_observations[rows, envs],
            "done": (reference.dones * (1 - reference.timeouts))[rows, envs],
            "reward": reference.rewards[rows, envs],
        }
        for field, wanted in expected.items():
            if not np.array_equal(batch[field].numpy(), wanted):
                raise Different(f"{field} differ from what was added")
