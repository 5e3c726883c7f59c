"""Copies of the rows that `add` is about to overwrite, to put one back when it raises.

To copy each row before it is written takes a tenth of an `add`, so many are copied at once. That can be done where
SB3's `add` is known to write its row of certain fields and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

_ROWS = 256  # copied at once
REPLAY = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
ROLLOUT = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs")
WRITTEN: dict[Callable[..., None], tuple[str, ...]] = {
    ReplayBuffer.add: REPLAY,
    DictReplayBuffer.add: REPLAY,
    RolloutBuffer.add: ROLLOUT,
    DictRolloutBuffer.add: ROLLOUT,
}
"""The fields of which these write a row, and nothing else."""
ATTRIBUTES = tuple(f"_ahead_{name}" for name in ("next", "end", "full", "start", "copies"))
"""What is kept in a buffer: of another object it would take longer to get."""


def fields_of(cls: Any) -> tuple[str, ...]:
    """Return the fields that `add` of a buffer class writes; nothing where that is not known."""
    return _fields_of(cls)


@functools.cache
def _fields_of(cls: Any) -> tuple[str, ...]:
    ours = __name__.partition(".")[0]
    adds = (vars(base)["add"] for base in cls.__mro__ if "add" in vars(base) and base.__module__.split(".")[0] != ours)
    return WRITTEN.get(next(adds), ())


def have(buffer: Any, fields: tuple[str, ...]) -> None:
    """See to it that there is a copy of the row at `pos`, which is written next."""
    row = buffer.pos
    if row != buffer._ahead_next or row == buffer._ahead_end or buffer.full is not buffer._ahead_full:
        keep(buffer, fields)
    buffer._ahead_next = row + 1


def keep(buffer: Any, fields: tuple[str, ...]) -> None:
    """Copy the rows from `pos` up to `_ahead_end`, if there is something in them."""
    buffer._ahead_next = -1  # nothing is known, should this be interrupted
    if buffer.pos >= buffer.buffer_size:
        raise IndexError("the rollout is full")
    start, full = buffer.pos, buffer.full
    is_new = start == 0 and not full  # all rows are zeros: to read them would take longer than to write them
    buffer._ahead_end = end = buffer.buffer_size if is_new else min(start + _ROWS, buffer.buffer_size)
    buffer._ahead_start, buffer._ahead_full = -1 if is_new else start, full
    if is_new:
        return
    arrays, copies = _arrays(buffer, fields), buffer._ahead_copies
    if [*map(_kind, copies)] != [*map(_kind, arrays)]:
        copies = buffer._ahead_copies = [np.empty_like(array[:_ROWS]) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        copy[: end - start] = array[start:end]


def put_back(buffer: Any, fields: tuple[str, ...]) -> None:
    """Undo what an `add` has written since `have` or `keep`."""
    row, start = buffer._ahead_next - 1, buffer._ahead_start
    buffer.pos, buffer.full = row, buffer._ahead_full
    for i, array in enumerate(_arrays(buffer, fields)):
        array[row] = 0 if start < 0 else buffer._ahead_copies[i][row - start]


def _arrays(buffer: Any, fields: tuple[str, ...]) -> list[NDArray[Any]]:
    """Return the fields that are arrays of SB3's, with a row for each step."""
    arrays: list[Any] = []
    for name in fields:
        held = getattr(buffer, name)  # `vars` would slow down every later access to an attribute
        arrays += held.values() if type(held) is dict else (held,)
    return [array for array in arrays if type(array) is np.ndarray]


def _kind(array: NDArray[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return array.shape[1:], array.dtype
