"""Fixed-size circular records of what an agent has seen and done."""

from sb3_extra_buffers.recording.buffers import (
    BaseRecordBuffer,
    DummyRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    Steps,
)

__all__ = ["BaseRecordBuffer", "DummyRecordBuffer", "FramelessRecordBuffer", "RecordBuffer", "Steps"]
