"""Whether what a file says can be: whatever kernels use as a size or an index is checked here before they see it.

Each function raises `ValueError` or `TypeError` if not. Checksums find damage; these find what was never saved so.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import huffman, like, neighbours, ranks
from sb3_extra_buffers.codecs.base import Coder
from sb3_extra_buffers.codecs.delta import DeltaCoder
from sb3_extra_buffers.codecs.interleave import InterleaveCoder
from sb3_extra_buffers.codecs.like import LikeCoder
from sb3_extra_buffers.codecs.neighbours import NeighboursCoder
from sb3_extra_buffers.codecs.palette import PaletteCoder
from sb3_extra_buffers.codecs.ranks import RanksCoder
from sb3_extra_buffers.codecs.spans import SpanCoder
from sb3_extra_buffers.codecs.zstd import ZstdCoder

if TYPE_CHECKING:
    from sb3_extra_buffers.frames.heap import Heap
    from sb3_extra_buffers.frames.store import FrameStore

_MANY = 1 << 20
_LARGEST = 1 << 30  # bytes of something that a file has no bytes for, and of all of that together

STRUCTURE = ("codec", "frame_bytes", "n_words", "position_bytes", "pixels")
"""Attributes of coders that follow from the codec and the size of frames."""


class Claims:
    """Bytes of what is made without bytes of the file for it: one step of all envs, and spaces.

    Writers ask, too: what cannot be loaded is not saved.
    """

    def __init__(self) -> None:
        self.total = 0

    def add(self, shape: Any, itemsize: int) -> None:
        """Ask for something of this shape."""
        if not all(type(n) is int and 0 <= n <= _LARGEST for n in shape):
            raise ValueError(f"{shape} is no shape, or too large")
        self.total += prod(shape) * itemsize
        if self.total > _LARGEST:
            raise ValueError(f"one step of all envs has more than {_LARGEST:,} bytes: that is too large for a file")

    def settings(self, given: Any) -> None:
        """Check the settings of a store, and ask for its observations."""
        settings(given)
        self.add([*given["obs_shape"], given["streams"]], max(given["dtype"].itemsize, given["storage"].itemsize))

    def recent(self, ids: NDArray[Any], frame_bytes: int) -> None:
        """Ask for the frames that a store compares the next ones with."""
        self.add(ids.shape, frame_bytes)


def integer(value: Any) -> int:
    """Return `value` if it is an integer."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def settings(given: Any) -> None:
    """Check the settings of a store; the codec and the method are checked where they are opened."""
    names = {"compression_kwargs", "decompression_kwargs", "item_bytes", "runs_type", "obs_shape", "dtype", "storage"}
    if not isinstance(given, dict) or given.keys() != names | {"method", "frame_stack", "streams", "output"}:
        raise ValueError("the settings of a store are not as they should be")
    if given["output"] not in ("raw", "float", "normalized"):
        raise ValueError(f"there is no output {given['output']!r}")


def codec_settings(given: dict[str, Any]) -> None:
    """Check the settings of a codec; what else they may be is checked where it is opened."""
    if any(type(value) is int and abs(value) > _LARGEST for value in given.values()):
        raise ValueError("a setting of a codec is too large")


def layout(stack: Any, axis: Any) -> None:
    """Check how observations are stacked; that it suits their shape is checked where they are."""
    if not 1 <= integer(stack) <= _MANY or integer(axis) not in (0, -1):
        raise ValueError(f"observations are not stacked by {stack} along {axis}")


def number_dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype of numbers that `name` is."""
    if type(name) is not str:
        raise TypeError(f"{name!r} is no dtype")
    dtype = np.dtype(name)
    if dtype.kind not in "biufc":
        raise TypeError(f"{dtype} is no dtype of numbers")
    return dtype


def shaped(array: Any, dtype: Any, *shape: int | None, name: str = "an array") -> None:
    """Check an array; None stands for any length."""
    wanted = np.dtype(dtype)
    fits = isinstance(array, np.ndarray) and array.dtype == wanted and array.ndim == len(shape)
    if not fits or not all(n is None or n == m for n, m in zip(shape, array.shape, strict=True)):
        raise ValueError(f"{name} should be {wanted} {shape}")


def below(array: NDArray[Any], limit: int, name: str) -> None:
    """Check that numbers are indices of something of `limit` entries."""
    if array.size and not (array.min() >= 0 and array.max() < limit):
        raise ValueError(f"{name} refers to something that is not there")


def ids(array: NDArray[Any], stack: int) -> None:
    """Check a table of ids; whether there are such frames is found when they are counted."""
    if array.dtype != np.uint32 or array.ndim < 2 or array.shape[-1] != stack:
        raise ValueError(f"ids are uint32 [..., {stack}]")


def cells(array: Any, frame_bytes: int) -> None:
    """Check dense frames."""
    shaped(array, np.uint8, None, frame_bytes, name="cells")
    if not len(array):
        raise ValueError("there is no cell 0")


def tables(arrays: dict[str, NDArray[Any]], stack: int) -> None:
    """Check the tables of a frame store."""
    if set(arrays) != {"offsets", "lengths", "references", "recent_ids"}:
        raise ValueError(f"a frame store does not have {', '.join(arrays)}")
    n = len(arrays["offsets"])
    shaped(arrays["offsets"], np.int64, n, name="offsets")
    shaped(arrays["lengths"], np.uint32, n, name="lengths")
    shaped(arrays["references"], np.uint32, n, name="references")
    shaped(arrays["recent_ids"], np.int64, None, stack, name="recent_ids")
    if n < 1 or arrays["lengths"][0] or arrays["references"][0]:
        raise ValueError("id 0 is not the frame of zeros")


def segment(value: Any, frames: FrameStore) -> int:
    """Return the size of a heap's segments if it can be: of some whole frames."""
    size = integer(value)
    if not 0 < size <= max(_LARGEST, 4 * frames.frame_bytes) or size % frames.frame_bytes:
        raise ValueError(f"a segment does not have {size} bytes")
    return size


def heap(heap: Heap, data: NDArray[Any]) -> None:
    """Check a heap that has so much data, and where its open segment is."""
    shaped(data, np.uint8, None, name="heap")
    start = heap.segment * heap.segment_bytes
    if heap.segment == -1:
        if heap.at != 0:
            raise ValueError("no segment is open")
    elif not (0 <= heap.segment <= data.size // heap.segment_bytes and start <= heap.at):
        raise ValueError("the open segment is not there")
    elif heap.at > min(start + heap.segment_bytes, max(data.size, start)):
        raise ValueError("the open segment ends too late")


def payloads(frames: FrameStore, alive: NDArray[np.int64]) -> None:
    """Check where the frames `alive` lie, and what they were encoded against."""
    heap = frames.heap
    offsets, lengths = frames.offsets[alive], frames.lengths[alive].astype(np.int64)
    below(offsets, heap.n_segments * heap.segment_bytes, "a frame")
    if (offsets + lengths > heap.data.size).any() or (lengths > frames.frame_bytes).any():
        raise ValueError("a frame lies outside the heap")
    within = offsets - offsets // heap.segment_bytes * heap.segment_bytes
    if (within + lengths > heap.segment_bytes).any():
        raise ValueError("a frame lies in two segments")
    last = (offsets // heap.segment_bytes == heap.segment) & (lengths > 0)
    if (offsets + lengths)[last].max(initial=0) > heap.at and last.any():
        raise ValueError("a frame lies where the next one goes")
    references(frames.coder, frames.references[alive].astype(np.int64))


def references(coder: Coder, named: NDArray[np.int64]) -> None:
    """Check that a coder has what frames were encoded against."""
    if isinstance(coder, DeltaCoder):
        below(named, len(coder.keys), "a frame")
    elif isinstance(coder, SpanCoder):
        below(named, 1 if coder.keys is None else len(coder.keys.keys), "a frame")
    elif isinstance(coder, ZstdCoder):
        below(named, len(coder.dictionaries), "a frame")
    elif isinstance(coder, InterleaveCoder):
        references(coder.inner, named)
    elif isinstance(coder, PaletteCoder):
        plain = (named & 255) == 255
        below((named & 255)[~plain], len(coder.colours), "a frame")
        references(coder.inner, named[~plain] >> 8)
        references(coder.whole, named[plain] >> 8)
    elif isinstance(coder, LikeCoder):
        by_key = (named & 1) == 1
        _keys(named[by_key] >> 1, coder.sizes, "a frame")
        references(coder.inner, named[~by_key] >> 1)
    elif isinstance(coder, NeighboursCoder):
        below(named & 255, 2 + len(coder.sets), "a frame")
        references(coder.inner, named >> 8)
    elif isinstance(coder, RanksCoder):
        below(named & 255, 1 + len(coder.sets), "a frame")
        references(coder.inner, named >> 8)


def alike(value: Any, known: Any, name: str) -> Any:
    """Return a value of a coder's state if it is of the kind of the one that a new coder has."""
    fits = type(value) is type(known)
    if isinstance(known, np.ndarray):
        fits = isinstance(value, np.ndarray) and value.dtype == known.dtype and value.ndim == known.ndim
    elif isinstance(known, list):
        fits = type(value) is list and all(type(part) is bytes for part in value)
    if not fits:
        raise TypeError(f"{name} is a {type(value).__name__}, not a {type(known).__name__}")
    return value


def coder(coder: Coder, state: dict[str, Any]) -> None:
    """Check the state that a new coder is to take."""
    saved = SimpleNamespace(**state)
    if isinstance(coder, DeltaCoder):
        _delta(coder, saved)
    elif isinstance(coder, SpanCoder):
        _spans(saved)
    elif isinstance(coder, PaletteCoder):
        shaped(saved.colours, np.uint32, None, 256, name="colours")
        shaped(saved.known, np.int64, len(saved.colours), name="known")
        below(saved.known - 1, 256, "a palette")
        if not (0 <= saved.current < len(saved.colours) <= 16) or saved.colours[0, 0]:
            raise ValueError("palettes are not as they should be")
    elif isinstance(coder, LikeCoder):
        _like(coder, saved)
    elif isinstance(coder, NeighboursCoder):
        _neighbours(coder, saved)
    elif isinstance(coder, RanksCoder):
        _ranks(saved)
    elif isinstance(coder, ZstdCoder):
        if saved.seen < 0 or not saved.dictionaries or saved.dictionaries[0] != b"":
            raise ValueError("dictionaries are not as they should be")
        if not all(len(sample) == coder.frame_bytes for sample in saved.samples):
            raise ValueError("samples are not frames")


def _delta(coder: DeltaCoder, saved: Any) -> None:
    shaped(saved.keys, np.uint32, None, coder.n_words, name="keys")
    n = len(saved.keys)
    if n < 1 or saved.keys[0].any():
        raise ValueError("key 0 is not the frame of zeros")
    shaped(saved.uses, np.int64, n, name="uses")
    shaped(saved.candidates, np.int64, None, name="candidates")
    shaped(saved.last_used, np.int64, len(saved.candidates), name="last_used")
    if not 1 <= len(saved.candidates) <= max(coder.codec.keys, 1):
        raise ValueError(f"there are {len(saved.candidates)} candidates")
    below(saved.candidates, n, "a candidate")
    shaped(saved.clock, np.int64, 1, name="clock")
    shaped(saved.backgrounds, np.uint32, None, coder.n_words, name="backgrounds")
    shaped(saved.votes, np.int8, len(saved.backgrounds), 4 * coder.n_words, name="votes")
    shaped(saved.savings, np.int64, len(saved.backgrounds), name="savings")


def _like(coder: LikeCoder, saved: Any) -> None:
    n_views, n_keys = len(saved.keys), len(saved.sizes)
    if n_views > like.MOST or not 0 <= saved.usual < like.LATELY * (coder.frame_bytes + 1):
        raise ValueError(f"there are {n_views} views, and usually {saved.usual} bytes")
    shaped(saved.marks, np.uint8, like.MARKS, n_views, name="marks")
    for name in ("keys", "last_used", "saved"):
        shaped(getattr(saved, name), np.int64, n_views, name=name)
    for name in ("uses", "sizes", "references"):
        shaped(getattr(saved, name), np.int64, n_keys, name=name)
    shaped(saved.clock, np.int64, 1, name="clock")
    shaped(saved.parts, np.uint32, n_keys, like.PARTS, name="parts")
    width = -(-coder.frame_bytes // like.PARTS)
    shaped(saved.rows, np.uint8, None, width, name="rows")
    below(saved.sizes, coder.frame_bytes + 1, "a key")
    below(saved.parts, max(len(saved.rows), 1), "a key")
    if n_keys and not len(saved.rows):
        raise ValueError("keys have no memory")
    below(saved.keys - like.COMING, n_keys - like.COMING, "a view")
    _keys(saved.keys[saved.keys >= 0], saved.sizes, "a view")
    references(coder.inner, saved.references[saved.sizes > 0])


def _keys(named: NDArray[np.int64], sizes: NDArray[np.int64], name: str) -> None:
    below(named, len(sizes), name)
    if (sizes[named] == 0).any():
        raise ValueError(f"{name} refers to a key that is not there")


def _neighbours(coder: NeighboursCoder, saved: Any) -> None:
    if len(saved.sets) > 2 * len(neighbours.LEARNED_AFTER) or min(saved.seen, saved.spent) < 0:
        raise ValueError(f"there are {len(saved.sets)} sets of codes")
    for learned in saved.sets:
        neighbours.opened(learned)
    n, size = coder.sample_shape
    shaped(saved.samples, np.uint8, None, size, name="samples")
    if len(saved.samples) not in (0, n) or saved.seen > neighbours.LEARNED_AFTER[-1]:
        raise ValueError(f"there are {len(saved.samples)} samples after {saved.seen} frames")
    below(np.array([saved.sampled]), len(saved.samples) + 1, "a sample")


def _ranks(saved: Any) -> None:
    if len(saved.sets) > sum(saved.seen >= after for after in ranks.LEARNED_AFTER) or saved.spent < 0:
        raise ValueError(f"there are {len(saved.sets)} sets after {saved.seen} frames")
    for found in saved.sets:
        ranks.opened(found)
    if not 0 <= saved.seen <= ranks.LEARNED_AFTER[-1] or saved.counts.shape not in ((0,), (1 << 16,)):
        raise ValueError(f"there are counts {saved.counts.shape} after {saved.seen} frames")


def _codes(lengths: NDArray[np.uint8], longest: int) -> None:
    if lengths.max() > longest:
        raise ValueError("a code is too long")
    taken = np.where(lengths, 1 << (longest - lengths.astype(np.int64)), 0).sum(axis=-1)
    if (taken > 1 << longest).any():
        raise ValueError("codes overlap")


def _spans(saved: Any) -> None:
    known_codes, symbols = saved.lengths.shape[1:]
    shaped(saved.lengths, np.uint8, None, 18, 257, name="code lengths")
    n = len(saved.lengths)
    shaped(saved.contexts, np.uint8, n, 258, name="contexts")
    if not 1 <= n <= 127 or saved.seen < 0:
        raise ValueError(f"there are {n} code sets")
    below(saved.contexts, known_codes, "a context")
    _codes(saved.lengths, huffman.LONGEST)
    if (saved.lengths[1:, :, symbols - 1] == 0).any():
        raise ValueError("a code has no escape")
    if saved.counts.dtype != np.uint32 or saved.counts.shape not in ((258, 256), (258, 0)):
        raise ValueError("counts are not as they should be")
    if not saved.counts.size and 0 < saved.seen < 2048:
        raise ValueError("counts are gone too early")
