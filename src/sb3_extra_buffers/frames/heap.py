"""Bytes of many small payloads, in segments that are dropped whole.

All segments lie in one array, one after another, so that a kernel sees one heap. Payloads are appended to the open
segment; a segment whose last payload is released is free and opened again later. A ring releases in the order it
writes, so memory stays near what is alive plus one segment, and nothing is ever moved.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Bytes, Ints, grown

_SEGMENT = 1 << 14
_STEP = 1 << 15  # the array grows by at most so much, unless more is needed, or it is so large that this is little
_LEAST = 1 << 12
_FRAMES = 4  # raw ones that fit into a segment, at least
_LARGE, _LARGE_FRAMES = range(1 << 15, 1 << 18), 8  # of those so large, whose payloads may be large, too


class StoreFullError(MemoryError):
    """What was to be stored does not fit into `max_bytes`; the store is as it was."""


class Budget:
    """How many bytes the stores of one buffer may take together."""

    def __init__(self, max_bytes: int | None = None) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int | np.integer | None):
            raise TypeError(f"max_bytes is a number of bytes or None for no limit, not {max_bytes!r}")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1 or None for no limit, not {max_bytes}")
        self.max_bytes = None if max_bytes is None else int(max_bytes)
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


def small_segment(frame_bytes: int) -> int:
    """Return the size of segments without regard to gaps: that of files which do not say it."""
    return frame_bytes * max(1, -(-_SEGMENT // frame_bytes))


class Heap:
    """Append-only segments of payload bytes."""

    def __init__(self, frame_bytes: int, budget: Budget) -> None:
        # Whole raw frames: incompressible ones leave no gap at the end. Others leave half a payload, which is little if
        # there are many in a segment.
        n = _LARGE_FRAMES if frame_bytes in _LARGE else _FRAMES
        self.segment_bytes = max(small_segment(frame_bytes), n * frame_bytes)
        self.data = np.empty(0, np.uint8)
        self.alive = np.zeros(0, np.int64)  # payloads per segment
        self.n_segments = 0
        self.opened = np.zeros(0, np.uint32)  # after which mark each segment was opened last
        self.marks = 0
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
            *(f"boolean({data}, {ints}, uint8[::1], int64, int64, {ints}, {ints}, {ints})" for data in readable),
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
        return self.data.nbytes + self.alive.nbytes + self.opened.nbytes

    def append(self, data: Bytes, lengths: Ints) -> Ints:
        """Copy payloads in; returns their offsets.

        Raises:
            StoreFullError: the budget does not allow it; nothing was changed.
        """
        offsets, copied, before = np.empty(len(lengths), np.int64), np.array((0, 0, self.at)), self.state
        try:
            while not self._copy_in(
                data, lengths, self.data, self.limit, self.segment_bytes, self.alive, offsets, copied
            ):
                self.at = int(copied[2])
                self.make_room(int(lengths[copied[0]]))
                copied[2] = self.at
        except BaseException:  # also of Ctrl-C: segment and position must belong together
            self.undo(before, offsets[: copied[0]])
            raise
        self.at = int(copied[2])
        return offsets

    @property
    def state(self) -> tuple[Any, ...]:
        """What `undo` needs to know of the time before some payloads were copied in."""
        return self.n_segments, self.free.copy(), self.segment, self.at, self.limit

    def undo(self, state: tuple[Any, ...], offsets: Ints) -> None:
        """Forget the payloads at `offsets`, the only ones that were copied in since `state`."""
        np.subtract.at(self.alive, offsets // self.segment_bytes, 1)
        self.n_segments, self.free, self.segment, self.at, self.limit = state

    def make_room(self, size: int) -> None:
        """Go where a payload of `size` bytes can be copied in: on in the open segment, or in another one.

        Raises:
            StoreFullError: the budget does not allow it.
        """
        if self.at + size > self.limit or self.at >= self.limit:
            self._open_segment()
        try:
            self._ensure(self.at + size)
        except StoreFullError:
            if not self.free:
                raise
            # The open segment is not all there yet and may not grow; another one is free.
            if self.alive[self.segment] == 0:
                self.free.insert(0, self.segment)
            self._open_segment()
            self._ensure(self.at + size)

    def mark(self) -> int:
        """Return a number for `written_since`: from now on."""
        self.marks += 1
        if self.segment >= 0:
            self.opened[self.segment] = self.marks
        return self.marks

    def written_since(self, mark: int) -> NDArray[np.bool_]:
        """Tell for each segment whether it may have been written to since. Only the open one is ever written to."""
        written: NDArray[np.bool_] = self.opened[: self.n_segments] >= mark
        return written

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
            self.segment = self.n_segments
            self.n_segments += 1
            if self.n_segments > len(self.alive):
                self.alive = grown(self.alive, 1 + len(self.alive) // 8)
            if self.n_segments > len(self.opened):
                self.opened = grown(self.opened, 1 + len(self.opened) // 8)
        self.opened[self.segment] = self.marks
        self.at = self.segment * self.segment_bytes
        self.limit = self.at + self.segment_bytes

    def _ensure(self, size: int) -> None:
        """Make the array at least `size` bytes long. It grows in small steps: slack is memory too."""
        more = size - self.data.size
        if more > 0:
            step = max(more, min(_STEP, self.data.size >> 6), self.data.size >> 9, _LEAST)
            try:
                self.budget.check(step)
            except StoreFullError:
                step = more
                self.budget.check(step)
            # realloc: large blocks are remapped, not copied. Nobody holds a view of `data` outside the store's lock.
            self.data.resize(self.data.size + step, refcheck=False)


def copy_in_kernel(
    data: Bytes, lengths: Ints, heap: Bytes, limit: int, segment_bytes: int, alive: Ints, offsets: Ints, copied: Ints
) -> bool:
    """Do as `copy_in_reference`."""
    end = min(limit, heap.size)
    for i in range(copied[0], lengths.size):
        start, at, size = copied[1], copied[2], lengths[i]
        if at + size > end or at >= limit:
            return False
        target, source = heap[at : at + size], data[start : start + size]
        for b in range(size):  # from 0: a sum as index is checked for counting from the end, byte by byte
            target[b] = source[b]
        offsets[i] = at
        alive[at // segment_bytes] += 1
        copied[0] += 1
        copied[1] += size
        copied[2] += size
    return True


def copy_in_reference(
    data: Bytes, lengths: Ints, heap: Bytes, limit: int, segment_bytes: int, alive: Ints, offsets: Ints, copied: Ints
) -> bool:
    """Copy payloads into the open segment, which ends at `limit`, and count them; returns False if one does not fit.

    `copied` says how many are, of how many bytes, and where the next one goes.
    """
    for i in range(copied[0], len(lengths)):
        _, start, at = copied.tolist()
        size = int(lengths[i])
        if at + size > min(limit, heap.size) or at >= limit:
            return False
        heap[at : at + size] = data[start : start + size]
        offsets[i] = at
        alive[at // segment_bytes] += 1
        copied += (1, size, size)
    return True
