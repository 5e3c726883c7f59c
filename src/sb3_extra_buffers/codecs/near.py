"""`near`: bytes that are as one near them take a bit or two. Not small, but fast to write and to read.

It is for pictures of one byte a pixel, such as the colour numbers of a `palette`, and for masks. A byte that is as the
one in the row above (0 in the first row) is left out. So is, of the others, one that is as the one told before it.

    differs  one bit for each byte: 1 if it is not as the one above
    is new   one bit for each of those: 1 if it is not as the one of those before it, and for the first
    values   of those

Bits are filled from the lowest of each byte, and each of the two strings of bits to a whole 8 bytes. What is left out
is found without waiting for the byte before: many at once (see `vectors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import BatchCoder, Bytes, Coder, Encoded, Ints, LearningCodec, check_bounds

_WORD = 64  # bits that a string of bits is filled to


@dataclass(frozen=True)
class Near(LearningCodec):
    """Leaves out what is as the row above, or as what was told before.

    Attributes:
        row_bytes: size of a row of the picture.
    """

    name = "near"
    row_bytes: int = 1

    def __post_init__(self) -> None:
        if type(self.row_bytes) is not int or self.row_bytes < 1:
            raise ValueError(f"a row has at least 1 byte, not row_bytes={self.row_bytes!r}")

    def coder(self, frame_bytes: int) -> Coder:
        return NearCoder(self, frame_bytes)


class NearCoder(BatchCoder):
    """Learns nothing: each frame is told by itself."""

    codec: Near
    payloads_tell = True

    def __init__(self, codec: Near, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self._compile()

    def _compile(self) -> None:
        self._width = min(self.codec.row_bytes, self.frame_bytes)
        encode, decode = _encode_kernel, _decode_kernel
        if self._width >= _WORD and jit.has_vectors():
            from sb3_extra_buffers.codecs import vectors

            encode, decode = vectors.near_encode_kernel, vectors.near_decode_kernel
        ints, data, frames = "int64[::1]", "uint8[::1]", "uint8[:,::1]"
        self._encode = jit.choose(encode, encode_reference, f"int64({frames}, int64, {data}, {ints})")
        self._decode = jit.choose(
            decode,
            decode_reference,
            *(
                f"int64({heap}, {ints}, {ints}, {ints}, {ints}, int64, {frames})"
                for heap in (data, "Array(uint8, 1, 'C', readonly=True)")
            ),
        )

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        n = len(frames)
        data, lengths = np.empty(room(n, self.frame_bytes), np.uint8), np.empty(n, np.int64)
        size = self._encode(jit.contiguous(frames), self._width, data, lengths)
        return Encoded(data[:size], lengths, np.zeros(n, np.int64))

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode or copy."""
        check_bounds(heap, offsets, lengths)
        bad: int = self._decode(heap, offsets, lengths, rows, sources, self._width, out)
        return bad


def room(n: int, frame_bytes: int) -> int:
    """Return how many bytes the payloads of `n` frames may take while they are written."""
    return n * frame_bytes + 2 * (frame_bytes // 8 + 8) + frame_bytes


def _words(n: int) -> int:
    return -(-n // _WORD)


def _bits(flags: NDArray[np.bool_]) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes().ljust(8 * _words(flags.size), b"\0")


def encode_reference(frames: Bytes, width: int, data: Bytes, lengths: Ints) -> int:
    """Write the payloads of frames, one after another; returns their size.

    Args:
        frames: `[n, frame_bytes]`.
        width: bytes of a row.
        data: the payloads go there. It has `room`; what comes after them may be overwritten.
        lengths: their sizes go there, `[n]`. A payload as long as the frame is the frame.
    """
    at = 0
    for i, frame in enumerate(frames):
        above = np.append(np.zeros(width, np.uint8), frame)[: frame.size]
        differs = frame != above
        told = frame[differs]
        is_new = np.append(True, told[1:] != told[:-1])[: told.size]
        payload = _bits(differs) + _bits(is_new) + told[is_new].tobytes()
        if len(payload) >= frame.size:
            payload = frame.tobytes()
        data[at : at + len(payload)], lengths[i] = np.frombuffer(payload, np.uint8), len(payload)
        at += len(payload)
    return at


def _encode_kernel(frames: Bytes, width: int, data: Bytes, lengths: Ints) -> int:
    frame_bytes = frames.shape[1]
    told = np.empty(frame_bytes, np.uint8)
    begin = 0
    for i in range(frames.shape[0]):
        frame = frames[i]
        at, n, bits = begin, 0, np.uint64(0)
        for p in range(frame_bytes):
            value = frame[p]
            differs = value != (frame[p - width] if p >= width else np.uint8(0))
            told[n] = value
            n += differs
            bits |= np.uint64(differs) << np.uint64(p % 64)
            if p % 64 == 63 or p == frame_bytes - 1:
                for k in range(8):
                    data[at + k] = bits >> np.uint64(8 * k) & np.uint64(255)
                at, bits = at + 8, np.uint64(0)
        values, v = at + (n + 63) // 64 * 8, 0
        for p in range(n):
            is_new = p == 0 or told[p] != told[p - 1]
            data[values + v] = told[p]
            v += is_new
            bits |= np.uint64(is_new) << np.uint64(p % 64)
            if p % 64 == 63 or p == n - 1:
                for k in range(8):
                    data[at + k] = bits >> np.uint64(8 * k) & np.uint64(255)
                at, bits = at + 8, np.uint64(0)
        at += v
        if at - begin >= frame_bytes:
            for p in range(frame_bytes):
                data[begin + p] = frame[p]
            at = begin + frame_bytes
        lengths[i] = at - begin
        begin = at
    return begin


def decode_reference(
    heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, sources: Ints, width: int, out: Bytes
) -> int:
    """Decode payloads into `out[rows]`, or copy from `out[sources]`; returns the first that is damaged, or -1.

    An empty payload is the frame of zeros. No payload lies outside the heap.
    """
    frame_bytes = out.shape[1]
    where = zip(offsets.tolist(), lengths.tolist(), rows.tolist(), sources.tolist(), strict=True)
    for i, (start, length, row, source) in enumerate(where):
        frame, payload = out[row], heap[start : start + length]
        if source >= 0:
            frame[:] = out[source]
        elif length in (0, frame_bytes):
            frame[:] = payload if length else 0
        else:
            end = 8 * _words(frame_bytes)
            differs = np.unpackbits(payload[:end], bitorder="little")
            n = int(np.count_nonzero(differs))
            is_new = np.unpackbits(payload[end : end + 8 * _words(n)], bitorder="little")
            values = payload[end + 8 * _words(n) :]
            if length < end + 8 * _words(n) or values.size != np.count_nonzero(is_new):
                return i
            if differs[frame_bytes:].any() or is_new[n:].any() or not is_new[:1].all():
                return i
            told = values[np.cumsum(is_new[:n]) - 1]
            starts = np.cumsum(differs) - differs
            above = np.zeros(width, np.uint8)
            for first in range(0, frame_bytes, width):
                part = slice(first, min(first + width, frame_bytes))
                mine = differs[part] == 1
                frame[part] = above[: mine.size]
                frame[part][mine] = told[starts[part][mine]]
                above = frame[part]
    return -1


def _decode_kernel(heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, sources: Ints, width: int, out: Bytes) -> int:
    frame_bytes = out.shape[1]
    n_words = (frame_bytes + 63) // 64
    pixels, told = np.zeros(width + 64 * n_words, np.uint8), np.zeros(64 * n_words + 1, np.uint8)
    data, words = np.zeros(frame_bytes + 8, np.uint8), np.zeros(2 * n_words + 1, np.uint64)  # the payload, its bits
    for i in range(rows.size):
        frame, start, length = out[rows[i]], offsets[i], lengths[i]
        source = out[sources[i]] if sources[i] >= 0 else heap[start : start + length]
        if sources[i] >= 0 or length == frame_bytes:
            for p in range(frame_bytes):
                frame[p] = source[p]
            continue
        if length == 0:
            frame[:] = 0
            continue
        if length < 8 * n_words or length > frame_bytes:
            return i
        for p in range(length):
            data[p] = source[p]
        # How many there are of everything, and that the payload ends where it should, before anything is looked at.
        n, n_new, ends, spare = 0, 0, n_words, np.uint64(0)
        for turn in range(2):
            ones: Any = 0
            of = frame_bytes if turn == 0 else n
            for w in range(0 if turn == 0 else n_words, ends):
                word = np.uint64(0)
                for k in range(8):
                    word |= np.uint64(data[8 * w + k]) << np.uint64(8 * k)
                words[w] = word
                for k in range(64):
                    ones += np.int64(word >> np.uint64(k) & np.uint64(1))
            if of % 64:
                spare |= words[ends - 1] >> np.uint64(of % 64)
            if turn == 0:
                n, ends = ones, n_words + (ones + 63) // 64
                if 8 * ends > length:
                    return i
            else:
                n_new = ones
        if spare or 8 * ends + n_new != length or (n > 0 and words[n_words] & np.uint64(1) == np.uint64(0)):
            return i
        # Nothing is asked on the way: what comes next cannot be foreseen.
        values, at = data[8 * ends - 1 :], np.uint64(0)
        for w in range(n_words, ends):
            word, some = words[w], told[64 * (w - n_words) :]
            for k in range(64):
                at += word >> np.uint64(k) & np.uint64(1)
                some[k] = values[at]
        at = np.uint64(0)
        for w in range(n_words):
            word, above, here = words[w], pixels[64 * w :], pixels[width + 64 * w :]
            for k in range(64):
                bit = word >> np.uint64(k) & np.uint64(1)
                mask = np.uint8(np.uint64(0) - bit)
                here[k] = (told[at] & mask) | (above[k] & ~mask)
                at += bit
        for p in range(frame_bytes):
            frame[p] = pixels[width + p]
    return -1
