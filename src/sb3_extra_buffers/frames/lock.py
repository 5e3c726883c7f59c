"""A lock that survives `fork`, `pickle` and `deepcopy`."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class Lock:
    """Reentrant lock. A forked child gets it free, and what it guards whole; a pickled copy gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_held: list[Lock] = []


def _before_fork() -> None:
    """Wait until no thread is inside a guarded section, so that the child inherits nothing half done."""
    for lock in list(_locks):
        lock.__enter__()
        _held.append(lock)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().__exit__()


def _after_fork_in_child() -> None:
    # An RLock remembers its owner by thread id, which the forking thread keeps; still, start clean.
    while _held:
        _held.pop()._lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
