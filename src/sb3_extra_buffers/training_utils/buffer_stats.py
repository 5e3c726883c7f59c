"""How much memory the buffer takes, in SB3's log."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback


class BufferStatsCallback(BaseCallback):
    """Logs `buffer/stored_mb`, `buffer/raw_mb`, `buffer/ratio` and `buffer/unique_frames`, also to TensorBoard.

    `model.learn(..., callback=BufferStatsCallback())`. Megabytes are millions of bytes; `raw_mb` is what SB3's own
    buffer needs for the same observations. Figures are taken when SB3 is about to write its log: at the end of a
    rollout, or of an episode.
    """

    def _on_training_start(self) -> None:
        if not hasattr(self._buffer(), "memory_usage"):
            raise TypeError(
                f"BufferStatsCallback needs a buffer that knows its memory, such as CompressedReplayBuffer; "
                f"this model has {type(self._buffer()).__name__}"
            )

    def _on_step(self) -> bool:
        if getattr(self.model, "replay_buffer", None) is not None and self.locals["dones"].any():
            self._record()
        return True

    def _on_rollout_end(self) -> None:
        if getattr(self.model, "rollout_buffer", None) is not None:
            self._record()

    def _buffer(self) -> Any:
        replay = getattr(self.model, "replay_buffer", None)
        return getattr(self.model, "rollout_buffer", None) if replay is None else replay

    def _record(self) -> None:
        usage = self._buffer().memory_usage()
        self.logger.record("buffer/stored_mb", usage.stored_bytes / 1e6)
        self.logger.record("buffer/raw_mb", usage.raw_bytes / 1e6)
        self.logger.record("buffer/ratio", usage.ratio)
        self.logger.record("buffer/unique_frames", usage.unique_frames)
