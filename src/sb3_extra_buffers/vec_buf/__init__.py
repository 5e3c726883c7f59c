"""One rollout buffer made of several (experimental)."""

from sb3_extra_buffers.vec_buf.buffers import DummyVecRolloutBuffer

__all__ = ["DummyVecRolloutBuffer"]
