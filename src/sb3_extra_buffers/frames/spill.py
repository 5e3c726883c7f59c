"""Payloads in a memory-mapped file, so that they may exceed the memory: `spill_dir=`.

The heap stays one array for the kernels; its pages come from a file that has no name and goes with the process. The
kernel writes them out and reads them when they are needed. What is mapped counts as this process's memory, so pages are
unmapped when they become many: what was written or read lately is then still in the system's cache, as long as it has
memory for that. Room in the file is reserved before it is used: a full disk is an error, not a crash.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes, Codec, Ints, grown
from sb3_extra_buffers.frames.files import DamagedFileError, checksum
from sb3_extra_buffers.frames.heap import Budget, Heap, StoreFullError
from sb3_extra_buffers.frames.lock import Lock
from sb3_extra_buffers.frames.store import FrameStore, Ids

HOT = 1 << 26
"""Bytes of the file that may be mapped, unless `max_bytes` is small."""

_STEP = 1 << 24  # the file grows by at least so much
_FRAMES = 16  # read at once: the kernel may map 2 MB around each


@dataclass(frozen=True)
class Spill:
    """Where payloads go, and whether they are checked when they come back. Copies of a buffer are in memory again.

    Raises:
        ValueError: there is no such folder, or the system has no memory-mapped files that can be unmapped.
    """

    folder: Path
    verify: bool = False

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise ValueError(f"spill_dir is an existing folder, not {str(self.folder)!r}")
        if not hasattr(mmap, "MADV_DONTNEED") or not hasattr(os, "posix_fallocate"):
            raise ValueError("spill_dir needs Linux: other systems do not unmap pages on request")

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


class SpilledHeap(Heap):
    """A heap whose array is a file."""

    def __init__(self, frame_bytes: int, budget: Budget, spill: Spill) -> None:
        self._file, name = tempfile.mkstemp(dir=spill.folder, prefix="sb3-extra-buffers-")
        os.unlink(name)  # from now on it lasts as long as it is open
        self._status = os.open("/proc/self/statm", os.O_RDONLY)
        for opened in (self._file, self._status):
            weakref.finalize(self, os.close, opened)
        self._folder = spill.folder
        self._process = os.getpid()
        self._map: mmap.mmap | None = None
        self._array = np.empty(0, np.uint8)
        self._hot = HOT if budget.max_bytes is None else min(HOT, budget.max_bytes // 4)
        self._mapped_before = self._mapped()
        self._verify = spill.verify
        self._digests = np.zeros(0, np.uint64)  # of segments that are closed, 0 of others
        self._checked: set[int] = set()  # since pages were unmapped last
        super().__init__(frame_bytes, budget)

    def __reduce__(self) -> tuple[Any, ...]:
        size = min(self._array.size, self.n_segments * self.segment_bytes)
        copied = np.empty(size, np.uint8)
        step = _STEP // self.segment_bytes * self.segment_bytes or self.segment_bytes
        for start in range(0, size, step):
            self.look(start, min(start + step, size))
            copied[start : start + step] = self.data[start : min(start + step, size)]
        return _new, (Heap,), {**self.__getstate__(), "data": copied}

    @property
    def data(self) -> Bytes:
        """The array.

        Raises:
            RuntimeError: in a forked child, which shares the file with its parent.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "this buffer spills to a file that belongs to the parent process: save it there and load it here"
            )
        self.relax()
        return self._array

    @data.setter
    def data(self, array: Bytes) -> None:
        """Take an array that `room` gave, or an empty one."""
        if array.size and not np.shares_memory(array, self._array):
            raise ValueError("a spilled heap has its own memory: ask for room")

    def room(self, size: int) -> Bytes:
        """Return the first `size` bytes of the array; it grows if it has to."""
        self._ensure(size)
        return self.data[:size]

    @property
    def nbytes(self) -> int:
        """Every byte of memory: of the file, what may be mapped."""
        return min(self._array.size, self._hot) + self.alive.nbytes + self.opened.nbytes + self._digests.nbytes

    def relax(self) -> None:
        """Unmap the file if much of it is mapped."""
        if self._map is not None and self._mapped() - self._mapped_before > self._hot:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._mapped_before = self._mapped()
            self._checked.clear()

    def look(self, start: int, stop: int) -> None:
        """Prepare to read the bytes from `start` to `stop`: unmap others if they are many, and check these.

        Raises:
            DamagedFileError: a segment is not what was written.
        """
        self.relax()
        self.check(np.arange(start, stop, self.segment_bytes))

    def check(self, offsets: Ints) -> None:
        """Check the segments of payloads that are about to be read, unless they are hot.

        Raises:
            DamagedFileError: a segment is not what was written.
        """
        if not self._verify:
            return
        for segment in {*(offsets // self.segment_bytes).tolist()} - self._checked - {self.segment}:
            known = self._digests[segment : segment + 1]  # none of the frame of zeros, before anything is written
            if known.any() and known[0] != self._digest(segment):
                raise DamagedFileError(f"payloads that were spilled to {self._folder} came back damaged")
            self._checked.add(segment)

    def seal(self) -> None:
        """Take what is there now for what was written: after loading."""
        if self._verify:
            self._digests = np.array([self._digest(segment) for segment in range(self.n_segments)], np.uint64)

    def _digest(self, segment: int) -> np.uint64:
        """Return the checksum of a segment; 0 if nothing was ever written to it."""
        self.relax()
        start = segment * self.segment_bytes
        content = self._array[start : start + self.segment_bytes]
        return np.uint64(int(checksum(content), 16) if content.size == self.segment_bytes else 0)

    def _open_segment(self) -> None:
        closed = self.segment
        super()._open_segment()
        if self._verify:
            if self.segment >= len(self._digests):
                self._digests = grown(self._digests, self.segment + 1 - len(self._digests) + len(self._digests) // 8)
            if closed >= 0:
                self._digests[closed] = self._digest(closed)
            self._digests[self.segment] = 0
            self._checked.discard(self.segment)

    def _ensure(self, size: int) -> None:
        """Make the file at least `size` bytes long, with room for it on the disk. Segments are in it whole."""
        more = -(-size // self.segment_bytes) * self.segment_bytes - self._array.size
        if more > 0:
            self.budget.check(min(more, max(self._hot - self._array.size, 0)))
            larger = self._array.size + max(more, _STEP, self._array.size >> 3)
            larger = -(-larger // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            try:
                os.posix_fallocate(self._file, 0, larger)
            except OSError as error:
                raise StoreFullError(f"no room for {larger:,} bytes in spill_dir {self._folder}: {error}") from error
            self._map = mmap.mmap(self._file, larger)
            self._array = np.frombuffer(self._map, np.uint8)

    def _mapped(self) -> int:
        """Return how many bytes of files this process has mapped, all together."""
        return int(os.pread(self._status, 200, 0).split()[2]) * mmap.PAGESIZE


class SpilledFrames(FrameStore):
    """A frame store whose payloads are in a file."""

    heap: SpilledHeap

    def __init__(
        self, frame_bytes: int, codec: Codec, stack: int, streams: int, budget: Budget, lock: Lock, spill: Spill
    ) -> None:
        super().__init__(frame_bytes, codec, stack, streams, budget, lock)
        self.heap = SpilledHeap(frame_bytes, budget, spill)

    def __reduce__(self) -> tuple[Any, ...]:
        return _new, (FrameStore,), self.__getstate__()

    def take(self, ids: NDArray[Any], out: Bytes) -> None:
        """Decode as `FrameStore` does; some at a time, so that not too much is mapped."""
        with self.lock:
            for start in range(0, len(ids), _FRAMES):
                some = ids[start : start + _FRAMES]
                self.heap.relax()
                self.heap.check(self.offsets[some])
                super().take(some, out[start : start + _FRAMES])

    def take_both(self, first: Ids, second: Ids, out: Bytes) -> None:
        """Decode one after the other, some at a time."""
        self.take(first.reshape(-1), out[: first.size])
        self.take(second.reshape(-1), out[first.size :])


def _new(cls: Callable[..., Any]) -> Any:
    return object.__new__(cls)  # type: ignore[arg-type]


def _nothing() -> None:
    """Return what copies have in the place of a `Spill`."""
