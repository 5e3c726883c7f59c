"""What crosses the network: arrays of numbers, compressed, in one block of bytes.

Observations travel as `[..., 2, *obs_shape]`, each beside its next one, steps of one env after another. Frames that
occur again are then near their last occurrence, and zstd finds them: a stack of 4 and its next one cost little more
than the one new frame.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

LEVEL = 3
"""Of zstd. Higher ones save a tenth of the bytes and take twice the time."""


class Part(NamedTuple):
    """One array of a parcel."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Parcel(NamedTuple):
    """Several arrays; array i is `data[offsets[i]:offsets[i + 1]]`, compressed."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of data and offsets."""
        return self.data.nbytes + self.offsets.nbytes


class _Contexts(threading.local):
    """What zstd works with: it is large, and of one thread at a time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def pack(arrays: Mapping[str, NDArray[Any]]) -> Parcel:
    """Return a parcel of named arrays."""
    raw = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
    payloads = [_contexts.compressor.compress(array.data) for array in raw]
    offsets = np.cumsum([0, *map(len, payloads)], dtype=np.int64)
    parts = tuple(Part(name, array.dtype.str, array.shape) for name, array in arrays.items())
    return Parcel(np.frombuffer(b"".join(payloads), np.uint8), offsets, parts)


def unpack(parcel: Parcel) -> dict[str, NDArray[Any]]:
    """Return the arrays of a parcel, read-only."""
    found = {}
    for part, payload in _payloads(parcel):
        raw = _contexts.decompressor.decompress(payload)
        found[part.name] = np.frombuffer(raw, np.dtype(part.dtype)).reshape(part.shape)
    return found


class Rows:
    """Gives the rows of a parcel's arrays, some at a time: memory just read is faster than much memory."""

    def __init__(self, parcel: Parcel) -> None:
        # A context of its own for each: they are read in turn.
        self._parts = [(part, zstandard.ZstdDecompressor().stream_reader(raw)) for part, raw in _payloads(parcel)]

    def take(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the next `n` rows of each array."""
        found = {}
        for part, reader in self._parts:
            rows = np.empty((n, *part.shape[1:]), part.dtype)
            raw = rows.reshape(-1).view(np.uint8)
            if raw.size and reader.readinto(raw.data) != raw.size:
                raise ValueError(f"{part.name} has no {n} rows more")
            found[part.name] = rows
        return found


def _payloads(parcel: Parcel) -> list[tuple[Part, memoryview]]:
    ends = parcel.offsets.tolist()
    return [(part, parcel.data[ends[i] : ends[i + 1]].data) for i, part in enumerate(parcel.parts)]
