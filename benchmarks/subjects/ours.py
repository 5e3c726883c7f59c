"""This repository's buffers, with any compression method, such as `zstd3`, or `palette+none`: a filter before it."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from recordings import Recording

from sb3_extra_buffers.cli.measure import arguments_of
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer
from subjects import sb3
from subjects.sb3 import same

__all__ = ["NOTE", "REPLAY", "ROLLOUT", "options", "owned_bytes", "replay", "rollout", "same"]
NOTE = ""
REPLAY, ROLLOUT = CompressedReplayBuffer, CompressedRolloutBuffer


def options(space: spaces.Box, method: str) -> dict[str, Any]:
    return arguments_of(method or "auto")


def replay(recording: Recording, rows: int, method: str) -> CompressedReplayBuffer:
    return sb3.make_replay(REPLAY, recording, rows, **options(recording.observation_space, method))


def rollout(recording: Recording, rows: int, method: str) -> CompressedRolloutBuffer:
    return sb3.make_rollout(ROLLOUT, recording, rows, **options(recording.observation_space, method))


def owned_bytes(buffer: CompressedReplayBuffer) -> int:
    usage = buffer.memory_usage()
    dense = usage.raw_bytes if usage.method == "dense" else 0  # SB3's own arrays: counted below
    return usage.stored_bytes - dense + sb3.owned_bytes(buffer)
