"""Assignments on their way into a store. Those of a buffer's `add` may wait: several at once cost little more.

Between two steps of a training the code and data of a call come from far away, so that it takes five times as long as
in a loop; a copy of the observations does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sb3_extra_buffers.frames.observations import IdTable
    from sb3_extra_buffers.frames.store import Ids

_ROWS = 4  # that wait: more gain little, and fewer do not make up for the copy
_BYTES = 1 << 21  # of their observations, at most


class Write:
    """One assignment: observations `[n, *obs_shape]` to a place of a table."""

    __slots__ = ("ids", "index", "obs", "replaced", "streams", "table")
    ids: Ids  # of the observations, when they are stored

    def __init__(self, table: IdTable, index: Any, obs: NDArray[Any], streams: NDArray[np.int64]) -> None:
        self.table = table
        self.index = index
        self.obs = obs
        self.streams = streams
        self.replaced: Ids | None = None  # what the place had, from when it is written on


class Waiting:
    """Assignments that count as made, and are not stored yet.

    Attributes:
        writes: the assignments, in the order they came.
    """

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self._memory: list[tuple[Any, NDArray[Any]]] = []  # for the observations of each; how those lay

    @property
    def nbytes(self) -> int:
        """Bytes of the memory where observations wait, whether they do or not."""
        return sum(memory.nbytes for _, memory in self._memory)

    def keep(self, writes: list[Write], share: float) -> bool:
        """Copy the observations of `writes`, which may then be appended; False where there is no room for them.

        Args:
            writes: a row for each of some tables.
            share: rows of a table may wait where they are at most this part of all it has.
        """
        waiting, n_bytes = len(self.writes), 0
        for write in writes:
            n_bytes += write.obs.nbytes
            if share * len(write.table.stored) < _ROWS:
                return False
        if waiting >= _ROWS * len(writes) or _ROWS * n_bytes > _BYTES:
            return False
        for i, write in enumerate(writes, waiting):
            obs = write.obs
            if i >= len(self._memory) or self._memory[i][0] != obs.strides:
                self._memory[i:] = [(obs.strides, np.empty_like(obs))]  # it lies as they do: a fast copy
            write.obs = self._memory[i][1]
            np.copyto(write.obs, obs)
        return True
