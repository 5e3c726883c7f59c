"""SB3 replay and rollout buffers whose observations are compressed in RAM."""

from sb3_extra_buffers.codecs.optional import has_igzip, has_lz4, has_numba, has_zstd
from sb3_extra_buffers.compressed.buffers import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    compressed_class,
)
from sb3_extra_buffers.compressed.dtypes import DummyCls, find_buffer_dtypes, find_smallest_dtype, init_jit
from sb3_extra_buffers.compressed.memory import MemoryUsage
from sb3_extra_buffers.compressed.observations import CompressedObservations
from sb3_extra_buffers.frames import CompressedArray, DamagedFileError, StoreFullError

__all__ = [
    "CompressedArray",
    "CompressedDictReplayBuffer",
    "CompressedDictRolloutBuffer",
    "CompressedHerReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedObservations",
    "CompressedReplayBuffer",
    "CompressedRolloutBuffer",
    "DamagedFileError",
    "DummyCls",
    "MemoryUsage",
    "StoreFullError",
    "compressed_class",
    "find_buffer_dtypes",
    "find_smallest_dtype",
    "has_igzip",
    "has_lz4",
    "has_numba",
    "has_zstd",
    "init_jit",
]
