"""The device buffers beside SB3's, on the devices of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from kinds import AnyKind
from twins import TWINS, Twin

from sb3_extra_buffers.gpu_buffers import (
    GpuDictReplayBuffer,
    GpuDictRolloutBuffer,
    GpuReplayBuffer,
    GpuRolloutBuffer,
)

METHODS = ["delta", "none", "rle", "zstd3"]
CLASSES = {
    "replay": GpuReplayBuffer,
    "dict-replay": GpuDictReplayBuffer,
    "rollout": GpuRolloutBuffer,
    "dict-rollout": GpuDictRolloutBuffer,
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@dataclass(frozen=True)
class GpuTwin(Twin):
    """A class of ours and the SB3 class it extends, both giving samples on `device`."""

    device: str = "cpu"

    def arguments(self, kind: AnyKind, rows: int, n_envs: int, action_space: Any = None) -> dict[str, Any]:
        return {**super().arguments(kind, rows, n_envs, action_space), "device": self.device}


def gpu_twins(device: str) -> dict[str, Twin]:
    """Return the pairs by the names of those on the CPU."""
    return {
        name: GpuTwin(name, TWINS[name].sb3, cls, TWINS[name].keyed, TWINS[name].rollout, device)
        for name, cls in CLASSES.items()
    }
