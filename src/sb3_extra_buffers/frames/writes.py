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

ROWS = 8
"""Rows that are stored at once, at most: more gain little."""
_BYTES = 1 << 19  # of what is kept of them, at most


class Write:
    """One assignment: observations `[n, *obs_shape]` to a place of a table."""

    __slots__ = ("index", "obs", "streams", "table")
    obs: NDArray[Any]  # until they are compared

    def __init__(self, table: IdTable, index: Any, obs: NDArray[Any], streams: NDArray[np.int64]) -> None:
        self.table = table
        self.index = index
        self.obs = obs
        self.streams = streams


class Stored:
    """Ids of observations that are stored, to be written to a place of a table.

    Attributes:
        waited: whether the call that gave the observations has returned already.
        replaced: what the place had, from when it is written on.
    """

    __slots__ = ("ids", "index", "replaced", "table", "waited")

    def __init__(self, table: IdTable, index: Any, ids: Ids, waited: bool = False) -> None:
        self.table = table
        self.index = index
        self.ids = ids
        self.waited = waited
        self.replaced: Ids | None = None


def in_one(waiting: list[Write], ids: Ids) -> list[Stored]:
    """Return what is to be written of assignments that waited: of rows that follow each other all at once.

    Args:
        waiting: the assignments.
        ids: of each of them, `[n, streams, stack]`.
    """
    if not waiting:
        return []
    n_tables = len({id(write.table) for write in waiting})
    tables = [write.table for write in waiting[:n_tables]]
    first = row = waiting[0].index
    j = 0  # of the next one's table
    for write in waiting:
        if type(write.index) is not int or write.index != row or write.table is not tables[j]:
            break
        j += 1
        if j == n_tables:
            row, j = row + 1, 0
    else:
        if j == 0:
            return [Stored(table, slice(first, row), ids[i::n_tables], True) for i, table in enumerate(tables)]
    return [Stored(write.table, write.index, ids[i], True) for i, write in enumerate(waiting)]


def rows_that_wait(writes: list[Write], share: float, frame_bytes: int) -> int:
    """Return how many such rows may be stored at once; what is kept of them until then is little.

    That is at most so many frames for each observation of their tables.
    """
    n_ids = 0
    for write in writes:
        n_ids += write.table.stored.size
    n_streams, stack = writes[0].table.stored.shape[-2:]
    room = int(min(share * n_ids / stack, _BYTES / frame_bytes))
    return min(ROWS, held.rows_in(room, n_streams, stack))
