"""Blocks of observations that a `FrameStore` has compared and not stored yet: several at once cost little more.

What is kept of a row is what no row before it had, mostly one frame of each env, and ids or, as `matching` has it, what
stands for those of frames to come. The observations themselves are not needed any more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Ints


class Held:
    """Room for some rows, each of so many blocks.

    Args:
        rows: how many, if each has one new frame per stream.
        n_blocks: blocks of a row.
        n_streams: observations of a block.
        stack: frames of an observation.
        n_words: 8-byte words of a frame.

    Attributes:
        candidates: the new frames.
        sources: the streams they come from.
        codes: what stands for the ids of all frames, `[blocks, n_streams, stack]`.
        before: ids that were counted for the streams' last observations before the first block came.
        ends: for each row that is held, how many blocks and new frames there are with it.
        is_sure: False while a row is being compared: if that fails, the streams' last observations are not known.
    """

    def __init__(self, rows: int, n_blocks: int, n_streams: int, stack: int, n_words: int) -> None:
        n = n_candidates(rows, n_blocks, n_streams, stack)
        self.candidates = np.zeros((n, n_words), np.uint64)
        self.sources = np.empty(n, np.int64)
        self.codes = np.empty((rows * n_blocks, n_streams, stack), np.int64)
        self.before: NDArray[np.int64] = np.empty(0, np.int64)
        self.ends: list[tuple[int, int]] = []
        self.is_sure = True

    @property
    def end(self) -> tuple[int, int]:
        """How many blocks are held, and how many frames of them are new."""
        return self.ends[-1] if self.ends else (0, 0)

    @property
    def contents(self) -> tuple[NDArray[np.uint64], Ints, Ints]:
        """The new frames, where they come from, and the codes."""
        n, k = self.end
        return self.candidates[:k], self.sources[:k], self.codes[:n]

    @property
    def nbytes(self) -> int:
        """Bytes of the room, used or not."""
        return self.candidates.nbytes + self.sources.nbytes + self.codes.nbytes + self.before.nbytes


def n_candidates(rows: int, n_blocks: int, n_streams: int, stack: int) -> int:
    """Return for how many new frames there is room: before each stream, for the most that it may have."""
    return rows * n_streams - 1 + n_blocks * stack
