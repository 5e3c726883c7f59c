"""The `add` of replay buffers whose observations are short float vectors, kept in SB3's own arrays.

SB3 needs 4 us for it, so nothing is checked before, and what SB3 accepts is accepted. The rows that it is about to
overwrite are copied now and then, and put back when it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

_AHEAD = 256  # rows copied at once
_FIELDS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class Rows:
    """Copies of the next rows of SB3's arrays. Its user calls `keep` at row `end` and where `next` or `full` differ."""

    def __init__(self) -> None:
        self.next = self.end = -1
        self.full = False
        self._start = 0
        self._copies: list[NDArray[Any]] = []

    def keep(self, buffer: Any) -> None:
        """Copy the rows from `buffer.pos` on, if there is something in them."""
        self.next = -1  # nothing is known, should this be interrupted
        self._start, self.full = buffer.pos, buffer.full
        self.end = min(self._start + _AHEAD, buffer.buffer_size) if self.full else buffer.buffer_size
        rows = slice(self._start, self.end)
        self._copies = [array[rows].copy() for array in _arrays(buffer)] if self.full else []

    def put_back(self, buffer: Any, row: int) -> None:
        """Undo what an `add` to this row has written."""
        buffer.pos, buffer.full = row, self.full
        for i, array in enumerate(_arrays(buffer)):
            array[row] = self._copies[i][row - self._start] if self.full else 0


def _arrays(buffer: Any) -> list[NDArray[Any]]:
    return [getattr(buffer, name) for name in _FIELDS]  # `vars` would slow down every later access to an attribute


def quick_add(add: Callable[..., None], usual_add: Callable[..., None]) -> Callable[..., None]:
    """Return the method `add` of a replay buffer.

    Args:
        add: that of the SB3 class, which writes the fields above and nothing else.
        usual_add: that for other observations.
    """

    def quick(self: Any, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        rows = self._rows
        if rows is None:
            after = _adds_after(self.__class__, quick)
            if self._stores or self.observation_space.dtype.kind != "f" or after[:2] != (usual_add, add):
                after[0](self, obs, next_obs, action, reward, done, infos)
                return
            rows = self._rows = Rows()
        with self._lock:
            row, full = self.pos, self.full
            if row != rows.next or row == rows.end or full is not rows.full:
                rows.keep(self)
            rows.next = row + 1
            try:
                add(self, obs, next_obs, action, reward, done, infos)
                return
            except BaseException as error:
                rows.put_back(self, row)
                if not isinstance(error, Exception):
                    raise
        usual_add(self, obs, next_obs, action, reward, done, infos)  # its errors say what is wrong

    quick.__name__ = quick.__qualname__ = "add"
    quick.__doc__ = usual_add.__doc__
    _quick[quick] = usual_add, add
    return quick


def step_aside(cls: type) -> None:
    """Give a class that has inherited another `add` besides that one: it may take other arguments."""
    first, *after = _adds_after(cls, None)
    if first in _quick and tuple(after[:2]) != _quick[first]:
        cls.add = after[0]  # type: ignore[attr-defined]


_quick: dict[Callable[..., None], tuple[Callable[..., None], ...]] = {}  # what has to come after each


@functools.cache
def _adds_after(cls: type, add: Callable[..., None] | None) -> tuple[Callable[..., None], ...]:
    """Return the `add` of `cls` and its bases that come after this one, in the order of inheritance; None: all."""
    adds = [vars(base)["add"] for base in cls.__mro__ if "add" in vars(base)]
    return tuple(adds if add is None else adds[adds.index(add) + 1 :])
