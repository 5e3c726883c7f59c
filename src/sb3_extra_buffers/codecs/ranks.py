"""Between a palette and `near`: how likely each pixel is below the one above it. Exact, fast to write and to read.

A texture repeats nowhere, but below a colour come few others. From the first frames it is learned for each byte which
four are the likeliest below it; and which fifteen others, the same ones for all bytes of one of 32 classes. A pixel
then takes 1 bit, 3, 7 or 15; or else three are the likeliest, and it takes 2 bits, 6 or 14, whichever is less in sum.
What was learned is kept if it leaves less than `near`; and so does each frame, or it goes to `near`.

Only the row above is asked for, never the pixel on the left: many pixels are found at once (see `vectors`). A payload
is

    below   one bit for each byte: 1 if it is not the likeliest; left out where only three are
    low     one bit for each of those, and
    high    likewise one more: low + 2 * high is 0 for the second likeliest, 1 and 2 for the next ones, 3 for others
    others  four bits for each of those: which of the fifteen it is, 15 if none
    values  of those that are none

Bits are filled from the lowest of each byte; the first three parts to a whole 8 bytes each, the fourth to a byte.
Above the first row there are zeros. A set of what was learned is

    likely  uint8[4, 256]     of each byte, the four likeliest below it; or 0, and the three likeliest
    classes uint8[256]        of each byte: 16 times the lowest four bits of its class, and the highest
    among   uint8[2, 16, 16]  of each class, `[highest, lowest]`: its fifteen, and a 0
    three   uint8             1 if three are the likeliest, else 0

The reference of a payload says in its lowest byte which set it needs (0: none, it is the inner codec's), and above that
what the inner codec needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit, optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints, array_bytes
from sb3_extra_buffers.codecs.near import Near

LEARNED_AFTER = (64, 512)
"""Frames: early for a start, later for what episodes look like."""

LIKELY = 4
"""Bytes below each that have a code of their own, at most."""

CLASSES = 32
AMONG = 15
"""Other bytes that each class tells."""

SET_BYTES = 256 * LIKELY + 256 + 16 * CLASSES + 1
_WRITER_BYTES = 256 * LIKELY + 256 + 64 * AMONG + 1 + 256 * CLASSES
_COUNTED = 8192  # pixels of a frame, at most; elsewhere each time
_ROUNDS = 8  # in which bytes choose their classes
_WORD = 64  # bits that a string of bits is filled to
_INNER = 0  # in the place of a set's number


@dataclass(frozen=True)
class Ranks(Codec):
    """Tells pixels by how likely they are below others; `inner` gets the frames before that is known.

    Attributes:
        inner: what encodes them.
        row_bytes: size of a row. Frames that have not more than one are left to `inner`.
    """

    name = "ranks"
    inner: Near
    row_bytes: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Near):
            raise ValueError(f"ranks stand before near, not {self.inner!r}")
        if type(self.row_bytes) is not int or self.row_bytes < 1:
            raise ValueError(f"a row has at least 1 byte, not row_bytes={self.row_bytes!r}")

    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame: alone nothing is known of it."""
        return self.inner.encode(frame)

    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of a payload of the inner codec into `out`."""
        self.inner.decode(payload, out)

    def coder(self, frame_bytes: int) -> Coder:
        return RanksCoder(self, frame_bytes) if self.row_bytes < frame_bytes else self.inner.coder(frame_bytes)


class RanksCoder(Coder):
    """Owns what was learned, and the inner codec's coder.

    Attributes:
        sets: what was learned, see above.
        counts: how often each byte came below each, `[65536]`; nothing before the first frame, and at the end.
        seen: frames that came, until nothing is learned any more.
        spent: bytes of their payloads since something was learned last.
    """

    codec: Ranks

    def __init__(self, codec: Ranks, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.inner = codec.inner.coder(frame_bytes)
        self.sets: list[bytes] = []
        self.counts = np.zeros(0, np.uint32)
        self.seen = 0
        self.spent = 0
        self._compile()

    def _compile(self) -> None:
        encode, decode = _encode_kernel, _decode_kernel
        if self.codec.row_bytes >= _WORD and jit.has_vectors():
            from sb3_extra_buffers.codecs import vectors

            encode, decode = vectors.ranks_encode_kernel, vectors.ranks_decode_kernel
        ints, data, frames = "int64[::1]", "uint8[::1]", "uint8[:,::1]"
        fixed = "Array(uint8, 1, 'C', readonly=True)"
        self._encode = jit.choose(encode, encode_reference, f"int64({frames}, int64, {data}, {data}, {ints})")
        self._decode = jit.choose(
            decode,
            decode_reference,
            *(f"int64({heap}, {ints}, {ints}, {ints}, int64, {fixed}, {frames})" for heap in (data, fixed)),
        )
        # Without numba it would take too long to write. What is there can be read.
        self._has_kernels = optional.has_numba()
        self._opened = [opened(one) for one in self.sets]
        self._writer = writer(self._opened[-1]) if self._opened and self._has_kernels else None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`, by what was learned from earlier ones."""
        self.inner.learning = self.learning
        frames, parts, start = jit.contiguous(frames), [], 0
        while self.learning and self._learns and start < len(frames):
            stop = min(start + self._next_learned - self.seen, len(frames))
            parts.append(self._by_newest(frames[start:stop], streams[start:stop]))
            self._learn(frames[start:stop], int(parts[-1].lengths.sum()))
            start = stop
        if start < len(frames) or not parts:
            parts.append(self._by_newest(frames[start:], streams[start:]))
        return parts[0] if len(parts) == 1 else Encoded(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _by_newest(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads by the newest set, but of frames that the inner coder leaves less of."""
        if self._writer is None or not len(frames):
            encoded = self.inner.encode(frames, streams)
            return encoded._replace(references=encoded.references << 8)
        n = len(frames)
        data, lengths = np.empty(n * self.frame_bytes, np.uint8), np.empty(n, np.int64)
        used = self._encode(frames, self.codec.row_bytes, self._writer, data, lengths)
        inner = self.inner.encode(frames, streams)  # it takes far less time
        is_inner = inner.lengths <= lengths
        if not is_inner.any():
            return Encoded(data[:used], lengths, np.full(n, len(self.sets)))
        shortest = np.where(is_inner, inner.lengths, lengths)
        references = np.where(is_inner, inner.references << 8 | _INNER, len(self.sets))
        lengths[lengths == self.frame_bytes] = 0  # such frames were left out
        starts = np.where(is_inner, np.cumsum(inner.lengths) - inner.lengths, np.cumsum(lengths) - lengths)
        where = zip(is_inner.tolist(), starts.tolist(), shortest.tolist(), strict=True)
        pieces = [(inner.data if is_one else data)[start : start + size] for is_one, start, size in where]
        return Encoded(np.concatenate(pieces), shortest, references)

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode the frames of each set, or copy."""
        sets, new = references & 255, sources < 0
        for number in np.unique(sets[new]).tolist():
            which = (new & (sets == number)).nonzero()[0]
            where = offsets[which], lengths[which]
            if number == _INNER:
                bad = self.inner.decode_part(heap, *where, references[which] >> 8, rows[which], sources[which], out)
            elif number > len(self._opened):
                raise CodecError("ranks: a frame refers to a set that is not there")
            else:
                bad = self._decode(heap, *where, rows[which], self.codec.row_bytes, self._opened[number - 1], out)
            if bad >= 0:
                return int(which[bad])
        if not new.all():
            out[rows[~new]] = out[sources[~new]]
        return -1

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        """Return what the inner coder does: whole batches are decoded in a call, without the GIL."""
        return self.inner.effort(lengths, sources, out)

    def release(self, references: Ints) -> None:
        """Do nothing: sets stay, and `near` has no references."""

    def _learn(self, frames: Bytes, spent: int) -> None:
        """Count what comes below what, and when it is time make a set of it, which is kept if it leaves less."""
        begin, end = self._last_learned, self._next_learned
        if not self.counts.size:
            self.counts = np.zeros(1 << 16, np.uint32)
        width, most = self.codec.row_bytes, self.frame_bytes - self.codec.row_bytes
        n = min(most, _COUNTED)
        for nth, frame in enumerate(frames, self.seen):
            start = (nth * 0x9E3779B1 & 0xFFFFFFFF) * (most - n + 1) >> 32
            above, here = frame[start : start + n], frame[start + width : start + width + n]
            pairs = above.astype(np.uint16) << np.uint16(8) | here
            self.counts += np.bincount(pairs, minlength=1 << 16).astype(np.uint32)
        seen, spent = self.seen + len(frames), self.spent + spent
        if seen < end:
            self.seen, self.spent = seen, spent
            return
        counts = self.counts
        left = counts[:0].copy() if end == LEARNED_AFTER[-1] else counts
        # Nothing is called in between, where Ctrl-C could come. Should it come later, nothing is learned this time.
        self.seen, self.spent, self.counts = seen, 0, left
        found, bits = learned(counts)
        if bits * self.frame_bytes * (end - begin) < 8 * spent:
            table = opened(found)
            sets, opened_, writer_ = [*self.sets, found], [*self._opened, table], writer(table)
            # Nothing is called in between, where Ctrl-C could come.
            self.sets, self._opened, self._writer = sets, opened_, writer_

    @property
    def _learns(self) -> bool:
        """Whether there is something to learn."""
        return self._has_kernels and self.seen < LEARNED_AFTER[-1]

    @property
    def _next_learned(self) -> int:
        return next(after for after in LEARNED_AFTER if self.seen < after)

    @property
    def _last_learned(self) -> int:
        return max((after for after in LEARNED_AFTER if self.seen >= after), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of what was learned and counted, and of what the inner coder keeps."""
        return sum(map(len, self.sets)) + array_bytes(self) + self.inner.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of counts and of sets that may be added, and of what the inner coder may add."""
        own = 0
        if self._learns:
            comes = sum(self.seen < after <= self.seen + n_frames for after in LEARNED_AFTER)
            own += SET_BYTES * comes + (_WRITER_BYTES if comes and self._writer is None else 0)
            if self.seen + n_frames >= LEARNED_AFTER[-1]:
                own = max(own - self.counts.nbytes, 0)  # which is given up
            elif not self.counts.size:
                own += 4 << 16
        return own + self.inner.growth_bytes(n_frames)


def learned(counts: NDArray[np.uint32]) -> tuple[bytes, float]:
    """Return a set for what came below what so often, and how many bits a pixel takes in it.

    Args:
        counts: `[65536]`, at 256 times the byte above plus the one below.
    """
    followed = counts.reshape(256, 256).astype(np.float64)
    overall = followed.sum(axis=0) / max(followed.sum(), 1)
    order = np.argsort(-(followed + overall / 2 + np.eye(256)), axis=1, kind="stable")
    found = [_set(followed, order[:, :n]) for n in (LIKELY - 1, LIKELY)]
    return min(found, key=lambda one: one[1])


def _set(followed: NDArray[np.float64], likely: Ints) -> tuple[bytes, float]:
    """Return a set with these likely ones, of each byte, and how many bits a pixel takes in it."""
    others = followed.copy()
    np.put_along_axis(others, likely, 0, axis=1)
    together = others[np.argsort(-others.sum(axis=1), kind="stable")[:CLASSES]]
    for _ in range(_ROUNDS):
        among = np.argsort(-together, axis=1, kind="stable")[:, :AMONG]
        told = np.zeros((256, CLASSES))
        np.put_along_axis(told, among.T, 1, axis=0)
        covered = others @ told
        classes = covered.argmax(axis=1)
        members = np.zeros((CLASSES, 256))
        members[classes, np.arange(256)] = 1
        together = members @ others
    n = likely.shape[1]
    of_likely = [float(np.take_along_axis(followed, likely[:, :k], 1).sum()) for k in (1, n)]
    total, of_among = max(float(followed.sum()), 1.0), float(covered.max(axis=1).sum())
    bits = 2.0 if n < LIKELY else 1 + 2 * (1 - of_likely[0] / total)
    bits += 4 * (1 - of_likely[1] / total) + 8 * (1 - (of_likely[1] + of_among) / total)
    table = np.zeros(SET_BYTES, np.uint8)
    table[256 * (LIKELY - n) : 256 * LIKELY] = likely.T.reshape(-1)
    table[256 * LIKELY : 256 * LIKELY + 256] = (classes & 15) << 4 | classes >> 4
    table[256 * LIKELY + 256 : -1].reshape(CLASSES, 16)[:, :AMONG] = among
    table[-1] = n < LIKELY
    return table.tobytes(), bits


def opened(found: bytes) -> Bytes:
    """Return a set as who reads payloads takes it.

    Raises:
        CodecError: it is none.
    """
    table = np.frombuffer(found, np.uint8)
    if table.size != SET_BYTES or (table[256 * LIKELY : 256 * LIKELY + 256] & 14).any() or table[-1] > 1:
        raise CodecError(f"ranks: {table.size} bytes are no set")
    return table


def writer(table: Bytes) -> Bytes:
    """Return a set as who writes payloads takes it.

    It is `likely`, the classes as numbers `[256]`, of each of the fifteen what it is in each class `[15, 64]`, `three`,
    and which of the fifteen each byte is in each class `[32, 256]`, 15 where it is none.
    """
    codes = table[256 * LIKELY : 256 * LIKELY + 256]
    among = table[256 * LIKELY + 256 : -1].reshape(CLASSES, 16)[:, :AMONG]
    by_nth, ranks = np.zeros((AMONG, 64), np.uint8), np.full((CLASSES, 256), AMONG, np.uint8)
    by_nth[:, :CLASSES] = among.T
    for nth in range(AMONG - 1, -1, -1):  # of a byte that is there twice, the first
        ranks[np.arange(CLASSES), among[:, nth]] = nth
    numbers = codes >> 4 | (codes & 1) << 4
    return np.concatenate([table[: 256 * LIKELY], numbers, by_nth.reshape(-1), table[-1:], ranks.reshape(-1)])


def _words(n: int) -> int:
    return -(-n // _WORD)


def _bits(flags: NDArray[np.bool_]) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes().ljust(8 * _words(flags.size), b"\0")


def encode_reference(frames: Bytes, width: int, table: Bytes, data: Bytes, lengths: Ints) -> int:
    """Write the payloads of frames, one after another; returns their size.

    Args:
        frames: `[n, frame_bytes]`.
        width: bytes of a row.
        table: see `writer`.
        data: the payloads go there, `[n * frame_bytes]`.
        lengths: their sizes go there, `[n]`; those of frames that would take as long as themselves, which are left out,
            are `frame_bytes`.
    """
    likely, classes = table[: 256 * LIKELY].reshape(LIKELY, 256), table[256 * LIKELY : 256 * LIKELY + 256]
    ranks, three = table[-256 * CLASSES :].reshape(CLASSES, 256), int(table[-256 * CLASSES - 1])
    at = 0
    for i, frame in enumerate(frames):
        above = np.append(np.zeros(width, np.uint8), frame)[: frame.size]
        is_it = np.vstack([likely[three:, above] == frame, np.ones((1, frame.size), np.bool_)])
        rank = np.argmax(is_it, axis=0) + three
        second = rank[rank > 0] - 1
        is_other = rank == LIKELY
        nth, values = ranks[classes[above[is_other]], frame[is_other]], frame[is_other]
        others = np.append(nth, np.zeros(nth.size % 2, np.uint8))
        payload = b"".join(
            [
                *(b"" if three else _bits(rank > 0), _bits(second & 1 == 1), _bits(second & 2 == 2)),
                *((others[::2] | others[1::2] << 4).tobytes(), values[nth == AMONG].tobytes()),
            ]
        )
        lengths[i] = min(len(payload), frame.size)
        if len(payload) < frame.size:
            data[at : at + len(payload)] = np.frombuffer(payload, np.uint8)
            at += len(payload)
    return at


def _encode_kernel(frames: Bytes, width: int, table: Bytes, data: Bytes, lengths: Ints) -> int:
    frame_bytes = frames.shape[1]
    n_words = (frame_bytes + 63) // 64
    first, second, third, fourth = table[:256], table[256:512], table[512:768], table[768:1024]
    classes, ranks, three = table[1024:1280], table[table.size - 8192 :], np.int64(table[table.size - 8193])
    words, low = np.zeros(n_words, np.uint64), np.zeros(n_words + 1, np.uint64)
    high = np.zeros(n_words + 1, np.uint64)
    others, values = np.zeros(frame_bytes + 2, np.uint8), np.zeros(frame_bytes + 1, np.uint8)
    begin: Any = 0
    for i in range(frames.shape[0]):
        frame = frames[i]
        words[:] = 0
        low[:] = 0
        high[:] = 0
        n = n_others = n_values = np.uint64(0)
        for p in range(frame_bytes):
            value = frame[p]
            above = np.uint64(frame[p - width] if p >= width else np.uint8(0))
            if value == first[above] and three == 0:
                continue
            words[p >> 6] |= np.uint64(1) << np.uint64(p & 63)
            code = np.uint64(3)
            if value == second[above]:
                code = np.uint64(0)
            elif value == third[above]:
                code = np.uint64(1)
            elif value == fourth[above]:
                code = np.uint64(2)
            low[n >> np.uint64(6)] |= (code & np.uint64(1)) << (n & np.uint64(63))
            high[n >> np.uint64(6)] |= (code >> np.uint64(1)) << (n & np.uint64(63))
            n += np.uint64(1)
            if code == np.uint64(3):
                nth = ranks[np.uint64(classes[above]) << np.uint64(8) | np.uint64(value)]
                others[n_others] = nth
                n_others += np.uint64(1)
                values[n_values] = value
                n_values += np.uint64(nth == 15)
        n_low, n_bytes = (np.int64(n) + 63) // 64, (np.int64(n_others) + 1) // 2
        n_below = n_words * (1 - three)
        length = 8 * (n_below + 2 * n_low) + n_bytes + np.int64(n_values)
        if length >= frame_bytes:
            lengths[i] = frame_bytes
            continue
        others[n_others] = 0
        at = begin
        for part, size in ((words, n_below), (low, n_low), (high, n_low)):
            for w in range(size):
                for k in range(8):
                    data[at + k] = part[w] >> np.uint64(8 * k) & np.uint64(255)
                at += 8
        for k in range(n_bytes):
            data[at + k] = others[2 * k] | others[2 * k + 1] << np.uint8(4)
        at += n_bytes
        for k in range(np.int64(n_values)):
            data[at + k] = values[k]
        lengths[i] = length
        begin += length
    return int(begin)


def decode_reference(
    heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, width: int, table: Bytes, out: Bytes
) -> int:
    """Decode payloads into `out[rows]`; returns the first that is damaged, or -1.

    Args:
        heap: where the payloads lie.
        offsets: of each.
        lengths: of each.
        rows: of `out`.
        width: bytes of a row.
        table: a set, see above.
        out: `[n, frame_bytes]`.
    """
    frame_bytes = out.shape[1]
    likely, classes = table[: 256 * LIKELY].reshape(LIKELY, 256), table[256 * LIKELY : 256 * LIKELY + 256]
    among, three = table[256 * LIKELY + 256 : -1].reshape(CLASSES, 16), bool(table[-1])
    for i, (start, length, row) in enumerate(zip(offsets.tolist(), lengths.tolist(), rows.tolist(), strict=True)):
        end = 0 if three else 8 * _words(frame_bytes)
        if start < 0 or not end <= length < frame_bytes or start > heap.size - length:
            return i
        payload, frame = heap[start : start + length], out[row]
        is_told = np.ones(frame_bytes, np.bool_) if three else np.unpackbits(payload[:end], bitorder="little") == 1
        n = int(np.count_nonzero(is_told))
        size = 8 * _words(n)
        if end + 2 * size > length:
            return i
        low, high = (np.unpackbits(payload[end + k * size :][:size], bitorder="little") for k in (0, 1))
        end += 2 * size
        if is_told[frame_bytes:].any() or low[n:].any() or high[n:].any():
            return i
        codes = low[:n] + 2 * high[:n]
        n_others = int(np.count_nonzero(codes == 3))
        packed = payload[end : end + -(-n_others // 2)]
        end += -(-n_others // 2)
        if end > length:
            return i
        others = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
        if others[n_others:].any() or end + np.count_nonzero(others[:n_others] == AMONG) != length:
            return i
        values = np.zeros(n_others, np.uint8)
        values[others[:n_others] == AMONG] = payload[end:]
        rank = np.zeros(frame_bytes, np.int64)
        rank[is_told[:frame_bytes]] = codes + 1
        nth, plain = np.zeros((2, frame_bytes), np.uint8)
        nth[rank == LIKELY], plain[rank == LIKELY] = others[:n_others], values
        above = np.zeros(width, np.uint8)
        for first in range(0, frame_bytes, width):
            part = slice(first, min(first + width, frame_bytes))
            above = above[: part.stop - first]
            by_class = among[(classes[above] >> 4) + 16 * (classes[above] & 1), nth[part]]
            other = np.where(nth[part] == AMONG, plain[part], by_class)
            found = likely[np.minimum(rank[part], LIKELY - 1), above]
            frame[part] = np.where(rank[part] == LIKELY, other, found)
            above = frame[part]
    return -1


def _decode_kernel(heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, width: int, table: Bytes, out: Bytes) -> int:
    frame_bytes = out.shape[1]
    n_words = (frame_bytes + 63) // 64
    likely, classes, among, three = table[:1024], table[1024:1280], table[1280:1792], table[1792] == np.uint8(1)
    n_below = 0 if three else n_words
    codes, others = np.zeros(64 * n_words + 1, np.uint8), np.zeros(frame_bytes + 2, np.uint8)
    data, words = np.zeros(frame_bytes + 1, np.uint8), np.zeros(n_words, np.uint64)
    pixels = np.zeros(width + frame_bytes, np.uint8)
    for i in range(rows.size):
        start, length, frame = offsets[i], lengths[i], out[rows[i]]
        if start < 0 or length < 8 * n_below or length >= frame_bytes or start > heap.size - length:
            return i
        source = heap[start : start + length]
        for p in range(length):
            data[p] = source[p]
        # How many there are of everything, and that the payload ends where it should, before anything is looked at.
        ones: Any = 0
        for w in range(n_words):
            word = ~np.uint64(0) if three else np.uint64(0)
            for k in range(0 if three else 8):
                word |= np.uint64(data[8 * w + k]) << np.uint64(8 * k)
            words[w] = word
            for k in range(64):
                ones += np.int64(word >> np.uint64(k) & np.uint64(1))
        if n_below and frame_bytes % 64 and words[n_words - 1] >> np.uint64(frame_bytes % 64):
            return i
        n = frame_bytes if three else ones
        size = 8 * ((n + 63) // 64)
        end = 8 * n_below + 2 * size
        if end > length:
            return i
        n_others: Any = 0
        for p in range(8 * size):
            low = data[8 * n_below + (p >> 3)] >> np.uint8(p & 7) & np.uint8(1)
            high = data[8 * n_below + size + (p >> 3)] >> np.uint8(p & 7) & np.uint8(1)
            codes[p] = low + np.uint8(2) * high
            n_others += np.int64(low & high)
            if p >= n and codes[p]:
                return i
        n_bytes = (n_others + 1) // 2
        if end + n_bytes > length:
            return i
        n_values: Any = 0
        for k in range(n_bytes):
            two = data[end + k]
            others[2 * k], others[2 * k + 1] = two & np.uint8(15), two >> np.uint8(4)
        if n_others % 2 and others[n_others]:
            return i
        for k in range(n_others):
            n_values += np.int64(others[k] == 15)
        if end + n_bytes + n_values != length:
            return i
        # Nothing is asked on the way: what comes next cannot be foreseen.
        at = nth = np.uint64(0)
        value = np.uint64(end + n_bytes)
        for w in range(n_words):
            word, first = words[w], 64 * w
            for k in range(min(64, frame_bytes - first)):
                above = np.uint64(pixels[first + k])
                bit = word >> np.uint64(k) & np.uint64(1)
                rank = bit + np.uint64(codes[at]) * bit
                is_other = np.uint64(rank == np.uint64(4))
                other = np.uint64(others[nth])
                code = np.uint64(classes[above])
                place = (code & np.uint64(1)) << np.uint64(8) | (code & np.uint64(240)) | other
                is_value = is_other & np.uint64(other == np.uint64(15))
                found = likely[(rank - is_other) << np.uint64(8) | above]
                found = among[place] if is_other else found
                found = data[value] if is_value else found
                pixels[width + first + k] = found
                at += bit
                nth += is_other
                value += is_value
        for p in range(frame_bytes):
            frame[p] = pixels[width + p]
    return -1
