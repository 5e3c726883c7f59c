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
        self._encode = jit.choose(
            _encode_kernel,
            encode_reference,
            f"int64({frames}, {frames}, {ints}, boolean, int64, int64, uint16[:,::1], {frames}, {data}, boolean,"
            f" uint32[:,::1], {data}, {ints}, boolean[::1])",
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
        self._codes = np.array([huffman.codes(lengths) for lengths in self.lengths[-1]])
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
        lengths, keyless = np.empty(n, np.int64), np.zeros(n, np.bool_)
        data = np.empty(n * self.frame_bytes + 64, np.uint8)  # more than it takes: bits are written some at once
        start = end = 0
        while start < n:
            until = next((after for after in _TRAINED_AFTER if after > self.seen), self.seen + n)
            stop = min(n, start + until - self.seen) if self.learning else n
            end += self._encode(
                frames[start:stop],
                self._key_frames(),
                references[start:stop],
                self.keys is not None,
                self.codec.row_bytes,
                len(self.lengths) - 1,
                self._codes,
                self.lengths[-1],
                self.contexts[-1],
                self.learning and self._counts,
                self.counts,
                data[end:],
                lengths[start:stop],
                keyless[start:stop],
            )
            if self.learning:
                self.seen += stop - start
                if self.seen in _TRAINED_AFTER:
                    self._train()
            start = stop
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


def _encode_kernel(
    frames: Bytes,
    keys: Bytes,
    references: Ints,
    keyed: bool,
    row_bytes: int,
    newest: int,
    codes: NDArray[np.uint16],
    code_lengths: Bytes,
    contexts: Bytes,
    counting: bool,
    counts: NDArray[np.uint32],
    data: Bytes,
    lengths: Ints,
    keyless: NDArray[np.bool_],
) -> int:
    frame_bytes = frames.shape[1]
    whole = frame_bytes - frame_bytes % 128
    shifted = np.zeros(frame_bytes, np.uint8)
    changed = np.zeros((frame_bytes + 7) // 8 * 8, np.uint8)
    eights = changed.view(np.uint64)
    some, places = np.empty(eights.size + 1, np.int64), np.empty(changed.size + 1, np.int64)
    most = 2 * frame_bytes + 4
    sources, symbols = np.empty(most, np.int16), np.empty(most, np.uint8)
    extras, rests = np.empty(most, np.uint8), np.empty(most, np.uint32)  # bits behind a symbol: how many, which
    begin = np.int64(0)
    for i in range(frames.shape[0]):
        frame, key = frames[i], keys[references[i]]
        below = shifted[row_bytes:]
        for b in range(below.size):
            below[b] = frame[b]
        # Inner loops of fixed length and one type: so the compiler makes vector code of them.
        differ_above, differ_key = np.int64(0), np.int64(0)
        for start in range(0, whole, 128):
            above_here, key_here = np.uint8(0), np.uint8(0)
            for b in range(start, start + 128):
                above_here = np.uint8(above_here + np.uint8(frame[b] != shifted[b]))
                key_here = np.uint8(key_here + np.uint8(frame[b] != key[b]))
            differ_above += above_here
            differ_key += key_here
        for b in range(whole, frame_bytes):
            differ_above += frame[b] != shifted[b]
            differ_key += frame[b] != key[b]
        if differ_key == 0:
            lengths[i] = 0
            continue
        from_above = not keyed or differ_above < differ_key
        expected = shifted if from_above else key
        for b in range(frame_bytes):
            changed[b] = frame[b] ^ expected[b]
        # Where it is not as expected. Nothing is asked on the way: what comes next cannot be foreseen.
        n_some, n_places = 0, 0
        for w in range(eights.size):
            some[n_some] = w
            n_some += eights[w] != 0
        for t in range(n_some):
            first = 8 * some[t]
            for b in range(first, first + 8):
                places[n_places] = b
                n_places += changed[b] != 0
        n, t, last = 0, 0, 0
        while t < n_places:
            start = places[t]
            t += 1
            while t < n_places and places[t] - places[t - 1] <= _GAP + 1:
                t += 1
            stop = places[t - 1] + 1
            alike = 1
            for b in range(start + 1, stop):
                alike &= frame[b] == frame[start]
            for kind in range(2):
                number = start - last
                if kind == 1:
                    number = max(2 * (stop - start) - 3 + alike, 0)
                symbols[n] = number
                extras[n] = 0
                if number >= _DIRECT:
                    rest, extra = number - _DIRECT, 0  # its bits but the highest
                    for step in (16, 8, 4, 2, 1):
                        extra += step if rest >> extra >= 1 << step else 0
                    symbols[n] = _DIRECT + extra + (rest > 0)
                    extras[n] = extra
                    rests[n] = rest - (1 << extra)
                sources[n] = 256 + kind
                n += 1
            left = frame[start - 1] if start else np.uint8(0)
            for b in range(start, start + 1 if alike else stop):
                sources[n] = left
                symbols[n] = frame[b] - left
                extras[n] = 0
                left = frame[b]
                n += 1
            last = stop
        sources[n] = 256
        symbols[n] = _END
        extras[n] = 0
        n += 1
        data[begin] = newest << 1 | from_above
        at, waiting, n_bits = begin + 1, np.uint64(0), np.int64(0)  # bits that are not written yet, fewer than 32
        for t in range(n):
            code, symbol = contexts[sources[t]], symbols[t]
            length = np.int64(code_lengths[code, symbol])
            if length:
                waiting = waiting << np.uint64(length) | np.uint64(codes[code, symbol])
                n_bits += length
            else:
                length = np.int64(code_lengths[code, _ESCAPE])
                waiting = waiting << np.uint64(length) | np.uint64(codes[code, _ESCAPE])
                waiting = waiting << np.uint64(8) | np.uint64(symbol)
                n_bits += length + 8
            for turn in range(2):
                if turn == 1:
                    if extras[t] == 0:
                        break
                    waiting = waiting << np.uint64(extras[t]) | np.uint64(rests[t])
                    n_bits += extras[t]
                if n_bits >= 32:
                    n_bits -= 32
                    for k in range(4):
                        data[at + k] = waiting >> np.uint64(n_bits + 24 - 8 * k) & np.uint64(255)
                    at += 4
            if at - begin >= frame_bytes:
                break
        size = at - begin + (n_bits + 7) // 8
        keyless[i] = from_above or size >= frame_bytes
        if size >= frame_bytes:
            whole_frame = data[begin : begin + frame_bytes]
            for b in range(frame_bytes):
                whole_frame[b] = frame[b]
            size = frame_bytes
        else:
            waiting <<= np.uint64(32 - n_bits)
            for k in range((n_bits + 7) // 8):
                data[at + k] = waiting >> np.uint64(24 - 8 * k) & np.uint64(255)
            if counting:
                for t in range(n):
                    counts[sources[t], symbols[t]] += np.uint32(1)
        lengths[i] = size
        begin += size
    return int(begin)


def encode_reference(
    frames: Bytes,
    keys: Bytes,
    references: Ints,
    keyed: bool,
    row_bytes: int,
    newest: int,
    codes: NDArray[np.uint16],
    code_lengths: Bytes,
    contexts: Bytes,
    counting: bool,
    counts: NDArray[np.uint32],
    data: Bytes,
    lengths: Ints,
    keyless: NDArray[np.bool_],
) -> int:
    """Write the payloads as the kernel does, in Python; returns how many bytes they take.

    `keyless` becomes True where a payload needs no key.
    """
    written = 0
    for i, frame in enumerate(frames):
        key = keys[references[i], : frame.size]
        shifted = np.concatenate([np.zeros(row_bytes, np.uint8), frame])[: frame.size]
        differ_above, differ_key = np.count_nonzero(frame != shifted), np.count_nonzero(frame != key)
        if differ_key == 0:
            lengths[i] = 0
            continue
        from_above = not keyed or differ_above < differ_key
        symbols = _symbols(frame, shifted if from_above else key)
        text = "".join(
            _code(symbol, codes[contexts[source]], code_lengths[contexts[source]]) + extra
            for source, symbol, extra in symbols
        )
        payload = np.empty(1 + -(-len(text) // 8), np.uint8)
        payload[0] = newest << 1 | from_above
        payload[1:] = np.packbits(np.frombuffer(text.encode(), np.uint8) - ord("0"))
        keyless[i] = from_above or payload.size >= frame.size
        if payload.size >= frame.size:
            payload = frame
        elif counting:
            for source, symbol, _ in symbols:
                counts[source, symbol] += 1
        lengths[i] = payload.size
        data[written : written + payload.size] = payload
        written += payload.size
    return written


def _symbols(frame: Bytes, expected: Bytes) -> list[tuple[int, int, str]]:
    """Return `(source, symbol, bits behind it)` of a frame; the source of a byte is the one on its left."""
    changed = np.flatnonzero(frame != expected)
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


def _code(symbol: int, codes: NDArray[np.uint16], lengths: Bytes) -> str:
    if lengths[symbol]:
        return f"{codes[symbol]:0{lengths[symbol]}b}"
    return f"{codes[huffman.ESCAPE]:0{lengths[huffman.ESCAPE]}b}{symbol:08b}"


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
