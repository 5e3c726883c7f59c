"""The `add` of buffers whose observations are short float vectors, kept in SB3's own arrays.

SB3 needs 4 us for it, so nothing is checked before, and what SB3 accepts is accepted. The rows that it is about to
overwrite are copied now and then, and put back when it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.frames.lock import is_held_here

_AHEAD = 256  # rows copied at once
REPLAY = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
ROLLOUT = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs")
ATTRIBUTES = tuple(f"_vector_{name}" for name in ("acquire", "release", "next", "end", "full", "start", "copies"))
"""What it keeps in a buffer, from the first `add` on: of another object they would take longer to get."""


def _begin(buffer: Any) -> Callable[[], Any]:
    buffer._vector_next = buffer._vector_end = -1
    buffer._vector_full, buffer._vector_copies = False, []
    buffer._vector_release = buffer._lock.release
    buffer._vector_acquire = acquire = buffer._lock.acquire
    return acquire  # type: ignore[no-any-return]


def _keep(buffer: Any, fields: tuple[str, ...]) -> None:
    """Copy the rows from `pos` up to `_vector_end`, if there is something in them."""
    buffer._vector_next = -1  # nothing is known, should this be interrupted
    if buffer.pos >= buffer.buffer_size:
        raise IndexError("the rollout is full")
    start, full = buffer.pos, buffer.full
    is_new = start == 0 and not full  # all rows are zeros: to read them would take longer than to write them
    buffer._vector_end = end = buffer.buffer_size if is_new else min(start + _AHEAD, buffer.buffer_size)
    buffer._vector_start, buffer._vector_full = -1 if is_new else start, full
    if is_new:
        return
    arrays, copies = _arrays(buffer, fields), buffer._vector_copies
    if not copies or any(copy.shape[1:] != array.shape[1:] for copy, array in zip(copies, arrays, strict=True)):
        copies = buffer._vector_copies = [np.empty_like(array[:_AHEAD]) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        copy[: end - start] = array[start:end]


def _put_back(buffer: Any, row: int, fields: tuple[str, ...]) -> None:
    """Undo what an `add` to this row has written."""
    buffer.pos, buffer.full = row, buffer._vector_full
    start = buffer._vector_start
    for i, array in enumerate(_arrays(buffer, fields)):
        array[row] = 0 if start < 0 else buffer._vector_copies[i][row - start]


def _arrays(buffer: Any, fields: tuple[str, ...]) -> list[NDArray[Any]]:
    return [getattr(buffer, name) for name in fields]  # `vars` would slow down every later access to an attribute


def quick_add(
    add: Callable[..., None], usual_add: Callable[..., None], fields: tuple[str, ...] = REPLAY
) -> Callable[..., None]:
    """Return the method `add` of a buffer.

    Args:
        add: that of the SB3 class, which takes six arguments, and writes the fields and nothing else.
        usual_add: that for other observations.
        fields: `REPLAY` or `ROLLOUT`.
    """

    def quick(self: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        acquire = self._vector_acquire
        if acquire is None:
            after = _adds_after(self.__class__, quick)
            if self._stores or self.observation_space.dtype.kind != "f" or after[:2] != (usual_add, add):
                after[0](self, a, b, c, d, e, f)
                return
            acquire = _begin(self)
        begun = -1
        try:
            acquire()  # `with` takes longer
            row = self.pos
            if row != self._vector_next or row == self._vector_end or self.full is not self._vector_full:
                _keep(self, fields)
            self._vector_next = row + 1
            begun = row
            add(self, a, b, c, d, e, f)
            self._vector_release()
            return
        except BaseException as error:
            if not is_held_here(self._lock):  # Ctrl-C came before, or after all was done
                raise
            try:
                if begun >= 0:
                    _put_back(self, begun, fields)
            finally:
                self._vector_release()
            if not isinstance(error, Exception):
                raise
        usual_add(self, a, b, c, d, e, f)  # its errors say what is wrong

    code, names = quick.__code__, add.__code__.co_varnames[: quick.__code__.co_argcount]
    quick.__code__ = code.replace(co_varnames=names + code.co_varnames[len(names) :])  # arguments by SB3's names
    functools.update_wrapper(quick, add)
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
