"""SB3 replay and rollout buffers whose observations are kept on a Torch device, compressed."""

from sb3_extra_buffers.gpu_buffers.buffers import (
    GpuDictReplayBuffer,
    GpuDictRolloutBuffer,
    GpuReplayBuffer,
    GpuRolloutBuffer,
)
from sb3_extra_buffers.gpu_buffers.dtypes import find_gpu_buffer_dtypes
from sb3_extra_buffers.gpu_buffers.memory import DeviceUsage
from sb3_extra_buffers.gpu_buffers.observations import GpuObservations

__all__ = [
    "DeviceUsage",
    "GpuDictReplayBuffer",
    "GpuDictRolloutBuffer",
    "GpuObservations",
    "GpuReplayBuffer",
    "GpuRolloutBuffer",
    "find_gpu_buffer_dtypes",
]
