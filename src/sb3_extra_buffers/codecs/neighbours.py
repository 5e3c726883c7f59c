"""Before `zstd`, of pictures with one byte a pixel: whichever of three ways leaves least. Exact.

- Rows, as they come.
- Columns: what is near, such as a wall, repeats downwards rather than sideways.
- Codes, without zstd (see `contexts`): what is likely depends on the pixel on the left and the one above. A texture
  that repeats nowhere still has likely neighbours. Codes are learned from the first frames, and kept if they would have
  left less.

All ways are tried now and then for each stream; until the next time its frames go the way that was best.

The reference of a payload says the way in its lowest byte (0: rows, 1: columns, 2 and up: one of the sets of codes),
and above that what the inner codec needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_extra_buffers.codecs import contexts, jit, optional, parallel
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints, array_bytes
from sb3_extra_buffers.codecs.contexts import Contexts, ContextsKernels
from sb3_extra_buffers.codecs.left import LeftCodes
from sb3_extra_buffers.codecs.zstd import Zstd

LEARNED_AFTER = (64, 512)
"""Frames: early for a start, later for what episodes look like."""

_CONTEXTS = (contexts.MOST // 4, contexts.MOST)
"""How many the codes have: few frames are written in the first ones."""

_ROWS, _COLUMNS, _CODES = 0, 1, 2  # ways
_TRIED_OFTEN, _TRIED_RARELY = 16, 64  # frames of a stream until the next try; rarely where one way is surely best
_SURELY = 1.3  # times smaller than the second
_LEARNED_FROM = 1 << 21  # pixels, of frames taken evenly
_ONE = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Neighbours(Codec):
    """Arranges frames for `inner`, or does without it.

    Attributes:
        inner: what encodes rows and columns.
        row_bytes: size of a row. Frames that cannot be divided into several are left as they are.
    """

    name = "neighbours"
    inner: Zstd
    row_bytes: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Zstd):
            raise ValueError(f"neighbours stand before zstd, not {self.inner!r}")
        if type(self.row_bytes) is not int or self.row_bytes < 1:
            raise ValueError(f"a row has at least 1 byte, not row_bytes={self.row_bytes!r}")

    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame: alone it goes row by row."""
        return self.inner.encode(frame)

    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of a payload that goes row by row into `out`."""
        self.inner.decode(payload, out)

    def coder(self, frame_bytes: int) -> Coder:
        if frame_bytes % self.row_bytes or not 1 < self.row_bytes < frame_bytes < 1 << 29:
            return self.inner.coder(frame_bytes)
        return NeighboursCoder(self, frame_bytes)


class NeighboursCoder(Coder):
    """Owns the codes, and the inner codec's coder.

    Attributes:
        sets: of codes.
        samples: what codes are learned from, `[n, bytes]`: a quarter of a frame each, where frames are high enough;
            nothing before the first one, and at the end.
        sampled: how many of these there are.
        spent: bytes of their payloads.
        seen: frames that came, until nothing is learned any more.
    """

    codec: Neighbours

    def __init__(self, codec: Neighbours, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.inner = codec.inner.coder(frame_bytes)
        self.sets: list[bytes] = []
        self.samples = np.empty((0, self.sample_shape[1]), np.uint8)
        self.sampled = 0
        self.spent = 0
        self.seen = 0
        self._compile()

    def _compile(self) -> None:
        frames = "uint8[:,::1]"
        self._turn = jit.choose(_turn_kernel, turn_reference, f"void({frames}, int64, int64[::1], {frames})")
        self._kernels = ContextsKernels()
        self._ways: dict[int, tuple[int, int]] = {}  # of each stream: the way its frames go, and for how many more
        self._opened = [opened(one) for one in self.sets]
        # Without numba it would take too long to write codes. They can be read.
        self._has_kernels = optional.has_numba()
        self._newest = _newest(self._opened) if self._has_kernels else None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def of_today(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Leave out what was counted for codes that are not learned any more, and learn those of today anew."""
        if "counts" not in saved:
            return saved
        return {key: content for key, content in saved.items() if key in ("inner", "learning", "sets")}

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`, each in the way that was best for its stream."""
        self.inner.learning = self.learning
        if not len(frames):
            return self.inner.encode(frames, streams)
        frames, names = jit.contiguous(frames), streams.tolist()
        if not (self.learning and self._learns) and all(map(self._goes_in_codes, names)):
            encoded = self._in_codes(frames)
            if encoded is not None:
                for stream in names:
                    self._ways[stream] = _CODES, self._ways[stream][1] - 1
                return encoded
        one_by_one = []
        for frame, stream in zip(frames, names, strict=True):  # as `zstd` does
            one_by_one.append(self._encode_one(frame, stream))
            if self.learning and self._learns:
                self._learn(frame, int(one_by_one[-1].lengths[0]))
        return Encoded(*(np.concatenate(parts) for parts in zip(*one_by_one, strict=True)))

    def _goes_in_codes(self, stream: int) -> bool:
        """Tell whether the next frame of a stream goes that way without a try."""
        way, left = self._ways.get(stream, (_ROWS, 0))
        return way == _CODES and left > 0

    def _encode_one(self, frame: Bytes, stream: int) -> Encoded:
        way, left = self._ways.get(stream, (_ROWS, 0))
        if left > 0:
            self._ways[stream] = way, left - 1
            return self._in_way(frame, way) or self._in_rows(frame)
        found = {_ROWS: self._in_rows(frame)}
        self.inner.learning = False  # once is enough
        found |= {way: one for way in (_COLUMNS, _CODES) if (one := self._in_way(frame, way)) is not None}
        self.inner.learning = self.learning
        sizes = {way: int(one.lengths[0]) for way, one in found.items()}
        best, *others = sorted(sizes, key=sizes.__getitem__)
        is_sure = others and sizes[best] * _SURELY < sizes[others[0]]
        self._ways[stream] = best, (_TRIED_RARELY if is_sure else _TRIED_OFTEN) - 1
        return found[best]

    def _in_rows(self, frame: Bytes) -> Encoded:
        encoded = self.inner.encode(frame[None], _ONE)
        return encoded._replace(references=encoded.references << 8)

    def _in_way(self, frame: Bytes, way: int) -> Encoded | None:
        """Return the payload of a frame; None if it cannot go that way, or is too long: then it has to be the frame."""
        if way == _ROWS:
            return self._in_rows(frame)
        if way == _COLUMNS:
            turned = np.empty((1, self.frame_bytes), np.uint8)
            self._turn(frame[None], self.frame_bytes // self.codec.row_bytes, _ONE, turned)
            encoded = self.inner.encode(turned, _ONE)
            is_longer = encoded.lengths[0] >= self.frame_bytes
            return None if is_longer else encoded._replace(references=encoded.references << 8 | _COLUMNS)
        return self._in_codes(frame[None])

    def _in_codes(self, frames: Bytes) -> Encoded | None:
        """Return the payloads of frames; None if there are no codes, or one would be too long."""
        if self._newest is None:
            return None
        reference, *codes = self._newest
        n = len(frames)
        payloads, lengths = np.empty(contexts.room(n, self.frame_bytes), np.uint8), np.empty(n, np.int64)
        size = self._kernels.encode(frames, self.codec.row_bytes, *codes, payloads, lengths)
        return None if lengths.max() >= self.frame_bytes else Encoded(payloads[:size], lengths, reference.repeat(n))

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode the frames of each way, or copy."""
        ways, new, width = references & 255, sources < 0, self.codec.row_bytes
        if np.any(ways[new] >= _CODES + len(self._opened)):
            raise CodecError("neighbours: a frame refers to codes that are not there")
        for way in np.unique(ways[new]).tolist():
            which = np.flatnonzero(new & (ways == way))
            at, sizes, inner = offsets[which], lengths[which], references[which] >> 8
            if way == _ROWS:
                bad = self.inner.decode_part(heap, at, sizes, inner, rows[which], sources[which], out)
            elif way == _COLUMNS:
                turned = np.empty((len(which), self.frame_bytes), np.uint8)
                bad = self.inner.decode_new(heap, at, sizes, inner, turned)
                self._turn(turned, width, rows[which], out)
            else:
                codes = self._opened[way - _CODES]
                if isinstance(codes, LeftCodes):
                    bad = codes.decode(heap, at, sizes, rows[which], width, out)
                else:
                    bad = self._kernels.decode(heap, at, sizes, rows[which], width, codes.of_pairs, codes.table, out)
            if bad >= 0:
                return int(which[bad])
        out[rows[~new]] = out[sources[~new]]
        return -1

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        """Codes are decoded without the GIL, whole batches in a call (but for those of earlier files)."""
        if not self._opened:
            return self.inner.effort(lengths, sources, out)
        return out.nbytes, parallel.WORTH // self.slowness

    @property
    def slowness(self) -> int:
        """Codes are decoded pixel by pixel."""
        return 4 if self._opened else 1

    def release(self, references: Ints) -> None:
        """Do nothing: codes and dictionaries stay."""

    def _learn(self, frame: Bytes, payload_bytes: int) -> None:
        """Keep parts of some frames, and when it is time make codes of them, which are kept if they leave less."""
        begin, end = next(pair for pair in zip((0, *LEARNED_AFTER), LEARNED_AFTER, strict=False) if self.seen < pair[1])
        if not self.samples.size:
            self.samples, self.sampled, self.spent = np.zeros(self.sample_shape, np.uint8), 0, 0
        nth, (n, size) = self.seen - begin, self.samples.shape
        if (nth + 1) * n // (end - begin) > nth * n // (end - begin) and self.sampled < n:  # evenly
            parts = self.frame_bytes // size
            start = (self.sampled + self.sampled // parts) % parts * size  # another one, also of four envs
            self.samples[self.sampled] = frame[start : start + size]
            self.sampled, self.spent = self.sampled + 1, self.spent + payload_bytes * size // self.frame_bytes
        self.seen += 1
        if self.seen < end:
            return
        samples, spent = self.samples[: self.sampled], self.spent
        # First: interrupted, nothing is learned this time.
        self.sampled = self.spent = 0
        if end == LEARNED_AFTER[-1]:
            self.samples = np.empty((0, size), np.uint8)
        learned, n_bytes = contexts.learned(samples, self.codec.row_bytes, _CONTEXTS[LEARNED_AFTER.index(end)])
        if n_bytes < spent:
            sets, opened_ = [*self.sets, learned], [*self._opened, Contexts(learned)]
            # In this order: interrupted, the new ones are only not used yet.
            self.sets, self._opened, self._newest, self._ways = sets, opened_, _newest(opened_), {}

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, of what the next are learned from, and of what the inner coder keeps."""
        own = sum(map(len, self.sets)) + sum(codes.nbytes for codes in self._opened) + array_bytes(self)
        own += 0 if self._newest is None else self._newest[2].nbytes + self._newest[3].nbytes
        return own + self.inner.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of what is learned from and of the codes that may be added, and of what the inner coder may add."""
        own = contexts.LARGEST_SET * sum(self.seen < after <= self.seen + n_frames for after in LEARNED_AFTER)
        if self._learns and not self.samples.size:
            own += math.prod(self.sample_shape)
        return own + self.inner.growth_bytes(n_frames)

    @property
    def _learns(self) -> bool:
        """Whether there are codes to learn."""
        return self._has_kernels and self.seen < LEARNED_AFTER[-1]

    @property
    def sample_shape(self) -> tuple[int, int]:
        """How many samples codes are learned from, and of how many bytes."""
        height = self.frame_bytes // self.codec.row_bytes
        size = self.codec.row_bytes * (height // 4 if height >= 32 else height)
        return min(max(_LEARNED_FROM // size, 1), LEARNED_AFTER[-1] - LEARNED_AFTER[0]), size


def opened(learned: bytes) -> Contexts | LeftCodes:
    """Return a set of codes as who reads payloads takes it; those of before have other sizes."""
    return LeftCodes(learned) if len(learned) < contexts.SMALLEST_SET else Contexts(learned)


def _newest(sets: list[Contexts | LeftCodes]) -> tuple[Any, ...] | None:
    """Return what writes: the reference of its payloads, and what the newest codes are written with."""
    newest = sets[-1] if sets else None
    return (np.array([_CODES + len(sets) - 1]), *newest.to_write()) if isinstance(newest, Contexts) else None


def _turn_kernel(frames: Bytes, height: int, rows: Ints, out: Bytes) -> None:
    width = frames.shape[1] // height
    whole = width // 8 * 8
    lines = np.empty(8, np.uint64)
    for i in range(rows.size):
        frame, turned = frames[i], out[rows[i]]
        for y in range(0, height // 8 * 8, 8):
            for x in range(0, whole, 8):  # eight by eight bytes: halves, quarters and eighths of lines change places
                for k in range(8):
                    part, line = frame[(y + k) * width + x : (y + k) * width + x + 8], np.uint64(0)
                    for b in range(8):
                        line |= np.uint64(part[b]) << np.uint64(8 * b)
                    lines[k] = line
                for k in range(4):
                    apart = (lines[k] >> np.uint64(32) ^ lines[k + 4]) & np.uint64(0x00000000FFFFFFFF)
                    lines[k + 4] ^= apart
                    lines[k] ^= apart << np.uint64(32)
                for k in (0, 1, 4, 5):
                    apart = (lines[k] >> np.uint64(16) ^ lines[k + 2]) & np.uint64(0x0000FFFF0000FFFF)
                    lines[k + 2] ^= apart
                    lines[k] ^= apart << np.uint64(16)
                for k in (0, 2, 4, 6):
                    apart = (lines[k] >> np.uint64(8) ^ lines[k + 1]) & np.uint64(0x00FF00FF00FF00FF)
                    lines[k + 1] ^= apart
                    lines[k] ^= apart << np.uint64(8)
                for k in range(8):
                    part, line = turned[(x + k) * height + y : (x + k) * height + y + 8], lines[k]
                    for b in range(8):
                        part[b] = line >> np.uint64(8 * b) & np.uint64(255)
        for y in range(height):
            for x in range(whole if y < height // 8 * 8 else 0, width):
                turned[x * height + y] = frame[y * width + x]


def turn_reference(frames: Bytes, height: int, rows: Ints, out: Bytes) -> None:
    """Write frames of so many rows into `out[rows]`, column by column. The kernel does so without the GIL."""
    for frame, row in zip(frames, rows.tolist(), strict=True):
        out[row].reshape(-1, height)[:] = frame.reshape(height, -1).T
