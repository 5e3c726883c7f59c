"""The simplest compressed buffer: a list of `zstandard` payloads, each observation once, no other idea.

`plain:zstd3` is the yardstick for codecs and filters: whole observations in SB3's channel-first order, no dictionary.
An observation that equals the env's last next observation shares its payload.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import zstandard
from gymnasium import spaces
from recordings import Recording
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from subjects import sb3
from subjects.sb3 import same

__all__ = ["NOTE", "owned_bytes", "replay", "rollout", "same"]
NOTE = ""


class Replay:
    """SB3's buffer for everything but the observations, of which it keeps places in a list of payloads."""

    def __init__(self, recording: Recording, rows: int, level: int) -> None:
        self.space, self.n_envs = recording.observation_space, recording.n_envs
        size = rows * self.n_envs
        self.inner = ReplayBuffer(
            size, spaces.Box(0, 2 * size, (1,), np.int64), recording.action_space, "cpu", self.n_envs
        )
        self.payloads: list[bytes] = [b""] * (2 * size)
        self.last: list[tuple[np.ndarray | None, bytes]] = [(None, b"")] * self.n_envs
        self.compressor = zstandard.ZstdCompressor(level=level)
        self.decompressor = zstandard.ZstdDecompressor()

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        places = 2 * (self.inner.pos * self.n_envs + np.arange(self.n_envs))
        for env, place in enumerate(places):
            frame, payload = self.last[env]
            if frame is None or not np.array_equal(frame, obs[env]):
                payload = self._compress(obs[env])
            self.payloads[place] = payload
            self.payloads[place + 1] = self._compress(next_obs[env])
            self.last[env] = next_obs[env].copy(), self.payloads[place + 1]
        self.inner.add(places[:, None], places[:, None] + 1, action, reward, done, infos)

    def sample(self, batch_size: int) -> ReplayBufferSamples:
        batch = self.inner.sample(batch_size)
        return batch._replace(
            observations=self._read(batch.observations), next_observations=self._read(batch.next_observations)
        )

    def _read(self, places: torch.Tensor) -> torch.Tensor:
        out = np.empty((len(places), *self.space.shape), self.space.dtype)
        for frame, place in zip(out, places.flatten().tolist(), strict=True):
            raw = self.decompressor.decompress(self.payloads[place])
            frame[...] = np.frombuffer(raw, frame.dtype).reshape(frame.shape)
        return torch.from_numpy(out)

    def _compress(self, frame: np.ndarray) -> bytes:
        payload = self.compressor.compress(np.ascontiguousarray(frame))
        return bytes(bytearray(payload))  # a copy: what zstandard returns keeps the memory of its worst case


def replay(recording: Recording, rows: int, method: str) -> Replay:
    return Replay(recording, rows, level=int(method.removeprefix("zstd")))


def rollout(recording: Recording, rows: int, method: str) -> None:
    return None


def owned_bytes(buffer: Replay) -> int:
    different = {id(payload): sys.getsizeof(payload) for payload in buffer.payloads}
    return sb3.owned_bytes(buffer.inner) + sys.getsizeof(buffer.payloads) + sum(different.values())
