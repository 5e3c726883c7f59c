"""Codes for pictures of one byte a pixel: what is likely depends on the pixel on the left and the one above.

A texture repeats nowhere, but its neighbours are likely ones. The pairs of neighbours are put into up to 128 contexts,
pairs that are followed by much the same together; in each, every byte has its share of 512. They are learned from
frames (see `learned`). A pixel is then a number that was told before it and some bits, as in zstd's FSE: tabled
asymmetric numeral systems (J. Duda). A byte that is likely takes less than one bit, which Huffman codes cannot do.

The picture is cut into eight bands of rows; the last one also has what is left over. Each has a number of its own, so
eight pixels are decoded side by side, though each waits for the one on its left. A payload is

    numbers  uint16[8]   of the bands, little-endian
    bits                 of each byte the lowest first: of the first pixels of all bands, of the second ones and so on,
                         then of the rows that only the last band has. A byte that is too rare to have a share is
                         escaped: eight bits, after those of the pixels that are decoded with it

In the first row of a band the pixel on the left also stands for the one above, and before the first of other rows the
one above for that on the left; before the first pixel of a band there is 0. A set of codes is

    contexts uint8[65536]       of each pair, 256 * left + above
    shares   uint16[n, 257]     of each byte in each context, and last that of all rare ones; little-endian
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Bytes, CodecError, Ints

Shares = NDArray[np.uint16]
Entries = NDArray[np.int32]

BANDS = 8
HEAD = 2 * BANDS
"""Bytes of the numbers."""

_BITS = 9
_ALL = 1 << _BITS
MOST = 128
"""Contexts."""

_PAIRS = 4096  # the most frequent ones, each of which gets the context that suits it; others go by the left pixel
_ROUNDS = 8  # in which pairs choose their contexts
_PAIR = 256 * 256
SMALLEST_SET = _PAIR + 2 * 257
"""Bytes of a set."""

LARGEST_SET = _PAIR + MOST * (2 * 257 + 4 * _ALL + 4 * 257 + 2 * _ALL)
"""Bytes of a set, with those of what reads and writes."""


class Contexts:
    """A set of codes, as who reads payloads takes it.

    Attributes:
        of_pairs: the context of each pair.
        shares: of each byte in each context, `[n, 257]`.
        table: what each number means in each context, see `_table`.

    Raises:
        CodecError: the set is none.
    """

    def __init__(self, learned: bytes) -> None:
        data = np.frombuffer(learned, np.uint8)
        n = (data.size - _PAIR) // (2 * 257)
        if not 1 <= n <= MOST or data.size != _PAIR + n * 2 * 257:
            raise CodecError(f"contexts: {data.size} bytes are no set of codes")
        self.of_pairs, self.shares = data[:_PAIR], data[_PAIR:].view("<u2").reshape(n, 257)
        sums = self.shares.sum(axis=1, dtype=np.int64)
        if self.of_pairs.max() >= n or np.any(sums != _ALL) or not self.shares[:, 256].all():
            raise CodecError("contexts: a set of codes is damaged")
        self.table = _table(self.shares)

    def to_write(self) -> tuple[Bytes, Entries, NDArray[np.uint16]]:
        """Return what `encode_reference` takes: contexts, the entries of all bytes in them, and the next numbers."""
        q = self.shares.astype(np.int64)
        most = np.where(q > 0, _BITS - np.log2(np.maximum(q - 1, 1)).astype(np.int64), 0)
        first = np.arange(len(q))[:, None] * _ALL + np.cumsum(q, axis=1) - 2 * q
        entries = np.where(q > 0, first << 14 | most << 10 | (q << most) - _ALL, 0).astype(np.int32)
        return self.of_pairs, entries.reshape(-1), _ranks(_spread(self.shares)).astype(np.uint16).reshape(-1)

    @property
    def nbytes(self) -> int:
        """Bytes besides those of the set that was learned."""
        return self.table.nbytes


def _spread(shares: Shares) -> Ints:
    """Return the byte of each number in each context, `[n, 512]`; those of a byte are spread as FSE does."""
    places = np.arange(_ALL) * ((_ALL >> 1) + (_ALL >> 3) + 3) & (_ALL - 1)
    spread = np.empty((len(shares), _ALL), np.int64)
    for one, counts in zip(spread, shares, strict=True):
        one[places] = np.repeat(np.arange(257), counts)
    return spread


def _ranks(spread: Ints) -> Ints:
    """Return the numbers of each byte, one after another."""
    return spread.argsort(axis=1, kind="stable")


def _table(shares: Shares) -> NDArray[np.uint32]:
    """Return for each number in each context what it means.

    From the lowest bit: in 8 the byte, in 1 whether it is escaped, in 4 from bit 12 how many bits follow, in 16 what to
    add to these for the next number.
    """
    q, spread = shares.astype(np.int64), _spread(shares)
    nth = np.empty_like(spread)
    np.put_along_axis(nth, _ranks(spread), np.arange(_ALL)[None], axis=1)
    nth += np.take_along_axis(2 * q - np.cumsum(q, axis=1), spread, axis=1)
    n_bits = _BITS - np.log2(nth).astype(np.int64)
    table = spread & 255 | (spread >> 8) << 8 | n_bits << 12 | ((nth << n_bits) - _ALL) << 16
    return table.astype(np.uint32).reshape(-1)


def learned(frames: Bytes, width: int, most: int = MOST) -> tuple[bytes, int]:
    """Return a set of codes for frames like these, and about how many bytes these take in it.

    Args:
        frames: `[n, height * width]`.
        width: of a row.
        most: contexts.
    """
    pixels = frames.reshape(len(frames), -1, width)
    left, above = np.zeros_like(pixels), np.zeros_like(pixels)
    left[:, :, 1:], left[:, 1:, 0] = pixels[:, :, :-1], pixels[:, :-1, 0]
    above[:, 1:], above[:, 0] = pixels[:, :-1], left[:, 0]
    pairs, bytes_ = left.astype(np.int32).reshape(-1) << 8 | above.reshape(-1), pixels.reshape(-1)
    often = np.bincount(pairs, minlength=_PAIR)
    order = np.argsort(-often, kind="stable")[: min(_PAIRS, int(np.count_nonzero(often)))]
    place = np.full(_PAIR, len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    followed = np.bincount(place[pairs] << 8 | bytes_, minlength=len(order) + 1 << 8)[: len(order) << 8]
    after = followed.reshape(-1, 256).astype(np.float32)  # [pairs, 256]
    after_left = np.bincount(pairs >> 8 << 8 | bytes_, minlength=_PAIR).reshape(256, 256).astype(np.float32)
    overall = after.sum(axis=0) / after.sum()
    together = after[:most].copy()  # each of the most frequent pairs begins as a context
    for _ in range(_ROUNDS):
        cost = _cost(together, overall)
        chosen = (after @ cost).argmin(axis=1)
        members = np.zeros((len(together), len(after)), np.float32)
        members[chosen, np.arange(len(after))] = 1
        together = members @ after
    of_pairs = np.repeat((after_left @ _cost(together, overall)).argmin(axis=1), 256).astype(np.uint8)
    of_pairs[order] = chosen
    counts = np.bincount(of_pairs[pairs].astype(np.int64) << 8 | bytes_, minlength=len(together) << 8).reshape(-1, 256)
    shares = np.array([_shares(one) for one in counts], "<u2")
    bits = _BITS - np.log2(np.maximum(shares, 1))
    bits = np.where(shares[:, :256] > 0, bits[:, :256], bits[:, 256:] + 8)
    return of_pairs.tobytes() + shares.tobytes(), int((counts * bits).sum() / 8) + HEAD * len(frames)


def _cost(counts: NDArray[np.float32], overall: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the bits of each byte in each context, `[256, n]`; what never came is about as likely as anywhere."""
    likely = (counts + 8 * overall + 1e-3) / (counts.sum(axis=1, keepdims=True) + 8.256)
    return np.ascontiguousarray(-np.log2(likely.T), np.float32)


def _shares(counts: Ints) -> Ints:
    """Return shares of `_ALL` for so frequent bytes: none for rare ones, and one more for all of those, `[257]`."""
    total = max(int(counts.sum()), 1)
    is_rare = 2 * _ALL * counts < total
    shares = np.append(np.where(is_rare, 0, np.maximum(counts * (_ALL - 1) // total, 1)), 0)
    shares[256] = max(int(counts[is_rare].sum()) * _ALL // total, 1)
    while (spare := _ALL - int(shares.sum())) != 0:  # the most frequent one has what is left over, or lacking
        most = int(shares.argmax())
        shares[most] += max(spare, 1 - int(shares[most]))
    return shares


class ContextsKernels:
    """The functions that write and read, compiled where numba is there."""

    def __init__(self) -> None:
        ints, data, frames = "int64[::1]", "uint8[::1]", "uint8[:,::1]"
        fixed = "Array(uint8, 1, 'C', readonly=True)"
        self.encode = jit.choose(
            _encode_kernel,
            encode_reference,
            f"int64({frames}, int64, {fixed}, int32[::1], uint16[::1], {data}, {ints})",
        )
        self.decode = jit.choose(
            _decode_kernel,
            decode_reference,
            *(
                f"int64({heap}, {ints}, {ints}, {ints}, int64, {fixed}, uint32[::1], {frames})"
                for heap in (data, fixed)
            ),
        )


def room(n: int, frame_bytes: int) -> int:
    """Return how many bytes payloads may take while they are written: 17 bits a pixel, and eight bytes at once."""
    return n * (HEAD + _most_bytes(frame_bytes)) + 8


def _most_bytes(frame_bytes: int) -> int:
    """Return the bytes that so many pixels take at most, whatever the bits are."""
    return (frame_bytes * (_BITS + 8) + 7) // 8


def _encode_kernel(
    frames: Bytes, width: int, of_pairs: Bytes, entries: Entries, ranks: NDArray[np.uint16], out: Bytes, lengths: Ints
) -> int:
    frame_bytes = frames.shape[1]
    height = frame_bytes // width
    common = height // BANDS
    spacing = common * width
    told, n_told = np.empty(2 * frame_bytes, np.uint64), np.empty(2 * frame_bytes, np.uint8)  # bits, and how many
    numbers, entry_of = np.empty(BANDS, np.uint64), np.empty(BANDS, np.int64)
    at = np.int64(0)
    for i in range(frames.shape[0]):
        frame = frames[i]
        numbers[:] = 0
        n = 0
        # From the last pixel to the first: the numbers that come first are known last.
        for row in range(height - (BANDS - 1) * common - 1, -1, -1):
            lowest = 0 if row < common else BANDS - 1
            for x in range(width - 1, -1, -1):
                for band in range(BANDS - 1, lowest - 1, -1):
                    p = np.uint64(band * spacing + row * width + x)
                    if row > 0:
                        above = frame[p - np.uint64(width)]
                        left = frame[p - np.uint64(1)] if x > 0 else above
                    else:
                        left = frame[p - np.uint64(1)] if x > 0 else np.uint8(0)
                        above = left
                    first = np.uint64(of_pairs[np.uint64(left) << np.uint64(8) | np.uint64(above)]) * np.uint64(257)
                    entry = np.int64(entries[first + np.uint64(frame[p])])
                    if entry == 0:
                        told[n], n_told[n] = np.uint64(frame[p]), 8
                        n += 1
                        entry = np.int64(entries[first + np.uint64(256)])
                    entry_of[band] = entry
                some, n_some = np.uint64(0), np.uint64(0)
                for band in range(BANDS - 1, lowest - 1, -1):
                    entry, number = entry_of[band], numbers[band] + np.uint64(_ALL)
                    few = number < np.uint64(_ALL + (entry & 0x3FF))
                    n_bits = np.uint64(entry >> 10 & 15) - np.uint64(few)
                    numbers[band] = ranks[np.uint64(np.int64(number >> n_bits) + (entry >> 14))]
                    some = some << n_bits | (number & ((np.uint64(1) << n_bits) - np.uint64(1)))
                    n_some += n_bits
                    if band == BANDS // 2 or band == lowest:  # half of them at once: 36 bits at most
                        told[n], n_told[n] = some, n_some
                        n += 1
                        some, n_some = np.uint64(0), np.uint64(0)
        begin = at
        for band in range(BANDS):
            out[at], out[at + 1] = numbers[band] & np.uint64(255), numbers[band] >> np.uint64(8)
            at += 2
        waiting, n_bits = np.uint64(0), np.uint64(0)
        for j in range(n - 1, -1, -1):
            waiting |= told[j] << n_bits
            n_bits += np.uint64(n_told[j])
            for k in range(8):
                out[at + k] = waiting >> np.uint64(8 * k) & np.uint64(255)
            at += np.int64(n_bits >> np.uint64(3))
            waiting, n_bits = waiting >> (n_bits & np.uint64(0x78)), n_bits & np.uint64(7)
        at += np.int64(n_bits > np.uint64(0))
        lengths[i] = at - begin
    return int(at)


def encode_reference(
    frames: Bytes, width: int, of_pairs: Bytes, entries: Entries, ranks: NDArray[np.uint16], out: Bytes, lengths: Ints
) -> int:
    """Write the payloads of frames into `out`, one after another; returns their size.

    Args:
        frames: the pixels, `[n, height * width]`.
        width: how many are a row.
        of_pairs: the context of each pair.
        entries: of each byte in each context, and last of those that are escaped, `[n * 257]`; 0 for these themselves.
            The band's number and 512 are told in as many bits as bits 10 to 13 say, or one less if they are less than
            the lowest 10 and 512. The others, added to what is left without these, say where the next one is.
        ranks: the next numbers.
        out: the payloads go there. It has `room`; what comes after them may be overwritten.
        lengths: their sizes go there, `[n]`.
    """
    at = 0
    for i, frame in enumerate(frames):
        pairs, groups = _pairs(frame, width), _groups(frame.size // width, width)
        numbers, bits = [0] * BANDS, []  # the last bits first
        for group in reversed(groups):
            found = []
            for _, p in reversed(group):
                first = int(of_pairs[pairs[p]]) * 257
                entry = int(entries[first + int(frame[p])])
                if entry == 0:
                    bits.append(f"{int(frame[p]):08b}")
                    entry = int(entries[first + 256])
                found.append(entry)
            for (band, _), entry in zip(reversed(group), found, strict=True):
                number = numbers[band] + _ALL
                n_bits = (entry >> 10 & 15) - (number < _ALL + (entry & 0x3FF))
                numbers[band] = int(ranks[(number >> n_bits) + (entry >> 14)])
                bits.append(f"{number & (1 << n_bits) - 1:0{n_bits}b}" if n_bits else "")
        told = np.array([*"".join(bits)], np.uint8)[::-1]
        payload = np.concatenate([np.array(numbers, "<u2").view(np.uint8), np.packbits(told, bitorder="little")])
        out[at : at + payload.size], lengths[i] = payload, payload.size
        at += payload.size
    return at


def _pairs(frame: Bytes, width: int) -> list[int]:
    """Return the pair of each pixel, from the pixels before it."""
    pixels = frame.reshape(-1, width)
    left, above = np.zeros_like(pixels), np.zeros_like(pixels)
    left[:, 1:], left[1:, 0] = pixels[:, :-1], pixels[:-1, 0]
    above[1:] = pixels[:-1]
    for first in _first_rows(len(pixels)):
        left[first, 0] = 0
        above[first] = left[first]
    pairs: list[int] = (left.astype(np.int64) << 8 | above).reshape(-1).tolist()
    return pairs


def _first_rows(height: int) -> list[int]:
    return [band * (height // BANDS) for band in range(BANDS)]


def _groups(height: int, width: int) -> list[list[tuple[int, int]]]:
    """Return which pixels of which bands are decoded together, in order."""
    common, firsts = height // BANDS, _first_rows(height)
    together = [[(band, firsts[band] * width + p) for band in range(BANDS)] for p in range(common * width)]
    return together + [[(BANDS - 1, p)] for p in range(common * BANDS * width, height * width)]


def _decode_kernel(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    rows: Ints,
    width: int,
    of_pairs: Bytes,
    table: NDArray[np.uint32],
    out: Bytes,
) -> int:
    frame_bytes = out.shape[1]
    height = frame_bytes // width
    common = height // BANDS
    # Pixels of all bands lie side by side here, and before each row there is one more, for what is on the left.
    line = BANDS * (width + 1)
    pixels = np.zeros(common * line + BANDS, np.uint8)
    # Whatever the bits are, no more of them are read. So nothing is checked on the way.
    most = HEAD + ((_BITS + 8) * frame_bytes + 7) // 8
    data = np.zeros(most + 16, np.uint8)
    entries = np.empty(BANDS, np.uint64)
    one, eight, low, all_bits = np.uint64(1), np.uint64(8), np.uint64(255), np.uint64(_BITS)
    is_escaped = np.uint64(256)
    for i in range(rows.size):
        start, length, frame = offsets[i], lengths[i], out[rows[i]]
        if start < 0 or length < HEAD or length >= frame_bytes or start > heap.size - length:
            return i
        payload = heap[start : start + length]
        for k in range(length):
            data[k] = payload[k]
        outside = np.uint64(0)
        for k in range(BANDS):
            outside |= np.uint64(data[2 * k + 1])
        if outside >= np.uint64(_ALL >> 8):
            return i
        n0 = np.uint64(data[0]) | np.uint64(data[1]) << eight
        n1 = np.uint64(data[2]) | np.uint64(data[3]) << eight
        n2 = np.uint64(data[4]) | np.uint64(data[5]) << eight
        n3 = np.uint64(data[6]) | np.uint64(data[7]) << eight
        n4 = np.uint64(data[8]) | np.uint64(data[9]) << eight
        n5 = np.uint64(data[10]) | np.uint64(data[11]) << eight
        n6 = np.uint64(data[12]) | np.uint64(data[13]) << eight
        n7 = np.uint64(data[14]) | np.uint64(data[15]) << eight
        at, to = np.uint64(8 * HEAD), eight
        for y in range(common):
            up = np.uint64(line) if y > 0 else eight
            for k in range(BANDS):
                here = to + np.uint64(k)
                pixels[here - eight] = pixels[here - up] if y > 0 else np.uint8(0)
            for _ in range(width):
                before, above = to - eight, to - up
                byte, bits = at >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(8 * k)
                bits >>= at & np.uint64(7)
                pair = np.uint64(pixels[before]) << eight | np.uint64(pixels[above])
                e0 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n0])
                n_bits = e0 >> np.uint64(12) & np.uint64(15)
                n0 = (e0 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to] = e0 & low
                pair = np.uint64(pixels[before + np.uint64(1)]) << eight | np.uint64(pixels[above + np.uint64(1)])
                e1 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n1])
                n_bits = e1 >> np.uint64(12) & np.uint64(15)
                n1 = (e1 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(1)] = e1 & low
                pair = np.uint64(pixels[before + np.uint64(2)]) << eight | np.uint64(pixels[above + np.uint64(2)])
                e2 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n2])
                n_bits = e2 >> np.uint64(12) & np.uint64(15)
                n2 = (e2 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(2)] = e2 & low
                pair = np.uint64(pixels[before + np.uint64(3)]) << eight | np.uint64(pixels[above + np.uint64(3)])
                e3 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n3])
                n_bits = e3 >> np.uint64(12) & np.uint64(15)
                n3 = (e3 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(3)] = e3 & low
                byte, bits = at >> np.uint64(3), np.uint64(0)
                for k in range(8):
                    bits |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(8 * k)
                bits >>= at & np.uint64(7)
                pair = np.uint64(pixels[before + np.uint64(4)]) << eight | np.uint64(pixels[above + np.uint64(4)])
                e4 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n4])
                n_bits = e4 >> np.uint64(12) & np.uint64(15)
                n4 = (e4 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(4)] = e4 & low
                pair = np.uint64(pixels[before + np.uint64(5)]) << eight | np.uint64(pixels[above + np.uint64(5)])
                e5 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n5])
                n_bits = e5 >> np.uint64(12) & np.uint64(15)
                n5 = (e5 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(5)] = e5 & low
                pair = np.uint64(pixels[before + np.uint64(6)]) << eight | np.uint64(pixels[above + np.uint64(6)])
                e6 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n6])
                n_bits = e6 >> np.uint64(12) & np.uint64(15)
                n6 = (e6 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(6)] = e6 & low
                pair = np.uint64(pixels[before + np.uint64(7)]) << eight | np.uint64(pixels[above + np.uint64(7)])
                e7 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n7])
                n_bits = e7 >> np.uint64(12) & np.uint64(15)
                n7 = (e7 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                bits, at = bits >> n_bits, at + n_bits
                pixels[to + np.uint64(7)] = e7 & low
                if (e0 | e1 | e2 | e3 | e4 | e5 | e6 | e7) & is_escaped:
                    entries[0], entries[1], entries[2], entries[3] = e0, e1, e2, e3
                    entries[4], entries[5], entries[6], entries[7] = e4, e5, e6, e7
                    for k in range(BANDS):
                        if entries[k] & is_escaped:
                            byte = at >> np.uint64(3)
                            two = np.uint64(data[byte]) | np.uint64(data[byte + one]) << eight
                            pixels[to + np.uint64(k)] = two >> (at & np.uint64(7)) & low
                            at += eight
                to += eight
            to += eight
        for y in range(common):
            for k in range(BANDS):
                row, p = frame[(k * common + y) * width : (k * common + y + 1) * width], y * line + BANDS + k
                for x in range(width):
                    row[x] = pixels[p + BANDS * x]
        for y in range(BANDS * common, height):
            for x in range(width):
                p = y * width + x
                left = frame[p - 1] if x > 0 else frame[p - width] if y > 0 else np.uint8(0)
                pair = np.uint64(left) << eight | np.uint64(frame[p - width] if y > 0 else left)
                e7 = np.uint64(table[np.uint64(of_pairs[pair]) << all_bits | n7])
                byte, bits = at >> np.uint64(3), np.uint64(0)
                for k in range(4):
                    bits |= np.uint64(data[byte + np.uint64(k)]) << np.uint64(8 * k)
                bits >>= at & np.uint64(7)
                n_bits = e7 >> np.uint64(12) & np.uint64(15)
                n7 = (e7 >> np.uint64(16)) + (bits & ((one << n_bits) - one))
                at += n_bits
                frame[p] = e7 & low
                if e7 & is_escaped:
                    frame[p] = bits >> n_bits & low
                    at += eight
        unspent = 8 * length - np.int64(at)
        if (n0 | n1 | n2 | n3 | n4 | n5 | n6 | n7) != np.uint64(0) or not 0 <= unspent < 8:
            return i
    return -1


def decode_reference(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    rows: Ints,
    width: int,
    of_pairs: Bytes,
    table: NDArray[np.uint32],
    out: Bytes,
) -> int:
    """Decode payloads into `out[rows]`, in Python. Returns the first that is damaged, or -1."""
    frame_bytes = out.shape[1]
    contexts, meanings, groups = of_pairs.tolist(), table.tolist(), _groups(frame_bytes // width, width)
    firsts = {row * width for row in _first_rows(frame_bytes // width)}
    for i, (start, length, row) in enumerate(zip(offsets.tolist(), lengths.tolist(), rows.tolist(), strict=True)):
        if start < 0 or not HEAD <= length < frame_bytes or start > heap.size - length:
            return i
        payload = heap[start : start + length]
        numbers = payload[:HEAD].copy().view("<u2").tolist()
        if max(numbers) >= _ALL:
            return i
        told = int.from_bytes(payload[HEAD:].tobytes(), "little")
        at, pixels = 0, [0] * frame_bytes
        for group in groups:
            escaped = []
            for band, p in group:
                y, x = divmod(p, width)
                is_first = y * width in firsts
                left = pixels[p - 1] if x else 0 if is_first else pixels[p - width]
                above = left if is_first else pixels[p - width]
                meaning = meanings[contexts[left << 8 | above] << _BITS | numbers[band]]
                n_bits = meaning >> 12 & 15
                numbers[band] = (meaning >> 16) + (told >> at & (1 << n_bits) - 1)
                at += n_bits
                pixels[p] = meaning & 255
                if meaning & 256:
                    escaped.append(p)
            for p in escaped:
                pixels[p] = told >> at & 255
                at += 8
        if any(numbers) or not 0 <= 8 * (length - HEAD) - at < 8:
            return i
        out[row] = pixels
    return -1
