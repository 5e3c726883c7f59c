"""Assignments on their way into a store, and which of them may wait: several rows at once cost little more.

Between two steps of a training the code and data of a call come from far away, so that it takes five times as long as
in a loop. So a buffer's `add` has its row compared, which reads the observations once, and stored together with others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.frames import held

if TYPE_CHECKING:
    from sb3_extra_buffers.frames.observations import IdTable
    from sb3_extra_buffers.frames.store import Ids

ROWS = 4
"""Rows that are stored at once: more gain little."""
_BYTES = 1 << 21  # of what is kept of them, at most


class Write:
    """One assignment: observations `[n, *obs_shape]` to a place of a table."""

    __slots__ = ("ids", "index", "obs", "replaced", "streams", "table")
    obs: NDArray[Any]  # until they are compared
    ids: Ids  # of the observations, when they are stored

    def __init__(self, table: IdTable, index: Any, obs: NDArray[Any], streams: NDArray[np.int64]) -> None:
        self.table = table
        self.index = index
        self.obs = obs
        self.streams = streams
        self.replaced: Ids | None = None  # what the place had, from when it is written on


def may_wait(writes: list[Write], share: float, frame_bytes: int) -> bool:
    """Tell whether what is kept of such rows is little: at most so many frames for each observation of their tables."""
    n_ids = 0
    for write in writes:
        n_ids += write.table.stored.size
    n_streams, stack = writes[0].table.stored.shape[-2:]
    n = held.room(ROWS, len(writes), n_streams, stack)
    return n * stack <= share * n_ids and n * frame_bytes <= _BYTES
