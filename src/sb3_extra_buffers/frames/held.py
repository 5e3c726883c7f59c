"""Blocks of observations that a `FrameStore` has compared and not stored yet: several at once cost little more.

What is kept of a row is what no row before it had, mostly one frame of each env, and ids or, as `matching` has it, what
stands for those of frames to come. The observations themselves are not needed any more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Ints, grown

WORD = 8
"""Bytes that are compared at once."""
_NOTHING = np.empty(0, np.int64)


def words_of(frame_bytes: int) -> int:
    """Return how many words a frame has."""
    return -(-frame_bytes // WORD)


class Candidates:
    """Frames that are perhaps new, one after another.

    Args:
        room: for how many.
        frame_bytes: size of a frame. What its last word has beyond it is 0.

    Attributes:
        frames: the frames, `[room, words]`.
        sources: the streams they come from, `[room]`.
        progress: how many there are, and how many observations of the blocks at hand are compared.
    """

    __slots__ = ("frames", "progress", "sources")

    def __init__(self, room: int, frame_bytes: int) -> None:
        self.frames = np.empty((room, words_of(frame_bytes)), np.uint64)
        if frame_bytes % WORD:
            self.frames[:, -1] = 0
        self.sources = np.empty(room, np.int64)
        self.progress = np.zeros(2, np.int64)

    @property
    def n(self) -> int:
        """How many there are."""
        return self.progress.item(0)

    def grow(self, more: int) -> None:
        """Make room for so many more."""
        frames, self.sources = grown(self.frames, more), grown(self.sources, more)
        self.frames = frames  # last, should this be interrupted: they say how much room there is


class Held:
    """Room for some rows, each of so many blocks.

    Args:
        rows: how many. There is room for one new frame of each stream in each of them; candidates grow if more come.
        n_blocks: blocks of a row.
        n_streams: observations of a block.
        stack: frames of an observation.
        frame_bytes: size of a frame.

    Attributes:
        candidates: the frames that are perhaps new.
        codes: what stands for the ids of all frames, `[blocks, n_streams, stack]`.
        before: ids that were counted for the streams' last observations before the first block came. They stay counted
            as long as something is held.
        ends: for each row that is held, how many blocks and candidates there are with it.
        comparing: True while a row is compared, and if that was interrupted: the streams' last observations are then
            not known.
    """

    def __init__(self, rows: int, n_blocks: int, n_streams: int, stack: int, frame_bytes: int) -> None:
        self.candidates = Candidates(room(rows, n_streams, stack), frame_bytes)
        self.usual_room = len(self.candidates.sources)
        self.codes = np.empty((rows * n_blocks, n_streams, stack), np.int64)
        self.before: NDArray[np.int64] = _NOTHING
        self.ends: list[tuple[int, int]] = []
        self.comparing = False

    @property
    def n_blocks(self) -> int:
        """How many blocks are held."""
        return self.ends[-1][0] if self.ends else 0

    @property
    def has_grown(self) -> bool:
        """Whether there were more candidates than usual."""
        return len(self.candidates.sources) > self.usual_room

    @property
    def contents(self) -> tuple[NDArray[np.uint64], Ints, Ints]:
        """The candidates, where they come from, and the codes."""
        blocks, n = self.ends[-1]
        return self.candidates.frames[:n], self.candidates.sources[:n], self.codes[:blocks]

    @property
    def nbytes(self) -> int:
        """Bytes of the room, used or not."""
        return self.candidates.frames.nbytes + self.candidates.sources.nbytes + self.codes.nbytes + self.before.nbytes


def room(rows: int, n_streams: int, stack: int) -> int:
    """Return how many candidates some rows have room for: one of each stream in each row, and a whole observation."""
    return rows * n_streams + stack - 1


def rows_in(n: int, n_streams: int, stack: int) -> int:
    """Return how many rows can be held in room for so many candidates: the inverse of `room`."""
    return (n + 1 - stack) // n_streams
