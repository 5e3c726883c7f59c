"""A few threads of our own for kernels that run without the GIL.

Not numba's: its thread layers die under concurrent calls, or after a fork.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

WORTH = 1 << 20
"""Bytes of output from which another thread pays for being woken, of an ordinary decoder."""

_NAME = "sb3-extra-buffers"  # of the threads
_pool: ThreadPoolExecutor | None = None


def n_threads() -> int:
    """Return how many cores this process may use, at most 4: copying is soon bound by memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 4)


def split(n: int, n_bytes: int, work: Callable[[int, int], int], worth: int = WORTH) -> list[int]:
    """Call `work(start, stop)` on parts of `range(n)`, in threads if the output of `n_bytes` is worth it."""
    global _pool
    parts = min(n_bytes // worth + 1, n)
    parts = min(parts, n_threads()) if parts > 1 else parts
    if parts < 2:
        return [work(0, n)]
    if _pool is None:
        _pool = ThreadPoolExecutor(n_threads() - 1, _NAME)
    cuts = [n * part // parts for part in range(parts + 1)]
    others = [_pool.submit(work, start, stop) for start, stop in itertools.pairwise(cuts[1:])]
    try:
        return [work(cuts[0], cuts[1]), *(other.result() for other in others)]
    except BaseException:
        wait(others)  # they read what nobody holds on to from now on
        raise


def others_run() -> bool:
    """Tell whether there are threads besides this one and ours: they might write to what is being read."""
    threads = threading.enumerate() if threading.active_count() > 1 else []
    return any(not thread.name.startswith(_NAME) for thread in threads if thread is not threading.current_thread())


def _forget_threads() -> None:
    """A forked child has the pool but not its threads: make a new one when needed."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
