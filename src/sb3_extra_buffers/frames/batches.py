"""Batches that are handed out: no copy that is not needed, no page that is faulted in twice."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1 << 20  # bytes: the allocator keeps smaller blocks by itself
_LARGEST = 1 << 25


class Recycler:
    """Memory of batches that nobody holds any more: large ones would be returned to the system and faulted in again.

    Keeps two blocks: a training mostly still holds its last batch when it samples the next.
    """

    def __init__(self) -> None:
        self._kept: deque[NDArray[np.uint8]] = deque(maxlen=2)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recycler, ()

    def memory(self, n: int) -> NDArray[np.uint8]:
        """Return `n` bytes that nobody else refers to."""
        if _ALONE and _SMALLEST <= n <= _LARGEST:
            for i, count in enumerate(_counts(self._kept)):
                if count == _ALONE and self._kept[i].size == n:
                    return self._kept[i]
            self._kept.append(np.empty(n, np.uint8))
            return self._kept[-1]
        return np.empty(n, np.uint8)


def _counts(kept: deque[NDArray[np.uint8]]) -> list[int]:
    return [sys.getrefcount(memory) for memory in kept]


# What `_counts` says of memory that only the deque refers to; 0 where counts mean nothing: then nothing is recycled.
_counting = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_ALONE = _counts(deque([np.empty(1, np.uint8)]))[0] if _counting else 0


class Fresh:
    """Remembers the batches just handed out, which nobody else holds: they need not be copied again."""

    def __init__(self) -> None:
        self._batches: deque[weakref.ref[NDArray[Any]]] = deque(maxlen=8)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fresh, ()

    def add(self, batch: NDArray[Any]) -> None:
        """Remember `batch`."""
        self._batches.append(weakref.ref(batch))

    def claim(self, batch: object) -> bool:
        """Tell whether `batch` is one of them; from now on it is not."""
        for i, reference in enumerate(self._batches):
            if reference() is batch:
                del self._batches[i]
                return True
        return False
