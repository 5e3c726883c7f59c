"""Compile kernels with numba where it is installed.

A kernel is a plain function of arrays beside its NumPy reference. It is compiled on first use, from then on cached on
disk, without the GIL. No numba threads: its thread layers die under concurrent calls or after a fork.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import optional


@functools.cache
def compiled(kernel: Callable[..., Any], *signatures: str) -> Callable[..., Any]:
    """Return `kernel` compiled for exactly these signatures."""
    numba = optional.require("numba", "JIT compilation", "numba")
    return numba.njit(list(signatures), nogil=True, cache=True)(kernel)  # type: ignore[no-any-return]


def choose(kernel: Callable[..., Any], reference: Callable[..., Any], *signatures: str) -> Callable[..., Any]:
    """Return the compiled kernel, or its NumPy reference where numba is absent."""
    return compiled(kernel, *signatures) if optional.has_numba() else reference


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array`, or a copy of it, as kernels take it: in C order and writable."""
    return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")
