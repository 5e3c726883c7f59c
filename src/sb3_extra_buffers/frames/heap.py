"""Bytes of many small payloads, in segments that are dropped whole.

All segments lie in one array, one after another, so that a kernel sees one heap. Payloads are appended to the open
segment; a segment whose last payload is released is free and opened again later. A ring releases in the order it
writes, so memory stays near what is alive plus one segment, and nothing is ever moved.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Bytes, Ints

_SEGMENT = 1 << 14
_STEP = 1 << 15  # the array grows by at most so much more than it must


class StoreFullError(MemoryError):
    """What was to be stored does not fit into `max_bytes`; the store is as it was."""


class Budget:
    """How many bytes the stores of one buffer may take together."""

    def __init__(self, max_bytes: int | None = None) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int | np.integer | None):
            raise TypeError(f"max_bytes is a number of bytes or None for no limit, not {max_bytes!r}")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1 or None for no limit, not {max_bytes}")
        self.max_bytes = max_bytes
        self.owners: weakref.WeakSet[Any] = weakref.WeakSet()  # whatever has `nbytes`

    def __getstate__(self) -> dict[str, Any]:
        return {"max_bytes": self.max_bytes, "owners": list(self.owners)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.max_bytes = state["max_bytes"]
        self.owners = weakref.WeakSet(state["owners"])

    def allows(self, more: int) -> bool:
        """Tell whether there is room for `more` bytes."""
        return self.max_bytes is None or self.used + more <= self.max_bytes

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return sum(owner.nbytes for owner in self.owners)

    def check(self, more: int) -> None:
        """Ask before growing by `more` bytes.

        Raises:
            StoreFullError: that is too much.
        """
        if not self.allows(more):
            needed = self.used + more
            raise StoreFullError(
                f"the observations need {needed:,} bytes, more than max_bytes={self.max_bytes:,}: "
                "raise it, or use a smaller buffer or a smaller compression_method"
            )


class Heap:
    """Append-only segments of payload bytes."""

    def __init__(self, frame_bytes: int, budget: Budget) -> None:
        # A whole number of raw frames: incompressible ones leave no gap at a segment's end.
        self.segment_bytes = frame_bytes * max(1, -(-_SEGMENT // frame_bytes))
        self.data = np.empty(0, np.uint8)
        self.alive = np.zeros(0, np.int64)  # payloads per segment
        self.free: list[int] = []
        self.budget = budget
        self.segment = -1  # the open one
        self.at = self.limit = 0
        self._compile()

    def _compile(self) -> None:
        ints = "int64[::1]"
        readable = ("uint8[::1]", "Array(uint8, 1, 'C', readonly=True)")
        self._copy_in = jit.choose(
            copy_in_kernel,
            copy_in_reference,
            *(f"int64({data}, {ints}, uint8[::1], int64, int64, {ints})" for data in readable),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.data = self.data.copy()  # unpickled arrays borrow their memory: they cannot be resized
        self._compile()

    @property
    def nbytes(self) -> int:
        """Every byte the heap owns."""
        return self.data.nbytes + self.alive.nbytes

    def append(self, data: Bytes, lengths: Ints) -> Ints:
        """Copy payloads in; returns their offsets.

        Raises:
            StoreFullError: the budget does not allow it; nothing was changed.
        """
        try:
            return self._append(data, lengths)
        except StoreFullError:
            if not self.free:
                raise
        # The open segment is not all there yet and may not grow; another one is free.
        if self.alive[self.segment] == 0:
            self.free.insert(0, self.segment)
        self._open_segment()
        return self._append(data, lengths)

    def _append(self, data: Bytes, lengths: Ints) -> Ints:
        n = len(lengths)
        offsets = np.empty(n, np.int64)
        if self.at < self.limit and self.at + data.size <= self.limit:  # the usual case
            self._ensure(self.at + data.size)
            self.at = self._copy_in(data, lengths, self.data, self.at, self.limit, offsets)
            self.alive[self.segment] += n
            return offsets
        before = (self.alive, self.free.copy(), self.segment, self.at, self.limit)
        ends = np.cumsum(lengths)
        first = copied = 0
        runs: list[tuple[int, int, int]] = []  # (where in the heap, where in data, bytes)
        try:
            while first < n:
                last = int(np.searchsorted(ends, copied + self.limit - self.at, side="right"))
                if last == first or self.at == self.limit:
                    self._open_segment()
                    continue
                size = int(ends[last - 1]) - copied
                starts = self.at - copied + ends[first:last] - lengths[first:last]
                offsets[first:last] = np.minimum(starts, self.limit - 1)  # an empty payload after a full segment
                runs.append((self.at, copied, size))
                self.at, copied, first = self.at + size, copied + size, last
            self._ensure(max((at + size for at, _, size in runs), default=0))
        except StoreFullError:
            self.alive, self.free, self.segment, self.at, self.limit = before
            raise
        for at, start, size in runs:
            self.data[at : at + size] = data[start : start + size]
        np.add.at(self.alive, offsets // self.segment_bytes, 1)
        return offsets

    def reopen(self, segments: Ints) -> None:
        """Use segments again of which no payload is alive."""
        for segment in segments.tolist():
            if segment == self.segment:
                self.at = segment * self.segment_bytes
            else:
                self.free.append(segment)

    def _open_segment(self) -> None:
        if self.free:
            self.segment = self.free.pop()
        else:
            self.segment = len(self.alive)
            self.alive = np.append(self.alive, 0)
        self.at = self.segment * self.segment_bytes
        self.limit = self.at + self.segment_bytes

    def _ensure(self, size: int) -> None:
        """Make the array at least `size` bytes long. It grows in small steps: slack is memory too."""
        more = size - self.data.size
        if more > 0:
            step = max(more, min(_STEP, self.data.size >> 6), 4096)
            try:
                self.budget.check(step)
            except StoreFullError:
                step = more
                self.budget.check(step)
            # realloc: large blocks are remapped, not copied. Nobody holds a view of `data` outside the store's lock.
            self.data.resize(self.data.size + step, refcheck=False)


def copy_in_kernel(data: Bytes, lengths: Ints, heap: Bytes, at: int, limit: int, offsets: Ints) -> int:
    """Do as `copy_in_reference`."""
    for i in range(lengths.size):
        offsets[i] = min(at, limit - 1)
        at += lengths[i]
    for b in range(data.size):
        heap[at - data.size + b] = data[b]
    return at


def copy_in_reference(data: Bytes, lengths: Ints, heap: Bytes, at: int, limit: int, offsets: Ints) -> int:
    """Copy the payloads to `at` and on; writes their offsets (inside the segment, also that of an empty last one)."""
    offsets[:] = np.minimum(at + np.cumsum(lengths) - lengths, limit - 1)
    heap[at : at + data.size] = data
    return at + data.size
