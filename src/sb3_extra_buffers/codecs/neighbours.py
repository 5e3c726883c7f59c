"""Before `zstd`, of pictures with one byte a pixel: whichever of three ways leaves least. Exact.

- Rows, as they come.
- Columns: what is near, such as a wall, repeats downwards rather than sideways.
- Codes, without zstd: of each pixel, in a Huffman code that the pixel on its left chooses. A texture that repeats
  nowhere still has likely neighbours. Codes are learned from the first frames, and kept if they would have left less.

All ways are tried now and then for each stream; until the next time its frames go the way that was best. Codes take
less time than zstd, to write and to read, so zstd has to be clearly smaller.

The reference of a payload says the way in its lowest byte (0: rows, 1: columns, 2 and up: one of the sets of codes),
and above that what the inner codec needs. A payload in codes is

    sizes   uint32[3]  bytes of the first three parts, little-endian
    parts              four: rows 0, 4, 8 ..., rows 1, 5, 9 ... and so on, each row after the one before. They take
                       equally long: each pixel waits for the one on its left, so four are decoded at a time

Bits are filled from the highest of each byte; the rest of a part's last byte is 0. The first pixel of a part comes
after the most frequent byte. Symbols are not bytes, but how many bytes are more frequent. A set of codes is

    order    uint8[256]     bytes, the most frequent first
    lengths  uint8[n, 257]  of the codes (see `huffman`) after each of the n - 1 most frequent bytes, and after others
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import huffman, jit, optional, parallel
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints, array_bytes
from sb3_extra_buffers.codecs.zstd import Zstd

LONGEST = 8
"""Bits of a code: tables stay small."""

LEARNED_AFTER = (64, 512)
"""Frames: early for a start, later for what episodes look like."""

MOST = 253
"""Bytes that have a code of their own for what follows them: an index of a table has 16 bits."""

_ROWS, _COLUMNS, _CODES = 0, 1, 2  # ways
_TRIED_OFTEN, _TRIED_RARELY = 16, 64  # frames of a stream until the next try; rarely where one way is surely best
_SURELY = 1.3  # times smaller than the second
_CLEARLY = 8 / 7  # times smaller than codes has zstd to be
_RARE = 1 / 512  # symbols that are escaped
_OWN = 1 / 2048  # of all pixels: bytes that are more frequent have a code of their own
_HEAD = 12  # bytes of sizes
_WINDOW = 1 << LONGEST
_AT_ONCE = 7  # look-ups that one load of bits is enough for
_LARGEST_SET = (MOST + 2) * (257 + 8 * _WINDOW) + 4 * 256 * 256  # bytes, with those of what reads and writes
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
        counts: how often each byte followed each, `[256, 256]`; nothing before the first frame, and at the end.
        seen: frames that were learned from.
        spent: bytes of their payloads.
    """

    codec: Neighbours

    def __init__(self, codec: Neighbours, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.inner = codec.inner.coder(frame_bytes)
        self.sets: list[bytes] = []
        self.counts = np.zeros((0, 256), np.uint32)
        self.seen = 0
        self.spent = 0
        self._compile()

    def _compile(self) -> None:
        ints, data, frames = "int64[::1]", "uint8[::1]", "uint8[:,::1]"
        lengths = "Array(uint8, 2, 'C', readonly=True)"
        self._count = jit.choose(_count_kernel, count_reference, f"void({data}, int64, uint32[:,::1])")
        self._turn = jit.choose(_turn_kernel, turn_reference, f"void({frames}, int64, {ints}, {frames})")
        self._write = jit.choose(
            _encode_kernel, encode_reference, f"int64({frames}, int64, int64, uint32[::1], {data}, {ints})"
        )
        self._read = jit.choose(
            _decode_kernel,
            decode_reference,
            *(
                f"int64({heap}, {ints}, {ints}, {ints}, int64, {data}, {lengths}, uint64[::1], {frames})"
                for heap in (data, "Array(uint8, 1, 'C', readonly=True)")
            ),
        )
        self._ways: dict[int, tuple[int, int]] = {}  # of each stream: the way its frames go, and for how many more
        self._opened = [_Codes(one) for one in self.sets]
        # Without numba it would take too long to learn codes, and to write them. They can be read.
        self._has_kernels = optional.has_numba()
        self._newest = _newest(self._opened) if self._opened and self._has_kernels else None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`, each in the way that was best for its stream."""
        self.inner.learning = self.learning
        if not len(frames):
            return self.inner.encode(frames, streams)
        frames, names = jit.contiguous(frames), streams.tolist()
        if not (self.learning and self._counts) and all(map(self._goes_in_codes, names)):
            encoded = self._in_codes(frames)
            if encoded is not None:
                for stream in names:
                    self._ways[stream] = _CODES, self._ways[stream][1] - 1
                return encoded
        one_by_one = []
        for frame, stream in zip(frames, names, strict=True):  # as `zstd` does
            one_by_one.append(self._encode_one(frame, stream))
            if self.learning and self._counts:
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
        sizes = {way: int(one.lengths[0]) * (1 if way == _CODES else _CLEARLY) for way, one in found.items()}
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
        reference, first, codes = self._newest
        n = len(frames)
        payloads, lengths = np.empty(room(n, self.frame_bytes), np.uint8), np.empty(n, np.int64)
        size = self._write(frames, self.codec.row_bytes, first, codes, payloads, lengths)
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
                bad = self._read(heap, at, sizes, rows[which], width, codes.numbers, codes.lengths, codes.table, out)
            if bad >= 0:
                return int(which[bad])
        out[rows[~new]] = out[sources[~new]]
        return -1

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        """Codes are decoded without the GIL, whole batches in a call."""
        return (out.nbytes, parallel.WORTH) if self._opened else self.inner.effort(lengths, sources, out)

    def release(self, references: Ints) -> None:
        """Do nothing: codes and dictionaries stay."""

    def _learn(self, frame: Bytes, payload_bytes: int) -> None:
        """Count neighbours, and make codes of them when it is time. They are kept if they would have left less."""
        if not self.counts.size:
            self.counts = np.zeros((256, 256), np.uint32)
        self._count(frame, self.codec.row_bytes, self.counts)
        self.seen += 1
        self.spent += payload_bytes
        if self.seen in LEARNED_AFTER:
            learned, n_bytes = _learned(self.counts)
            if n_bytes < self.spent:
                sets = [*self.sets, learned]
                opened = [_Codes(one) for one in sets]
                # In this order: interrupted, the new ones are only not used yet.
                self.sets, self._opened, self._newest, self._ways = sets, opened, _newest(opened), {}
        if self.seen >= LEARNED_AFTER[-1]:
            self.counts = np.zeros((0, 256), np.uint32)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, of what is counted for the next, and of what the inner coder keeps."""
        own = sum(map(len, self.sets)) + sum(codes.nbytes for codes in self._opened) + array_bytes(self)
        own += 0 if self._newest is None else self._newest[-1].nbytes
        return own + self.inner.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of what is counted and of the codes that may be added, and of what the inner coder may add."""
        own = _LARGEST_SET * sum(self.seen < after <= self.seen + n_frames for after in LEARNED_AFTER)
        if self._counts and not self.counts.size:
            own += 256 * 256 * self.counts.itemsize
        return own + self.inner.growth_bytes(n_frames)

    @property
    def _counts(self) -> bool:
        """Whether there are codes to learn."""
        return self._has_kernels and self.seen < LEARNED_AFTER[-1]


class _Codes:
    """A set of codes, as who reads payloads takes it.

    Attributes:
        lengths: of the codes, `[n, 257]`.
        order: bytes, the most frequent first.
        numbers: of each byte, how many are more frequent.
        table: what the next bits are after each, see `_table`.
    """

    def __init__(self, learned: bytes) -> None:
        self.order, self.lengths = unpacked(learned)
        self.numbers = np.argsort(self.order, kind="stable").astype(np.uint8)
        self.table = _table(self.lengths, self.order)

    def to_write(self) -> tuple[int, NDArray[np.uint32]]:
        """Return what `encode_reference` takes: the byte before the first, and the codes of all after all."""
        codes = np.array([huffman.codes(one, LONGEST) for one in self.lengths], np.uint32)  # [n, 257]
        lengths, numbers = self.lengths.astype(np.uint32), self.numbers
        escaped = codes[:, 256:] << 8 | np.arange(256, dtype=np.uint32), lengths[:, 256:] + 8
        is_known = lengths[:, :256] > 0
        entries = np.where(is_known, codes[:, :256], escaped[0]) << 5 | np.where(is_known, lengths[:, :256], escaped[1])
        after = np.minimum(numbers, len(codes) - 1)
        return int(self.order[0]), np.ascontiguousarray(entries[after][:, numbers]).reshape(-1)

    @property
    def nbytes(self) -> int:
        """Bytes besides those of the set that was learned."""
        return self.numbers.nbytes + self.table.nbytes


def _newest(opened: list[_Codes]) -> tuple[Ints, int, NDArray[np.uint32]]:
    """Return what writes: the reference of its payloads, and what the newest codes are written with."""
    return np.array([_CODES + len(opened) - 1]), *opened[-1].to_write()


def _table(lengths: Bytes, order: Bytes) -> NDArray[np.uint64]:
    """Return for any next bits after each: up to four bytes, or after the last, what follows an escape.

    From the lowest bit: the bytes, each in 8 bits; in 16 where to look next, to which the bits there are added; in 8
    how many bits there were; in 8 how many bytes. An escape is none.
    """
    n = len(lengths)
    symbol, length = np.divmod(np.array([huffman.decoding_table(one, LONGEST) for one in lengths], np.int64), 16)
    length = np.maximum(length, 1)  # where no code begins so, which is in no payload: whoever reads has to go on
    bits = np.arange(_WINDOW)
    after = np.repeat(np.arange(n)[:, None], _WINDOW, axis=1)
    taken, count, found = np.zeros_like(after), np.zeros_like(after), np.zeros_like(after)
    bytes_ = np.append(order.astype(np.int64), 0)  # of each symbol
    goes_on = np.ones_like(after, np.bool_)
    for i in range(4):
        ahead = bits << taken & (_WINDOW - 1)
        here = np.minimum(after, n - 1)  # what follows an escape is not looked at
        next_symbol, next_length = symbol[here, ahead], length[here, ahead]
        is_escape = next_symbol == huffman.ESCAPE
        goes_on &= (taken + next_length <= LONGEST) & ~(is_escape & (i > 0))
        taken += np.where(goes_on, next_length, 0)
        plain = goes_on & ~is_escape
        found |= np.where(plain, bytes_[next_symbol] << 8 * i, 0)
        count += plain
        after = np.where(plain, np.minimum(next_symbol, n - 1), np.where(goes_on, n, after))
        goes_on &= ~is_escape
    raw = bytes_[bits] | (np.minimum(bits, n - 1) * _WINDOW) << 32 | 8 << 48 | 1 << 56
    return np.append(found | (after * _WINDOW) << 32 | taken << 48 | count << 56, raw).astype(np.uint64)


def unpacked(learned: bytes) -> tuple[Bytes, Bytes]:
    """Return the order of bytes and the code lengths, `[n, 257]`, of a set."""
    data = np.frombuffer(learned, np.uint8)
    return data[:256], data[256:].reshape(-1, 257)


def _learned(counts: NDArray[np.uint32]) -> tuple[bytes, int]:
    """Return codes, and the bytes that what was counted takes in them."""
    totals = counts.sum(axis=0, dtype=np.int64)
    order = np.argsort(-totals, kind="stable")
    own = min(int(np.count_nonzero(totals > _OWN * totals.sum())), MOST)
    after = np.zeros((own + 1, 256), np.int64)
    np.add.at(after, np.minimum(np.arange(256), own), counts[order][:, order])
    lengths = np.array([huffman.code_lengths(one, LONGEST, _RARE) for one in after])
    bits = np.where(lengths[:, :256], lengths[:, :256], lengths[:, 256:] + 8)
    return order.astype(np.uint8).tobytes() + lengths.tobytes(), int((after * bits).sum()) // 8


def _count_kernel(frame: Bytes, width: int, counts: NDArray[np.uint32]) -> None:
    height = frame.size // width
    for y in range(height):
        row, left = frame[y * width : (y + 1) * width], np.uint8(0)
        if y >= 4:
            left = frame[(y - 3) * width - 1]
        for x in range(width):
            if x or y >= 4:
                counts[left, row[x]] += np.uint32(1)
            left = row[x]


def count_reference(frame: Bytes, width: int, counts: NDArray[np.uint32]) -> None:
    """Count each byte after its left neighbour, the first of a row after the last of the one four rows above."""
    for part in _parts(frame, width):
        np.add.at(counts, (part[:-1], part[1:]), np.uint32(1))


def _parts(frame: Bytes, width: int) -> list[Bytes]:
    return [frame.reshape(-1, width)[part::4].reshape(-1) for part in range(4)]


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


def _encode_kernel(frames: Bytes, width: int, first: int, codes: NDArray[np.uint32], out: Bytes, lengths: Ints) -> int:
    height, whole = frames.shape[1] // width, width // 3 * 3
    low = np.uint64(31)  # the bits of a length
    at = np.uint64(0)  # unsigned indices: signed ones are checked for counting from the end
    for i in range(frames.shape[0]):
        begin = at
        at += np.uint64(_HEAD)
        for part in range(4):
            start, left = at, np.uint64(first)
            waiting, n_bits = np.uint64(0), np.uint64(0)  # bits that are not written yet: the lowest of these
            for y in range(part, height, 4):
                row = frames[i, y * width : (y + 1) * width]
                x = np.uint64(0)
                while x < np.uint64(width):
                    one = np.uint64(row[x])
                    code = np.uint64(codes[left << np.uint64(8) | one])
                    if x < np.uint64(whole):  # three at once: 48 bits at most
                        two, three = np.uint64(row[x + np.uint64(1)]), np.uint64(row[x + np.uint64(2)])
                        second = np.uint64(codes[one << np.uint64(8) | two])
                        third = np.uint64(codes[two << np.uint64(8) | three])
                        bits = (code >> np.uint64(5) << (second & low) | second >> np.uint64(5)) << (third & low)
                        bits, length = bits | third >> np.uint64(5), (code & low) + (second & low) + (third & low)
                        left, x = three, x + np.uint64(3)
                    else:
                        bits, length, left, x = code >> np.uint64(5), code & low, one, x + np.uint64(1)
                    waiting, n_bits = waiting << length | bits, n_bits + length
                    highest = waiting << (np.uint64(64) - n_bits)
                    for k in range(8):
                        out[at + np.uint64(k)] = highest >> np.uint64(56 - 8 * k) & np.uint64(255)
                    at, n_bits = at + (n_bits >> np.uint64(3)), n_bits & np.uint64(7)
            at += np.uint64(n_bits > np.uint64(0))
            if part < 3:
                for k in range(4):
                    out[begin + np.uint64(4 * part + k)] = (at - start) >> np.uint64(8 * k) & np.uint64(255)
        lengths[i] = at - begin
    return int(at)


def encode_reference(
    frames: Bytes, width: int, first: int, codes: NDArray[np.uint32], out: Bytes, lengths: Ints
) -> int:
    """Write the payloads of frames into `out`, one after another; returns their size.

    Args:
        frames: the pixels, `[n, height * width]`.
        width: how many are a row.
        first: the byte that the first pixel of each part comes after.
        codes: `code << 5 | length` of each byte after each, `[256 * 256]`.
        out: the payloads go there. It has `room`; what comes after them may be overwritten.
        lengths: their sizes go there, `[n]`.
    """
    at = 0
    for i, frame in enumerate(frames):
        parts = []
        for pixels in _parts(frame, width):
            befores = np.append(first, pixels[:-1])
            entries = codes[befores.astype(np.int64) << 8 | pixels].tolist()
            text = "".join(f"{entry >> 5:0{entry & 31}b}" for entry in entries)
            parts.append(np.packbits(np.array([*text], np.uint8)))
        sizes = np.array([part.size for part in parts[:3]], "<u4").view(np.uint8)
        payload = np.concatenate([sizes, *parts])
        out[at : at + payload.size], lengths[i] = payload, payload.size
        at += payload.size
    return at


def room(n: int, frame_bytes: int) -> int:
    """Return how many bytes payloads may take while they are written: 16 bits a pixel, and eight bytes at once."""
    return n * (_HEAD + 2 * frame_bytes + 4) + 8


def _decode_kernel(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    rows: Ints,
    width: int,
    numbers: Bytes,
    code_lengths: Bytes,
    table: NDArray[np.uint64],
    out: Bytes,
) -> int:
    frame_bytes = out.shape[1]
    height, own = frame_bytes // width, code_lengths.shape[0] - 1
    n_before = np.zeros(5, np.int64)  # pixels of the parts before each
    for part in range(4):
        n_before[part + 1] = n_before[part] + (height + 3 - part) // 4 * width
    # A symbol takes 16 bits at most: whatever the bits are, no part is read beyond this. So on the way nothing is
    # checked; that each part ends where it should, afterwards.
    most = 0
    for i in range(rows.size):
        most = max(most, lengths[i])
    data, pixels = np.zeros(min(most, frame_bytes) + 2 * frame_bytes + 8, np.uint8), np.empty(frame_bytes, np.uint8)
    ends, places, done, tos = np.empty(4, np.int64), np.empty(4, np.uint64), np.empty(4, np.uint64), n_before[:4].copy()
    for i in range(rows.size):
        start, length, frame = offsets[i], lengths[i], out[rows[i]]
        if start < 0 or length < _HEAD or length >= frame_bytes or start > heap.size - length:
            return i
        payload = heap[start : start + length]
        for k in range(length):
            data[k] = payload[k]
        end = np.int64(_HEAD)
        for part in range(3):
            done[part] = 8 * end
            for k in range(4):
                end += np.int64(data[4 * part + k]) << 8 * k
            ends[part] = end
        done[3] = 8 * end
        ends[3] = length
        if end > length:
            return i
        # Of each part: where in the table to look, where the bits are, and where pixels go. Unsigned indices: signed
        # ones are checked for counting from the end.
        look_a = look_b = look_c = look_d = np.uint64(0)
        at_a, at_b, at_c, at_d = done[0], done[1], done[2], done[3]
        to_a, to_b = np.uint64(n_before[0]), np.uint64(n_before[1])
        to_c, to_d = np.uint64(n_before[2]), np.uint64(n_before[3])
        while True:
            least = min(
                min(n_before[1] - np.int64(to_a), n_before[2] - np.int64(to_b)),
                min(n_before[3] - np.int64(to_c), n_before[4] - np.int64(to_d)),
            )
            if least < 4 * _AT_ONCE:
                break
            for _ in range(least // (4 * _AT_ONCE)):
                byte, bits_a = at_a >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits_a |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(56 - 8 * k)
                bits_a <<= at_a & np.uint64(7)
                byte, bits_b = at_b >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits_b |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(56 - 8 * k)
                bits_b <<= at_b & np.uint64(7)
                byte, bits_c = at_c >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits_c |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(56 - 8 * k)
                bits_c <<= at_c & np.uint64(7)
                byte, bits_d = at_d >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits_d |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(56 - 8 * k)
                bits_d <<= at_d & np.uint64(7)
                for _ in range(_AT_ONCE):
                    entry = table[look_a | bits_a >> np.uint64(56)]
                    for k in range(4):
                        pixels[to_a + np.uint64(k)] = entry >> np.uint64(8 * k) & np.uint64(255)
                    look_a, taken = entry >> np.uint64(32) & np.uint64(0xFFFF), entry >> np.uint64(48) & np.uint64(255)
                    bits_a, at_a, to_a = bits_a << taken, at_a + taken, to_a + (entry >> np.uint64(56))
                    entry = table[look_b | bits_b >> np.uint64(56)]
                    for k in range(4):
                        pixels[to_b + np.uint64(k)] = entry >> np.uint64(8 * k) & np.uint64(255)
                    look_b, taken = entry >> np.uint64(32) & np.uint64(0xFFFF), entry >> np.uint64(48) & np.uint64(255)
                    bits_b, at_b, to_b = bits_b << taken, at_b + taken, to_b + (entry >> np.uint64(56))
                    entry = table[look_c | bits_c >> np.uint64(56)]
                    for k in range(4):
                        pixels[to_c + np.uint64(k)] = entry >> np.uint64(8 * k) & np.uint64(255)
                    look_c, taken = entry >> np.uint64(32) & np.uint64(0xFFFF), entry >> np.uint64(48) & np.uint64(255)
                    bits_c, at_c, to_c = bits_c << taken, at_c + taken, to_c + (entry >> np.uint64(56))
                    entry = table[look_d | bits_d >> np.uint64(56)]
                    for k in range(4):
                        pixels[to_d + np.uint64(k)] = entry >> np.uint64(8 * k) & np.uint64(255)
                    look_d, taken = entry >> np.uint64(32) & np.uint64(0xFFFF), entry >> np.uint64(48) & np.uint64(255)
                    bits_d, at_d, to_d = bits_d << taken, at_d + taken, to_d + (entry >> np.uint64(56))
        places[0], places[1], places[2], places[3] = look_a, look_b, look_c, look_d
        done[0], done[1], done[2], done[3] = at_a, at_b, at_c, at_d
        tos[0], tos[1], tos[2], tos[3] = to_a, to_b, to_c, to_d
        for part in range(4):
            look, at, to, stop = places[part], done[part], tos[part], n_before[part + 1]
            while to < stop:
                byte, bits = at >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(56 - 8 * k)
                entry = table[look | bits << (at & np.uint64(7)) >> np.uint64(56)]
                n, left = np.int64(entry >> np.uint64(56)), np.int64(look >> np.uint64(8))
                taken = entry >> np.uint64(48) & np.uint64(255)
                if n > stop - to:  # what follows in the last byte looked like pixels
                    n, taken = stop - to, np.uint64(0)
                    for k in range(n):
                        symbol = np.int64(numbers[entry >> np.uint64(8 * k) & np.uint64(255)])
                        taken += np.uint64(code_lengths[left, symbol])
                        left = min(symbol, own)
                for k in range(n):
                    pixels[to + k] = entry >> np.uint64(8 * k) & np.uint64(255)
                look, at, to = entry >> np.uint64(32) & np.uint64(0xFFFF), at + taken, to + n
            if not 0 <= 8 * ends[part] - np.int64(at) < 8:
                return i
        for part in range(4):
            k = n_before[part]
            for y in range(part, height, 4):
                row, of_row = frame[y * width : (y + 1) * width], pixels[k : k + width]
                for x in range(width):
                    row[x] = of_row[x]
                k += width
    return -1


def decode_reference(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    rows: Ints,
    width: int,
    numbers: Bytes,
    code_lengths: Bytes,
    table: NDArray[np.uint64],
    out: Bytes,
) -> int:
    """Decode payloads into `out[rows]`, in Python, without `table`. Returns the first that is damaged, or -1."""
    frame_bytes, own = out.shape[1], len(code_lengths) - 1
    order = np.argsort(numbers)
    tables = [huffman.decoding_table(one, LONGEST).tolist() for one in code_lengths]
    for i, (start, length, row) in enumerate(zip(offsets.tolist(), lengths.tolist(), rows.tolist(), strict=True)):
        if start < 0 or not _HEAD <= length < frame_bytes or start > heap.size - length:
            return i
        payload = heap[start : start + length]
        ends = [_HEAD, *(_HEAD + payload[:_HEAD].copy().view("<u4").astype(np.int64).cumsum()).tolist(), length]
        if ends[3] > length:
            return i
        frame = out[row].reshape(-1, width)
        for part in range(4):
            bits = "".join(f"{byte:08b}" for byte in payload[ends[part] : ends[part + 1]].tolist())
            symbols: list[int] = []
            at, left = 0, 0
            for _ in range(frame[part::4].size):
                symbol, taken = divmod(tables[left][int(bits[at : at + LONGEST].ljust(LONGEST, "0"), 2)], 16)
                at += max(taken, 1)
                if symbol == huffman.ESCAPE:
                    symbol, at = int(bits[at : at + 8].ljust(8, "0"), 2), at + 8
                symbols.append(symbol)
                left = min(symbol, own)
            if not 0 <= len(bits) - at < 8:
                return i
            frame[part::4] = order[symbols].reshape(-1, width)
    return -1
