"""A lock that survives `fork`, `pickle` and `deepcopy`."""

from __future__ import annotations

import _thread
import os
import weakref
from typing import Any, TypeVar

T = TypeVar("T")


class Lock(_thread.RLock):  # type: ignore[misc] # only the stubs call it final
    """Reentrant lock. A forked child gets it free, and what it guards whole; a pickled copy gets a new one."""

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


def is_held_here(lock: Any) -> bool:
    """Tell whether this thread holds a reentrant lock."""
    return bool(lock._is_owned())  # what `threading.Condition` asks too


def all_of(kept: weakref.WeakSet[T]) -> list[T]:
    """Return what a weak set holds; other threads may add to it meanwhile."""
    while True:
        try:
            return list(kept)
        except RuntimeError:
            continue


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_held: list[Lock] = []


def _before_fork() -> None:
    """Wait until no thread is inside a guarded section, so that the child inherits nothing half done."""
    late = None
    for lock in sorted(all_of(_locks), key=id):  # in the same order in every thread that forks
        while True:
            try:
                lock.acquire()
                break
            except BaseException as error:  # of a signal's handler: to fork without the lock would be worse
                late = error
        _held.append(lock)
    if late is not None:
        raise late  # Python prints it


def _after_fork() -> None:
    """Free the locks, in the parent and in the child: the thread that holds them is in both."""
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
