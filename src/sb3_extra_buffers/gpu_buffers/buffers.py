"""SB3's buffers with observations on a device. Each class is a name: SB3's code and the mixin do the work."""

from __future__ import annotations

from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.gpu_buffers.observations import GpuObservations


class GpuReplayBuffer(GpuObservations, ReplayBuffer):
    """`ReplayBuffer` whose observations are on a Torch device. Samples equal SB3's, bit for bit."""


class GpuDictReplayBuffer(GpuObservations, DictReplayBuffer):
    """`DictReplayBuffer` whose observations are on a Torch device, key by key."""


class GpuRolloutBuffer(GpuObservations, RolloutBuffer):
    """`RolloutBuffer` whose observations are on a Torch device. Minibatches equal SB3's, bit for bit."""


class GpuDictRolloutBuffer(GpuObservations, DictRolloutBuffer):
    """`DictRolloutBuffer` whose observations are on a Torch device, key by key."""
