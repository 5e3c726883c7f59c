"""What glibc does with the memory that a training frees."""

from __future__ import annotations

import ctypes
import functools
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # as malloc.h has them
_KEPT = 1 << 28  # bytes that are free: from there on they are given back
_AHEAD = 1 << 27  # bytes of addresses to ask for at a time, so that blocks above the next figure fit in as well
_LARGEST = 1 << 25  # bytes of a block that may be kept; glibc accepts no more
_SWITCH = "SB3_EXTRA_BUFFERS_KEEP_MEMORY"
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


@functools.cache
def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MB that this process frees, for the next step of a training.

    What is given back to the system is faulted in again, page by page: a good part of the time that a training takes
    on a CPU (`benchmarks/training.py`). How much that is depends on which blocks happen to lie where; without this, PPO
    had more faults with our buffer than with SB3's.

    Nothing is changed where `SB3_EXTRA_BUFFERS_KEEP_MEMORY` is 0, where the environment has such settings already,
    where malloc is not glibc's, and a second time.
    """
    chosen = any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or os.environ.get(_SWITCH) == "0":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # on macOS, with musl, on Windows
        return
    # Each ends glibc's own choice of all three, so if the first is refused the others must not be made.
    if mallopt(_MMAP_THRESHOLD, _LARGEST):
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_TOP_PAD, _AHEAD)
