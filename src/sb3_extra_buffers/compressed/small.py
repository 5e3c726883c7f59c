"""The `add` of buffers whose observations are short float vectors, kept in SB3's own arrays.

SB3 needs 3 us for it, so nothing is checked before, and what SB3 accepts is accepted. When it raises, the row that it
has begun to write is put back.

To take a lock would cost a twentieth of that. So the thread that has made the buffer, `_adder`, goes without it as long
as no other one asks for it. Who does changes the sign of `_adder`, so that this thread takes the lock from now on; and
if it finds on its stack that it is adding just now, waits until it is done. So does everybody who comes before that is
over, when nobody is `_adder` any more.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from sb3_extra_buffers.compressed import ahead
from sb3_extra_buffers.frames.lock import all_of, is_held_here

ATTRIBUTES = ("_adder",)
"""What it keeps in a buffer, besides those of `ahead`. One that was copied or loaded has it no more."""
NOBODY = 0
_codes: set[CodeType] = set()  # of the methods that add without a lock


def quick_add(add: Callable[..., None], usual_add: Callable[..., None]) -> Callable[..., None]:
    """Return the method `add` of a buffer.

    Args:
        add: that of the SB3 class, one of those that `ahead` knows; it takes six arguments.
        usual_add: that for other observations.
    """
    fields = ahead.WRITTEN[add]

    def quick(self: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        row = self.pos
        if (
            self._adder == get_ident()
            and row == self._ahead_next
            and row != self._ahead_end
            and self.full is self._ahead_full
        ):
            try:
                self._ahead_next = row + 1
                add(self, a, b, c, d, e, f)
                return
            except BaseException as error:
                if self._ahead_next == row + 1:
                    ahead.put_back(self, fields)
                if not _is_refused(self, error, a, b, c, d, e, f):
                    raise
        slow(self, a, b, c, d, e, f)

    def slow(self: Any, *args: Any) -> None:
        if not _suits(self, quick):
            _adds_after(self.__class__, quick)[0](self, *args)
            return
        lock, begun = self._lock, False
        try:
            lock.acquire()
            ahead.have(self, fields)
            begun = True
            add(self, *args)
            lock.release()
            return
        except BaseException as error:
            if not is_held_here(lock):  # Ctrl-C came before, or after all was done
                raise
            try:
                if begun:
                    ahead.put_back(self, fields)
            finally:
                lock.release()
            if not _is_refused(self, error, *args):
                raise
        usual_add(self, *args)  # its errors say what is wrong

    code, names = quick.__code__, add.__code__.co_varnames[: quick.__code__.co_argcount]
    quick.__code__ = code.replace(co_varnames=names + code.co_varnames[len(names) :])  # arguments by SB3's names
    functools.update_wrapper(quick, add)
    quick.__doc__ = usual_add.__doc__
    _quick[quick] = usual_add, add
    _codes.add(quick.__code__)
    return quick


def step_aside(cls: type) -> None:
    """Give a class that has inherited another `add` besides that one: it may take other arguments."""
    first, *after = _adds_after(cls, None)
    if first in _quick and tuple(after[:2]) != _quick[first]:
        cls.add = after[0]  # type: ignore[attr-defined]


def is_adding(buffer: Any) -> bool:
    """Tell whether this thread is in the middle of an `add`, if without the lock: in the handler of a signal."""
    return _add_of(buffer, sys._getframe()) is not None


def _add_of(buffer: Any, frame: FrameType | None) -> FrameType | None:
    """Return the frame of `add`, of those that have called `frame`, if there is one: the first of several."""
    found = None
    while frame is not None:
        if frame.f_code in _codes and frame.f_locals["self"] is buffer:
            found = frame
        frame = frame.f_back
    return found


def _suits(buffer: Any, quick: Callable[..., None]) -> bool:
    """Tell whether a buffer may be added to unchecked: with `quick`, which was called or found in its class."""
    if buffer._stores or buffer.observation_space.dtype.kind != "f":
        return False
    return _adds_after(buffer.__class__, quick)[:2] == _quick[quick]


def go_without_lock(buffer: Any) -> None:
    """Let this thread add without the lock to a buffer that no other one knows yet, if that has such an `add`."""
    add = type(buffer).add
    if add in _quick and _suits(buffer, add):
        _without_lock.add(buffer)
        buffer._adder = get_ident()


def let_others_in(buffer: Any) -> None:
    """Have the thread that adds without the lock take it from now on, unless it is this one; wait until it is done."""
    adder = abs(buffer._adder)
    if adder in (NOBODY, get_ident()) or is_held_here(buffer._guard):  # who holds it has waited
        return
    buffer._adder = -adder
    under_way = _add_of(buffer, sys._current_frames().get(adder))
    while under_way is not None and _add_of(buffer, sys._current_frames().get(adder)) is under_way:
        time.sleep(0)
    buffer._adder = NOBODY


_without_lock: weakref.WeakSet[Any] = weakref.WeakSet()  # buffers that may be added to without their lock


def _before_fork() -> None:
    for buffer in all_of(_without_lock):
        let_others_in(buffer)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before_fork)


def _is_refused(buffer: Any, error: BaseException, *args: Any) -> bool:
    """Tell whether an `add` raised because of its arguments; else something else is wrong."""
    if not isinstance(error, Exception):
        return False
    try:
        buffer._checked_fields(args, {})
    except Exception:
        return True
    return False


_quick: dict[Callable[..., None], tuple[Callable[..., None], ...]] = {}  # what has to come after each


@functools.cache
def _adds_after(cls: type, add: Callable[..., None] | None) -> tuple[Callable[..., None], ...]:
    """Return the `add` of `cls` and its bases that come after this one, in the order of inheritance; None: all."""
    adds = [vars(base)["add"] for base in cls.__mro__ if "add" in vars(base)]
    return tuple(adds if add is None else adds[adds.index(add) + 1 :])
