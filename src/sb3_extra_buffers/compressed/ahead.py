"""Copies of the rows that `add` is about to overwrite, to put one back when it raises.

To copy each row before it is written takes a tenth of an `add`, so many are copied at once. That can be done where
SB3's `add` is known to write its row of certain fields and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter, is_
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
_GET: dict[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] = {
    fields: attrgetter(*fields) for fields in (REPLAY, ROLLOUT)
}
ATTRIBUTES = tuple(f"_ahead_{name}" for name in ("next", "end", "full", "start", "held", "copies"))
"""What is kept in a buffer: of another object it would take longer to get."""


def fields_of(cls: Any) -> tuple[str, ...]:
    """Return the fields that `add` of a buffer class writes; nothing where that is not known."""
    return _fields_of(cls)


@functools.cache
def _fields_of(cls: Any) -> tuple[str, ...]:
    adds = (vars(base)["add"] for base in cls.__mro__ if "add" in vars(base) and not _is_ours(base))
    return WRITTEN.get(next(adds), ())


def _is_ours(base: type) -> bool:
    return base.__module__.partition(".")[0] == __name__.partition(".")[0] and hasattr(base, "_ahead_next")


def have(buffer: Any, fields: tuple[str, ...]) -> None:
    """See to it that there is a copy of the row at `pos`, which is written next."""
    row = buffer.pos
    if (
        row != buffer._ahead_next
        or row == buffer._ahead_end
        or buffer.full is not buffer._ahead_full
        or not all(map(is_, buffer._ahead_held, _GET[fields](buffer)))
    ):
        keep(buffer, fields)
    buffer._ahead_next = row + 1


def keep(buffer: Any, fields: tuple[str, ...]) -> None:
    """Copy the rows from `pos` up to `_ahead_end`, if there is something in them."""
    buffer._ahead_next = -1  # nothing is known, should this be interrupted
    if buffer.pos >= buffer.buffer_size:
        raise IndexError("the rollout is full")
    start, full = buffer.pos, buffer.full
    is_new = start == 0 and not full  # all rows are zeros: to read them would take longer than to write them
    held, before = _GET[fields](buffer), buffer._ahead_held
    if not before or dict in map(type, held) or not all(map(is_, before, held)):
        arrays, copies = _arrays(held), [copy for _, copy in buffer._ahead_copies]
        if [*map(_kind, copies)] != [_kind(array[:_ROWS]) for array in arrays]:
            copies = [np.empty_like(array[:_ROWS]) for array in arrays]
        buffer._ahead_copies, buffer._ahead_held = [*zip(arrays, copies, strict=True)], held  # in this order
    buffer._ahead_end = end = buffer.buffer_size if is_new else min(start + _ROWS, buffer.buffer_size)
    buffer._ahead_start, buffer._ahead_full = -1 if is_new else start, full
    if not is_new:
        for array, copy in buffer._ahead_copies:
            copy[: end - start] = array[start:end]


def put_back(buffer: Any, fields: tuple[str, ...]) -> None:
    """Undo what an `add` has written since `have` or `keep`. What somebody else wrote to that row since is lost."""
    row, start = buffer._ahead_next - 1, buffer._ahead_start
    buffer.pos, buffer.full = row, buffer._ahead_full
    kept, now = [array for array, _ in buffer._ahead_copies], _arrays(_GET[fields](buffer))
    arrays = now if [*map(_kind, now)] == [*map(_kind, kept)] else kept
    for array, (_, copy) in zip(arrays, buffer._ahead_copies, strict=True):
        array[row] = 0 if start < 0 else copy[row - start]


def forget(buffer: Any) -> None:
    """Let go of arrays and copies: a rollout gets new ones."""
    buffer._ahead_next, buffer._ahead_held, buffer._ahead_copies = -1, (), ()


def _arrays(held: tuple[Any, ...]) -> list[NDArray[Any]]:
    """Return those of the fields that are arrays of SB3's."""
    parts = [part for field in held for part in (field.values() if type(field) is dict else (field,))]
    return [part for part in parts if issubclass(type(part), np.ndarray)]  # `FrameArray` passes for an instance


def _kind(array: NDArray[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return array.shape, array.dtype
