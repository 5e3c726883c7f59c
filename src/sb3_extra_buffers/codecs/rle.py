"""`rle` and `rle-jit`: run-length encoding, one format, by NumPy or compiled.

A payload of n runs is `runs: runs_type[n]` then `items: item[n]`. Items are compared as bytes, so NaN payloads and
`-0.0` survive.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_extra_buffers.codecs import jit, optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Ints

Items = NDArray[Any]


@dataclass(frozen=True)
class Rle(Codec):
    """Runs of equal items, found with NumPy.

    Attributes:
        item_bytes: size of one item: 1 for uint8, 4 for float32.
        runs_type: integer type of a run's length; longer runs are split. None: the smallest that holds a whole frame.
    """

    name = "rle"
    item_bytes: int = 1
    runs_type: DTypeLike | None = None

    def __post_init__(self) -> None:
        if self.runs_type is not None:
            object.__setattr__(self, "runs_type", np.dtype(self.runs_type))  # equal settings make equal codecs
            if np.dtype(self.runs_type).kind not in "iu":
                raise ValueError(f"runs_type is an integer type, not {self.runs_type}")

    def encode(self, frame: Bytes) -> bytes:
        items, runs_type = self._view(frame), self._runs_type(frame)
        starts, runs = self._find(items, int(np.iinfo(runs_type).max))
        return bytes(runs.astype(runs_type).tobytes() + items[starts].tobytes())

    def decode(self, payload: Bytes, out: Bytes) -> None:
        items, runs_type = self._view(out), self._runs_type(out)
        n, rest = divmod(payload.size, runs_type.itemsize + self.item_bytes)
        if rest:
            raise CodecError(f"rle: {payload.size} bytes are no whole number of runs")
        cut = n * runs_type.itemsize
        runs = np.frombuffer(payload[:cut].tobytes(), runs_type).astype(np.int64)
        if n == 0 or runs.min() < 1 or runs.max() > items.size or runs.sum() != items.size:
            raise CodecError(f"rle: the runs do not fill a frame of {items.size} items")
        self._expand(np.frombuffer(payload[cut:].tobytes(), items.dtype), runs, items)

    def _view(self, frame: Bytes) -> Items:
        return frame.view(f"<u{self.item_bytes}")

    def _runs_type(self, frame: Bytes) -> np.dtype[Any]:
        if self.runs_type is None:
            return np.min_scalar_type(frame.size // self.item_bytes).newbyteorder("<")
        return np.dtype(self.runs_type).newbyteorder("<")

    def _find(self, items: Items, longest: int) -> tuple[Ints, Ints]:
        return find_runs_reference(items, longest)

    def _expand(self, items: Items, runs: Ints, out: Items) -> None:
        out[:] = np.repeat(items, runs)


@dataclass(frozen=True)
class RleJit(Rle):
    """The same format as `rle`, found and expanded by compiled loops."""

    name = "rle-jit"

    @classmethod
    def from_level(cls, level: int | None, **settings: Any) -> Codec:
        """Return the codec, or `rle` with a warning where numba is missing."""
        if optional.has_numba():
            return super().from_level(level, **settings)
        warnings.warn(
            'rle-jit falls back to rle; for speed: pip install "sb3-extra-buffers[numba]"', UserWarning, stacklevel=2
        )
        return Rle.from_level(level, **settings)

    def coder(self, frame_bytes: int) -> Coder:
        """Open the codec, compiled from here on: no pause in the first training step."""
        _kernels(self.item_bytes)
        return super().coder(frame_bytes)

    def _find(self, items: Items, longest: int) -> tuple[Ints, Ints]:
        starts, runs = np.empty(items.size, np.int64), np.empty(items.size, np.int64)
        items = np.require(items, requirements="W")  # compiled code takes no read-only arrays
        n = _kernels(self.item_bytes)[0](items, longest, starts, runs)
        return starts[:n], runs[:n]

    def _expand(self, items: Items, runs: Ints, out: Items) -> None:
        _kernels(self.item_bytes)[1](items, runs, out)


def find_runs_reference(items: Items, longest: int) -> tuple[Ints, Ints]:
    """Return the start and length of each run of equal items, none longer than `longest`."""
    edges = np.flatnonzero(items[1:] != items[:-1]) + 1
    starts = np.concatenate([[0], edges]).astype(np.int64)
    runs = np.diff(starts, append=items.size)
    if runs.max() <= longest:
        return starts, runs
    pieces = -(-runs // longest)  # how many runs each one is cut into
    piece = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(starts, pieces) + piece * longest
    return starts, np.diff(starts, append=items.size)


def _find_runs_kernel(items: Items, longest: int, starts: Ints, runs: Ints) -> int:
    n = 0
    start = 0
    for i in range(1, items.size + 1):
        if i == items.size or items[i] != items[start] or i - start == longest:
            starts[n] = start
            runs[n] = i - start
            n += 1
            start = i
    return n


def _expand_kernel(items: Items, runs: Ints, out: Items) -> None:
    at = 0
    for i in range(items.size):
        for j in range(at, at + runs[i]):
            out[j] = items[i]
        at += runs[i]


@functools.cache
def _kernels(item_bytes: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    item = f"uint{8 * item_bytes}"
    # NumPy hands out read-only arrays over payload bytes; `Array(..., readonly=True)` has no short spelling.
    find = jit.compiled(_find_runs_kernel, f"int64({item}[::1], int64, int64[::1], int64[::1])")
    expand = jit.compiled(_expand_kernel, f"void(Array({item}, 1, 'C', readonly=True), int64[::1], {item}[::1])")
    return find, expand
