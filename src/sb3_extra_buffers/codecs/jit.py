"""Compile kernels with numba where it is installed.

A kernel is a plain function of arrays beside its NumPy reference. It is compiled on first use, from then on cached on
disk, without the GIL. No numba threads: its thread layers die under concurrent calls or after a fork.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import optional


@functools.cache
def compiled(kernel: Callable[..., Any], *signatures: str) -> Callable[..., Any]:
    """Return `kernel` compiled for exactly these signatures."""
    numba = optional.require("numba", "JIT compilation", "numba")
    with _alone():
        return numba.njit(list(signatures), nogil=True, cache=True)(kernel)  # type: ignore[no-any-return]


@contextmanager
def _alone() -> Iterator[None]:
    """Let other processes wait: two that save at once in numba's cache may give two signatures the same file."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with Path(__file__).open("rb") as file:
        with suppress(OSError):  # a file system that cannot lock
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do: a child forked meanwhile has the file too


def choose(kernel: Callable[..., Any], reference: Callable[..., Any], *signatures: str) -> Callable[..., Any]:
    """Return the compiled kernel, or its NumPy reference where numba is absent."""
    return compiled(kernel, *signatures) if optional.has_numba() else reference


def has_vectors() -> bool:
    """Tell whether the kernels of `vectors` can be used: with numba, on a processor that has these instructions."""
    if not optional.has_numba():
        return False
    from sb3_extra_buffers.codecs import vectors

    return vectors.AVAILABLE


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array`, or a copy of it, as kernels take it: in C order and writable."""
    return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")
