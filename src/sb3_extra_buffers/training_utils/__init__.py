"""What surrounds a training: environments, evaluation, pre-filled buffers, figures in the log."""

from sb3_extra_buffers.training_utils.buffer_stats import BufferStatsCallback

__all__ = ["BufferStatsCallback"]
