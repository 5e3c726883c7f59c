"""`delta/2`: the bytes in which a frame differs from what was to be expected, as spans, in short codes. Small.

A byte is expected to be that of a key frame (see `delta`), or that of the row above, 0 in the first row: each frame
takes what fits better. An empty payload is the key frame, one as long as the frame is the frame; any other is

    head    uint8     code set << 1 | 1 if the row above is expected, 0 if the key is
    bits    ...       for each span: how many bytes are as expected, what kind of span follows, its bytes; then the end

Bits are filled from the highest of each byte; the rest of the last byte is 0. Symbols are bytes in Huffman codes (see
`huffman`), of a set that is learned from the first frames, as zstd learns its dictionaries; set 0 is of 8 bits each.
A set has 18 codes: 0 for how many bytes are as expected, 1 for kinds of spans, 2 to 17 for their bytes.

    number  below 224 it is the symbol; 224 + b stands for 224 + a number of b bits, which follow less the highest
    kind    a number: 0 for a span of 1 byte; 2n - 3 for n bytes; 2n - 2 for n bytes that are alike, only one follows
    byte    its difference to the byte on its left, which also chooses the code: 15 frequent ones have their own
    end     the symbol 255 in the place of how many bytes are as expected: all the others are
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import huffman, jit
from sb3_extra_buffers.codecs.base import BatchCoder, Bytes, Codec, Encoded, Ints, LearningCodec, array_bytes
from sb3_extra_buffers.codecs.delta import Delta

_TRAINED_AFTER = (128, 2048)  # frames: early for a start, later for what episodes look like
_OWN = 15  # bytes that have a code of their own for what follows them
_CODES = 3 + _OWN  # of a set: for numbers of expected bytes, for spans, for what follows other bytes, and those
_SOURCES = 258  # what a symbol comes after: a byte on its left, or 256 and 257 before the two numbers
_DIRECT = 224  # numbers below are symbols
_END = 255
_GAP = 1  # so few expected bytes between two spans are cheaper within one
_BITS = huffman.LONGEST  # as globals that kernels see as constants
_ESCAPE = huffman.ESCAPE
_MOST_EXTRA = 15  # bits behind the symbol of a number that one look-up decodes
SAME, KEY, ABOVE = 0, 1, 2  # what a frame is expected to be: `SAME` if it is its key
_GATHER = 0x0102040810204080 if sys.byteorder == "little" else 0x8040201008040201  # one bit of each of 8 bytes
_DEBRUIJN = 0x03F79D71B4CB0A89  # has every 6 bits once: so a product tells which bit a number has
_PLACE = np.array([(_DEBRUIJN << place & (1 << 64) - 1) >> 58 for place in range(64)]).argsort().astype(np.uint8)


@dataclass(frozen=True)
class Spans(LearningCodec):
    """Spans of bytes that are not as expected.

    Attributes:
        keys: how many recent key frames each frame may choose from. 0: none, the rows above are expected always.
        row_bytes: size of a row of the picture.
    """

    name = "delta/2"
    levels = (range(2, 3),)
    level: ClassVar[int] = 2
    keys: int = 16
    row_bytes: int = 1

    def __post_init__(self) -> None:
        if self.keys < 0:
            raise ValueError(f"delta has keys, or 0 for none, not keys={self.keys}")
        if self.row_bytes < 1:
            raise ValueError(f"a row has at least 1 byte, not row_bytes={self.row_bytes}")

    @classmethod
    def from_level(cls, level: int | None, **settings: Any) -> Codec:
        return cls(**settings)

    def coder(self, frame_bytes: int) -> SpanCoder:
        if frame_bytes >= 1 << 29:
            raise ValueError(f"delta/2 is for frames below 512 MB, not of {frame_bytes:,} bytes")  # or numbers overflow
        return SpanCoder(self, frame_bytes)


class SpanCoder(BatchCoder):
    """Owns the code sets, and the coder that makes and chooses the keys."""

    codec: Spans

    def __init__(self, codec: Spans, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.keys = Delta(keys=codec.keys).coder(frame_bytes) if codec.keys else None
        self.lengths = np.tile(huffman.flat_lengths(), (1, _CODES, 1))  # [sets, codes, symbols]
        self.contexts = _contexts(np.empty(0, np.int64))[None]  # [sets, sources]: which code of the set
        self.seen = 0
        self.counts = np.zeros((_SOURCES, 0), np.uint32)  # how often each symbol came after each source, while learning
        self._compile()

    def _compile(self) -> None:
        ints, data, frames = "int64[::1]", "uint8[::1]", "uint8[:,::1]"
        changed = _changed_kernel
        if jit.has_vectors():
            from sb3_extra_buffers.codecs import vectors

            changed = vectors.spans_changed_kernel
        self._changed = jit.choose(
            changed,
            changed_reference,
            f"void({frames}, {frames}, {ints}, boolean, int64, uint64[:,::1], {data})",
        )
        self._encode = jit.choose(
            _encode_kernel,
            encode_reference,
            f"int64({frames}, uint64[:,::1], {data}, int64, uint32[:,::1], {data}, boolean, uint32[:,::1], {data},"
            f" {ints})",
        )
        self._decode = jit.choose(
            _decode_kernel,
            decode_reference,
            *(
                f"int64({heap}, {', '.join([ints] * 5)}, {frames}, int64, uint16[:,:,::1], {frames}, uint32[:,:,::1],"
                f" {frames})"
                for heap in (data, "Array(uint8, 1, 'C', readonly=True)")
            ),
        )
        self._open_sets()

    def _open_sets(self) -> None:
        self._entries = _entries(self.lengths[-1])
        self._tables = np.array([[huffman.decoding_table(lengths) for lengths in one] for one in self.lengths])
        self._numbers = np.array([[_numbers(table) for table in one[:2]] for one in self._tables])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`, each against the best recent key or the rows above, in the newest codes."""
        n = len(frames)
        frames = jit.contiguous(frames)
        references = np.zeros(n, np.int64)
        if self.keys is not None:
            self.keys.learning = self.learning
            references = self.keys.encode(frames, streams).references
        if self._counts and not self.counts.size and self.learning:
            self.counts = np.zeros((_SOURCES, 256), np.uint32)
        lengths, data = np.empty(n, np.int64), np.empty(n * self.frame_bytes + 64, np.uint8)  # some bytes more than all
        bits, expected = np.empty((n, -(-self.frame_bytes // 64)), np.uint64), np.empty(n, np.uint8)
        self._changed(
            frames, self._key_frames(), references, self.keys is not None, self.codec.row_bytes, bits, expected
        )
        start = end = 0
        while start < n:
            until = next((after for after in _TRAINED_AFTER if after > self.seen), self.seen + n)
            stop = min(n, start + until - self.seen) if self.learning else n
            end += self._encode(
                frames[start:stop],
                bits[start:stop],
                expected[start:stop],
                len(self.lengths) - 1,
                self._entries,
                self.contexts[-1],
                self.learning and self._counts,
                self.counts,
                data[end:],
                lengths[start:stop],
            )
            if self.learning:
                self.seen += stop - start
                if self.seen in _TRAINED_AFTER:
                    self._train()
            start = stop
        keyless = (expected == ABOVE) | (lengths >= self.frame_bytes)
        if self.keys is not None and keyless.any():
            self.keys.release(references[keyless])
            references[keyless] = 0
            self.keys.uses[0] += np.count_nonzero(keyless)
        return Encoded(data[:end], lengths, references)

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Copy what is expected, decode the rest."""
        frames, how = (offsets, lengths, references, rows, sources), (self.codec.row_bytes, self._tables, self.contexts)
        bad: int = self._decode(heap, *frames, self._key_frames(), *how, self._numbers, out)
        return bad

    def release(self, references: Ints) -> None:
        """Let go of the keys of frames that are gone."""
        if self.keys is not None:
            self.keys.release(references)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and the keys, and of what is counted to learn them."""
        own = array_bytes(self)
        return own + (0 if self.keys is None else self.keys.nbytes)

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of the keys and the code set that may be added."""
        own: int = self.lengths[0].nbytes + self.contexts[0].nbytes + self._tables[0].nbytes + self._numbers[0].nbytes
        if self._counts and not self.counts.size:
            own += _SOURCES * 256 * self.counts.itemsize
        return own + (0 if self.keys is None else self.keys.growth_bytes(n_frames))

    def missing_bytes(self, n_streams: int) -> int:
        """Bytes of the backgrounds of streams that are new."""
        return 0 if self.keys is None else self.keys.missing_bytes(n_streams)

    @property
    def _counts(self) -> bool:
        """Whether there is another code set to learn."""
        return self.seen < _TRAINED_AFTER[-1]

    def _key_frames(self) -> Bytes:
        if self.keys is None:
            return np.zeros((1, self.frame_bytes), np.uint8)
        return self.keys.keys.view(np.uint8)

    def _train(self) -> None:
        """Make a code set of what was counted so far, and use it from now on."""
        bytes_ = self.counts[:256].sum(axis=1, dtype=np.int64)
        contexts = _contexts(np.argsort(-bytes_, kind="stable")[:_OWN])
        counts = np.zeros((_CODES, 256), np.int64)
        np.add.at(counts, contexts, self.counts)
        lengths = np.array([huffman.code_lengths(row) for row in counts])
        self.lengths = np.concatenate([self.lengths, lengths[None]])
        self.contexts = np.concatenate([self.contexts, contexts[None]])
        self._open_sets()
        if self.seen >= _TRAINED_AFTER[-1]:
            self.counts = np.zeros((_SOURCES, 0), np.uint32)  # no more to count


def _contexts(frequent: Ints) -> Bytes:
    """Return which code of a set is used after each source, given bytes that have codes of their own."""
    codes = np.full(_SOURCES, 2, np.uint8)
    codes[frequent] = 3 + np.arange(len(frequent))
    codes[256:] = 0, 1
    return codes


def _entries(lengths: Bytes) -> NDArray[np.uint32]:
    """Return what is written for each symbol, `bits << 6 | how many`, escaped where it has no code: `[codes, 256]`."""
    codes = np.array([huffman.codes(one) for one in lengths], np.uint32)
    known, n_bits, escape = lengths[:, :256] > 0, lengths.astype(np.uint32), slice(_ESCAPE, _ESCAPE + 1)
    escaped = codes[:, escape] << 8 | np.arange(256, dtype=np.uint32), n_bits[:, escape] + 8
    own = codes[:, :256] << 6 | n_bits[:, :256]
    return np.where(known, own, escaped[0] << 6 | escaped[1]).astype(np.uint32)


def _numbers(table: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return `number << 8 | bits behind it, to be added << 4 | length of its code` for any next bits.

    Args:
        table: decoding table of a code for numbers. Large ones, the end and what is escaped are left to it, and 0 here.
    """
    symbol, length = np.divmod(table.astype(np.int64), 16)
    extra = np.maximum(symbol - _DIRECT - 1, 0)
    number = np.where(symbol > _DIRECT, _DIRECT + (1 << extra), symbol)
    short = (length > 0) & (symbol < _END) & (extra <= _MOST_EXTRA)
    return np.where(short, number << 8 | extra << 4 | length, 0).astype(np.uint32)


def _changed_kernel(
    frames: Bytes,
    keys: Bytes,
    references: Ints,
    keyed: bool,
    row_bytes: int,
    bits: NDArray[np.uint64],
    expected: Bytes,
) -> None:
    frame_bytes, n_words = frames.shape[1], bits.shape[1]
    width = min(row_bytes, frame_bytes)
    whole = frame_bytes - frame_bytes % 128
    changed = np.zeros(64 * n_words, np.uint8)
    eights = changed.view(np.uint64)
    top, others = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
    for i in range(frames.shape[0]):
        frame, key = frames[i], keys[references[i]]
        here, above, below = frame[width:], frame[: frame_bytes - width], changed[width:frame_bytes]
        for b in range(width):
            changed[b] = frame[b]
        for b in range(here.size):
            below[b] = here[b] ^ above[b]
        expected[i] = ABOVE
        if keyed:
            # Inner loops of fixed length and one type: so the compiler makes vector code of them.
            differ_above, differ_key = np.int64(0), np.int64(0)
            for start in range(0, whole, 128):
                above_here, key_here = np.uint8(0), np.uint8(0)
                for b in range(start, start + 128):
                    above_here = np.uint8(above_here + np.uint8(changed[b] != 0))
                    key_here = np.uint8(key_here + np.uint8(frame[b] != key[b]))
                differ_above += above_here
                differ_key += key_here
            for b in range(whole, frame_bytes):
                differ_above += changed[b] != 0
                differ_key += frame[b] != key[b]
            if differ_above >= differ_key:
                expected[i] = KEY
                for b in range(frame_bytes):
                    changed[b] = frame[b] ^ key[b]
        some = np.uint64(0)
        for w in range(n_words):
            word = np.uint64(0)
            for k in range(8):
                eight = eights[8 * w + k]
                flags = ((eight & others) + others | eight) & top  # the highest bit of each byte that is not 0
                word |= (flags >> np.uint64(7)) * np.uint64(_GATHER) >> np.uint64(56) << np.uint64(8 * k)
            bits[i, w] = word
            some |= word
        if some == 0 and not (keyed and expected[i] == ABOVE):
            expected[i] = SAME


def changed_reference(
    frames: Bytes,
    keys: Bytes,
    references: Ints,
    keyed: bool,
    row_bytes: int,
    bits: NDArray[np.uint64],
    expected: Bytes,
) -> None:
    """Find out what each frame is expected to be, and which of its bytes are not as expected.

    Args:
        frames: `[n, frame_bytes]`.
        keys: the key frames, `[n_keys, frame_bytes or more]`; one of zeros if there are none.
        references: of each frame, its key.
        keyed: whether there are keys; else the row above is expected always.
        row_bytes: size of a row.
        bits: a bit for each byte, the lowest first, `[n, words]`; 1 if it is not as expected.
        expected: what is, `[n]`: the row above, the key, or the key and nothing else.
    """
    for i, frame in enumerate(frames):
        key = keys[references[i], : frame.size]
        above = np.concatenate([np.zeros(row_bytes, np.uint8), frame])[: frame.size]
        from_key, from_above = frame != key, frame != above
        expected[i] = KEY if keyed and from_above.sum() >= from_key.sum() else ABOVE
        if not from_key.any():
            expected[i] = SAME
        differs = np.zeros(64 * bits.shape[1], np.bool_)
        differs[: frame.size] = from_above if expected[i] == ABOVE else from_key
        bits[i] = np.packbits(differs, bitorder="little").view("<u8")


def _encode_kernel(
    frames: Bytes,
    bits: NDArray[np.uint64],
    expected: Bytes,
    newest: int,
    entries: NDArray[np.uint32],
    contexts: Bytes,
    counting: bool,
    counts: NDArray[np.uint32],
    data: Bytes,
    lengths: Ints,
) -> int:
    frame_bytes, n_words = frames.shape[1], bits.shape[1]
    edges = np.empty(64 * n_words + 2, np.int64)
    most = 3 * frame_bytes + 5
    sources, symbols = np.empty(most, np.int16), np.empty(most, np.uint8)
    written = np.empty(most, np.uint64)  # bits << 6 | how many
    one, top = np.uint64(1), np.uint64(63)
    begin = np.int64(0)
    for i in range(frames.shape[0]):
        if expected[i] == SAME:
            lengths[i] = 0
            continue
        frame = frames[i]
        # Where spans begin and end, and none is asked on the way that could not be foreseen but how many.
        n_edges, before, inside = np.int64(0), np.uint64(0), np.uint64(0)
        for w in range(n_words):
            word, after = bits[i, w], np.uint64(0)
            if w + 1 < n_words:
                after = bits[i, w + 1]
            gaps = (word << one | before >> top) & (word >> one | after << top)  # of one byte: within a span
            filled = word | gaps
            turns = filled ^ (filled << one | inside)
            before, inside = word, filled >> top
            while turns:
                lowest = turns & (~turns + one)
                edges[n_edges] = 64 * w + np.int64(_PLACE[lowest * np.uint64(_DEBRUIJN) >> np.uint64(58)])
                n_edges += 1
                turns ^= lowest
        if inside:
            edges[n_edges] = frame_bytes
        n_edges += np.int64(inside)
        n, m, last = 0, 0, np.int64(0)
        for t in range(0, n_edges, 2):
            start, stop = edges[t], edges[t + 1]
            alike = np.int64(1)
            for b in range(start + 1, stop):
                alike &= frame[b] == frame[start]
            number = start - last
            for kind in range(2):
                if kind == 1:
                    number = max(2 * (stop - start) - 3 + alike, 0)
                symbol, extra = number, 0  # bits behind it, but the highest
                if number >= _DIRECT:
                    rest = number - _DIRECT
                    for step in (16, 8, 4, 2, 1):
                        extra += step if rest >> extra >= 1 << step else 0
                    symbol = _DIRECT + extra + np.int64(rest > 0)
                    written[m + 1] = np.uint64(rest - (1 << extra)) << np.uint64(6) | np.uint64(extra)
                written[m] = entries[contexts[256 + kind], symbol]
                m += 2 if extra else 1
                sources[n], symbols[n] = 256 + kind, symbol
                n += 1
            left = frame[start - 1] if start else np.uint8(0)
            for b in range(start, start + 1 if alike else stop):
                difference = np.uint8(frame[b] - left)
                written[m] = entries[contexts[left], difference]
                sources[n], symbols[n] = left, difference
                left = frame[b]
                m += 1
                n += 1
            last = stop
        written[m] = entries[contexts[256], _END]
        sources[n], symbols[n] = 256, _END
        m += 1
        n += 1
        data[begin] = newest << 1 | (expected[i] == ABOVE)
        at, waiting, n_bits = np.uint64(begin + 1), np.uint64(0), np.uint64(0)  # not written yet: fewer than 32 bits
        limit = np.uint64(begin + frame_bytes)
        for t in range(m):
            length = written[t] & top
            waiting = waiting << length | written[t] >> np.uint64(6)
            n_bits += length
            if n_bits >= np.uint64(32):
                n_bits -= np.uint64(32)
                four = waiting >> n_bits
                for k in range(4):
                    data[at + np.uint64(k)] = four >> np.uint64(24 - 8 * k) & np.uint64(255)
                at += np.uint64(4)
                if at >= limit:
                    break
        size = np.int64(at) - begin + (np.int64(n_bits) + 7) // 8
        if size >= frame_bytes:
            whole_frame = data[begin : begin + frame_bytes]
            for b in range(frame_bytes):
                whole_frame[b] = frame[b]
            size = frame_bytes
        else:
            waiting <<= np.uint64(32) - n_bits
            for k in range((np.int64(n_bits) + 7) // 8):
                data[at + np.uint64(k)] = waiting >> np.uint64(24 - 8 * k) & np.uint64(255)
            if counting:
                for t in range(n):
                    counts[sources[t], symbols[t]] += np.uint32(1)
        lengths[i] = size
        begin += size
    return int(begin)


def encode_reference(
    frames: Bytes,
    bits: NDArray[np.uint64],
    expected: Bytes,
    newest: int,
    entries: NDArray[np.uint32],
    contexts: Bytes,
    counting: bool,
    counts: NDArray[np.uint32],
    data: Bytes,
    lengths: Ints,
) -> int:
    """Write the payloads as the kernel does, in Python; returns how many bytes they take.

    Args:
        frames: `[n, frame_bytes]`.
        bits: as `changed_reference` has found them.
        expected: likewise.
        newest: the code set.
        entries: its codes, `[codes, symbols]`: `bits << 6 | how many`.
        contexts: which code is used after each source.
        counting: whether to count the symbols of payloads that are shorter than their frame, in `counts`.
        counts: of each symbol after each source.
        data: the payloads go there. It has some bytes more than the frames.
        lengths: their sizes go there, `[n]`.
    """
    written = 0
    for i, frame in enumerate(frames):
        if expected[i] == SAME:
            lengths[i] = 0
            continue
        changed = np.unpackbits(bits[i].astype("<u8").view(np.uint8), bitorder="little").nonzero()[0]
        symbols = _symbols(frame, changed)
        text = "".join(_as_text(int(entries[contexts[source], symbol])) + extra for source, symbol, extra in symbols)
        payload = np.empty(1 + -(-len(text) // 8), np.uint8)
        payload[0] = newest << 1 | (expected[i] == ABOVE)
        payload[1:] = np.packbits(np.frombuffer(text.encode(), np.uint8) - ord("0"))
        if payload.size >= frame.size:
            payload = frame
        elif counting:
            for source, symbol, _ in symbols:
                counts[source, symbol] += 1
        lengths[i] = payload.size
        data[written : written + payload.size] = payload
        written += payload.size
    return written


def _symbols(frame: Bytes, changed: Ints) -> list[tuple[int, int, str]]:
    """Return `(source, symbol, bits behind it)` of a frame; the source of a byte is the one on its left."""
    first = np.diff(changed, prepend=-_GAP - 2) > _GAP + 1
    starts, stops = changed[first], changed[np.append(first[1:], True)[: len(first)]] + 1
    result, last = [], 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        alike = bool((frame[start:stop] == frame[start]).all())
        for kind, number in enumerate((start - last, max(2 * (stop - start) - 3 + alike, 0))):
            rest = number - _DIRECT
            symbol = number if rest < 0 else _DIRECT + rest.bit_length()
            result.append((256 + kind, symbol, f"{rest:b}"[1:] if rest > 0 else ""))
        others = frame[start : start + 1 if alike else stop]
        left = np.append(frame[start - 1] if start else np.uint8(0), others[:-1])
        result += [(a, b, "") for a, b in zip(left.tolist(), (others - left).tolist(), strict=True)]
        last = stop
    return [*result, (256, _END, "")]


def _as_text(entry: int) -> str:
    return f"{entry >> 6:0{entry & 63}b}"


def _decode_kernel(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    references: Ints,
    rows: Ints,
    sources: Ints,
    keys: Bytes,
    row_bytes: int,
    tables: NDArray[np.uint16],
    contexts: Bytes,
    numbers: NDArray[np.uint32],
    out: Bytes,
) -> int:
    frame_bytes = out.shape[1]
    above = np.empty(min(row_bytes, frame_bytes), np.uint8)
    for i in range(rows.size):
        start, length, row = offsets[i], lengths[i], out[rows[i]]
        if sources[i] >= 0:
            source = out[sources[i]]
            for b in range(frame_bytes):
                row[b] = source[b]
            continue
        if start < 0 or length < 0 or length > frame_bytes or start > heap.size - length:
            return i
        payload = heap[start : start + length]
        if length == frame_bytes:
            for b in range(frame_bytes):
                row[b] = payload[b]
            continue
        reference = references[i]
        if reference < 0 or reference >= keys.shape[0]:
            return i
        head = payload[0] if length else np.uint8(0)
        from_above = head & 1
        if head >> 1 >= tables.shape[0]:
            return i
        # What is changed where it is not as expected: the frame, or a row that is then the one above the next.
        line = above if from_above else row
        if from_above:
            for b in range(line.size):
                line[b] = 0
        else:
            key = keys[reference]
            for b in range(frame_bytes):
                row[b] = key[b]
        if length == 0:
            continue
        table, number_table = tables[head >> 1].reshape(-1), numbers[head >> 1].reshape(-1)
        context = contexts[head >> 1]
        done, end = np.uint64(8), np.uint64(8 * length)  # bits of the payload: those that were read, and all
        at, begin, size = np.int64(0), np.int64(0), line.size  # the next byte, and the line's first
        while True:
            # The next bits from the highest, 57 of them at least. No branch here is often mispredicted: that would
            # take longer than the rest. Unsigned indices: signed ones are checked for counting from the end. Whether
            # there were as many bits is asked at the end; until then `at` keeps within the frame.
            byte, bits, loaded = np.uint64(start) + (done >> np.uint64(3)), np.uint64(0), done
            if byte + np.uint64(8) <= np.uint64(heap.size):
                for b in range(8):
                    bits |= np.uint64(heap[byte + np.uint64(b)]) << np.uint64(56 - 8 * b)
            else:
                for b in range(heap.size - np.int64(byte)):
                    bits |= np.uint64(heap[byte + np.uint64(b)]) << np.uint64(56 - 8 * b)
            bits <<= done & np.uint64(7)
            first = np.uint64(number_table[bits >> np.uint64(64 - _BITS)])
            taken, extra = first & np.uint64(15), first >> np.uint64(4) & np.uint64(15)
            rest = bits << taken
            skip = (first >> np.uint64(8)) + (rest >> np.uint64(1) >> (np.uint64(63) - extra))
            rest <<= extra
            done += taken + extra
            second = np.uint64(number_table[np.uint64(1 << _BITS) | rest >> np.uint64(64 - _BITS)])
            taken, extra = second & np.uint64(15), second >> np.uint64(4) & np.uint64(15)
            rest <<= taken
            span = (second >> np.uint64(8)) + (rest >> np.uint64(1) >> (np.uint64(63) - extra))
            rest <<= extra
            done += taken + extra
            if first == 0 or second == 0:  # the end, or a symbol that is seldom: anew, one after the other
                done, rest, kind = loaded, bits, 0
                while kind < 2:
                    if kind:
                        byte, rest, loaded = np.uint64(start) + (done >> np.uint64(3)), np.uint64(0), done
                        for b in range(min(8, heap.size - int(byte))):
                            rest |= np.uint64(heap[byte + np.uint64(b)]) << np.uint64(56 - 8 * b)
                        rest <<= done & np.uint64(7)
                    entry = np.uint64(table[np.uint64(kind << _BITS) | rest >> np.uint64(64 - _BITS)])
                    taken, span = entry & np.uint64(15), entry >> np.uint64(4)
                    rest <<= taken
                    done += taken
                    if taken == 0:
                        return i
                    if span == _ESCAPE:
                        span = rest >> np.uint64(56)
                        rest <<= np.uint64(8)
                        done += np.uint64(8)
                    if span == _END:
                        break
                    if span > _DIRECT:
                        extra = span - np.uint64(_DIRECT + 1)
                        span = np.uint64(_DIRECT) + (np.uint64(1) << extra)
                        span += rest >> np.uint64(1) >> (np.uint64(63) - extra)
                        rest <<= extra
                        done += extra
                    if kind == 0:
                        skip = span
                    kind += 1
                if kind == 1:
                    return i
                if kind == 0:
                    break
            bits = rest
            if skip > np.uint64(frame_bytes) or span > np.uint64(2 * frame_bytes):
                return i
            at += np.int64(skip)
            stop = at + np.int64((span + np.uint64(1)) >> np.uint64(1)) + 1
            if stop > frame_bytes:
                return i
            while at >= begin + size:
                whole_line = row[begin : begin + size]
                for b in range(size):
                    whole_line[b] = line[b]
                begin += size
            column = np.uint64(at - begin)
            # The byte before; of the first in a line it is that of the row above, which is still there.
            left = np.uint64(line[column - np.uint64(1) if column else np.uint64(size - 1)]) if at else np.uint64(0)
            coded = stop if span & np.uint64(1) else at + 1  # the others are alike
            while True:
                if done - loaded > np.uint64(57 - _BITS - 8):
                    byte, bits, loaded = np.uint64(start) + (done >> np.uint64(3)), np.uint64(0), done
                    for b in range(min(8, heap.size - int(byte))):
                        bits |= np.uint64(heap[byte + np.uint64(b)]) << np.uint64(56 - 8 * b)
                    bits <<= done & np.uint64(7)
                entry = np.uint64(table[np.uint64(context[left]) << np.uint64(_BITS) | bits >> np.uint64(64 - _BITS)])
                taken = entry & np.uint64(15)
                bits <<= taken
                done += taken
                entry >>= np.uint64(4)
                if entry == _ESCAPE or taken == 0:
                    if taken == 0:
                        return i
                    entry = bits >> np.uint64(56)
                    bits <<= np.uint64(8)
                    done += np.uint64(8)
                left = (left + entry) & np.uint64(255)
                line[column] = left
                at += 1
                if at == coded:
                    break
                column += np.uint64(1)
                if at == begin + size:
                    whole_line = row[begin:at]
                    for b in range(size):
                        whole_line[b] = line[b]
                    begin, column = at, np.uint64(0)
            more = np.uint64(stop - at)
            if more <= np.uint64(3) and stop <= begin + size:  # as most spans: in the same way, however many they are
                last = np.uint64(stop - begin - 1)
                line[last - min(more, np.uint64(2))] = left
                line[last - min(more, np.uint64(1))] = left
                line[last] = left
                at = stop
                continue
            while at < stop:
                if at == begin + size:
                    whole_line = row[begin:at]
                    for b in range(size):
                        whole_line[b] = line[b]
                    begin = at
                until = min(stop, begin + size)
                target = line[at - begin : until - begin]
                for b in range(target.size):
                    target[b] = left
                at = until
        if done > end or end - done >= np.uint64(8):
            return i
        while from_above and begin < frame_bytes:
            last_line = row[begin : begin + size]
            for b in range(last_line.size):
                last_line[b] = line[b]
            begin += size
    return -1


def decode_reference(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    references: Ints,
    rows: Ints,
    sources: Ints,
    keys: Bytes,
    row_bytes: int,
    tables: NDArray[np.uint16],
    contexts: Bytes,
    numbers: NDArray[np.uint32],
    out: Bytes,
) -> int:
    """Decode or copy into `out[rows]` as the kernel does, in Python, without `numbers`.

    Returns the first damaged payload, or -1.
    """
    for i in range(rows.size):
        start, length, reference, row = int(offsets[i]), int(lengths[i]), int(references[i]), out[rows[i]]
        if sources[i] >= 0:
            row[:] = out[sources[i]]
            continue
        if start < 0 or not 0 <= length <= row.size or start > heap.size - length:
            return i
        payload = heap[start : start + length]
        if length == row.size:
            row[:] = payload
            continue
        if not 0 <= reference < len(keys):
            return i
        if length == 0:
            row[:] = keys[reference, : row.size]
            continue
        code_set, from_above = divmod(int(payload[0]), 2)
        if code_set >= len(tables):
            return i
        try:
            _read_spans(
                _Bits(payload[1:]),
                tables[code_set],
                contexts[code_set],
                None if from_above else keys[reference],
                row_bytes,
                row,
            )
        except _DamagedError:
            return i
    return -1


class _DamagedError(Exception):
    """What was read is no payload."""


class _Bits:
    """The bits of a payload, from the highest of each byte."""

    def __init__(self, payload: Bytes) -> None:
        self.text = "".join(f"{byte:08b}" for byte in payload.tolist())
        self.at = 0

    def take(self, n: int) -> int:
        self.at += n
        if self.at > len(self.text):
            raise _DamagedError
        return int(self.text[self.at - n : self.at] or "0", 2)

    def symbol(self, table: NDArray[np.uint16]) -> int:
        ahead = self.text[self.at : self.at + huffman.LONGEST].ljust(huffman.LONGEST, "0")
        symbol, taken = divmod(int(table[int(ahead, 2)]), 16)
        if taken == 0:
            raise _DamagedError
        self.take(taken)
        return self.take(8) if symbol == huffman.ESCAPE else symbol

    def number(self, table: NDArray[np.uint16]) -> int | None:
        """Return the next number, None at the end."""
        symbol = self.symbol(table)
        if symbol == _END:
            return None
        if symbol <= _DIRECT:
            return symbol
        extra = symbol - _DIRECT - 1
        return _DIRECT + (1 << extra) + self.take(extra)


def _read_spans(
    bits: _Bits, tables: NDArray[np.uint16], contexts: Bytes, key: Bytes | None, row_bytes: int, row: Bytes
) -> None:
    at = 0
    while True:
        skip = bits.number(tables[0])
        stop = row.size if skip is None else at + skip
        if stop > row.size:
            raise _DamagedError
        if key is not None:
            row[at:stop] = key[at:stop]
        else:
            for b in range(at, stop):
                row[b] = row[b - row_bytes] if b >= row_bytes else 0
        if skip is None:
            break
        at, number = stop, bits.number(tables[1])
        stop = row.size + 1 if number is None else at + (number + 1) // 2 + 1
        if number is None or stop > row.size:
            raise _DamagedError
        left = int(row[at - 1]) if at else 0
        while at < stop:
            left = (left + bits.symbol(tables[contexts[left]])) & 255
            until = stop if number and number % 2 == 0 else at + 1
            row[at:until] = left
            at = until
    if len(bits.text) - bits.at >= 8:
        raise _DamagedError
