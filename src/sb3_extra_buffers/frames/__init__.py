"""Layer 1: who owns the bytes (`FrameStore`) and what SB3 sees (`CompressedArray`). No torch, no SB3."""

from sb3_extra_buffers.frames.array import CompressedArray
from sb3_extra_buffers.frames.files import DamagedFileError
from sb3_extra_buffers.frames.heap import StoreFullError
from sb3_extra_buffers.frames.observations import ObservationStore
from sb3_extra_buffers.frames.store import FrameStore

__all__ = ["CompressedArray", "DamagedFileError", "FrameStore", "ObservationStore", "StoreFullError"]
