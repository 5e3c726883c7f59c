"""The `add` of buffers whose observations are short float vectors, kept in SB3's own arrays.

SB3 needs 4 us for it, so nothing is checked before, and what SB3 accepts is accepted. When it raises, the row that it
has begun to write is put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sb3_extra_buffers.compressed import ahead
from sb3_extra_buffers.frames.lock import is_held_here

ATTRIBUTES = ("_vector_lock",)
"""What it keeps in a buffer, from the first `add` on, besides those of `ahead`: acquire, release."""


def quick_add(add: Callable[..., None], usual_add: Callable[..., None]) -> Callable[..., None]:
    """Return the method `add` of a buffer.

    Args:
        add: that of the SB3 class, one of those that `ahead` knows; it takes six arguments.
        usual_add: that for other observations.
    """
    fields = ahead.WRITTEN[add]

    def quick(self: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        lock = self._vector_lock
        if lock is None:
            after = _adds_after(self.__class__, quick)
            if self._stores or self.observation_space.dtype.kind != "f" or after[:2] != (usual_add, add):
                after[0](self, a, b, c, d, e, f)
                return
            self._vector_lock = lock = self._lock.acquire, self._lock.release
        acquire, release = lock
        begun = False
        try:
            acquire()  # `with`, or the lock's methods, take longer
            row = self.pos
            if row != self._ahead_next or row == self._ahead_end or self.full is not self._ahead_full:
                ahead.keep(self, fields)
            self._ahead_next = row + 1
            begun = True
            add(self, a, b, c, d, e, f)
            release()
            return
        except BaseException as error:
            if not is_held_here(self._lock):  # Ctrl-C came before, or after all was done
                raise
            try:
                if begun:
                    ahead.put_back(self, fields)
            finally:
                release()
            if not isinstance(error, Exception) or _are_right(self, a, b, c, d, e, f):
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


def _are_right(buffer: Any, *args: Any) -> bool:
    """Tell whether an `add` that raised was given what it takes: then something else is wrong."""
    try:
        buffer._checked_fields(args, {})
    except Exception:
        return False
    return True


_quick: dict[Callable[..., None], tuple[Callable[..., None], ...]] = {}  # what has to come after each


@functools.cache
def _adds_after(cls: type, add: Callable[..., None] | None) -> tuple[Callable[..., None], ...]:
    """Return the `add` of `cls` and its bases that come after this one, in the order of inheritance; None: all."""
    adds = [vars(base)["add"] for base in cls.__mro__ if "add" in vars(base)]
    return tuple(adds if add is None else adds[adds.index(add) + 1 :])
