"""Kernels in instructions that a compiler does not find by itself, for 64 bytes at once.

They are those of x86's AVX-512 VBMI and VBMI2, of most processors since 2019 (Intel's servers) and 2022 (AMD): a table
of 256 bytes (`vpermi2b`), and bytes that are put close together and apart again by a mask (`vpcompressb`, `vpexpandb`);
and what those processors have as well, of BMI2 the same with bits (`pext`, `pdep`), of GFNI products of matrices of
bits (`gf2p8affineqb`). What kernels do is said where their references are. Import only where numba is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes, Ints
from sb3_extra_buffers.codecs.spans import ABOVE, KEY, SAME

_AT_ONCE = 64
_BYTES = ir.VectorType(ir.IntType(8), _AT_ONCE)
_FLAGS = ir.VectorType(ir.IntType(1), _AT_ONCE)
_INT = ir.IntType(64)


def _is_available() -> bool:
    """Ask for what numba compiles, which environment variables may change, not for what the processor has."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return not config.DISABLE_JIT and {"+avx512bw", "+avx512vbmi", "+avx512vbmi2", "+bmi2", "+gfni"} <= set(features)


AVAILABLE = _is_available()


class _Code:
    """What the functions below write their instructions with."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.builder = builder
        self.args = [
            context.make_array(kind)(context, builder, arg) if isinstance(kind, types.Array) else arg
            for kind, arg in zip(signature.args, args, strict=True)
        ]

    def _at(self, array: Any, start: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array.data, [start]), _BYTES.as_pointer())

    def load(self, array: Any, start: Any) -> Any:
        return self.builder.load(self._at(array, start), align=1)

    def store(self, value: Any, array: Any, start: Any) -> None:
        self.builder.store(value, self._at(array, start), align=1)

    def call(self, name: str, kinds: list[Any], *args: Any) -> Any:
        kind = ir.FunctionType(_BYTES, kinds)
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.x86.avx512.{name}")
        return self.builder.call(function, args)

    def look_up(self, low: Any, numbers: Any, high: Any) -> Any:
        """Return what two halves of a table have at these numbers, of which the highest bit does not count."""
        return self.call("vpermi2var.qi.512", [_BYTES] * 3, low, numbers, high)

    def look_up_all(self, parts: list[Any], numbers: Any) -> Any:
        """Return what a table of four parts has at these numbers."""
        low, high = (self.look_up(parts[k], numbers, parts[k + 1]) for k in (0, 2))
        is_high = self.builder.icmp_signed("<", numbers, _BYTES(None))
        return self.builder.select(is_high, high, low)

    def table(self, array: Any, nth: int) -> list[Any]:
        """Return the parts of the nth table of 256 bytes in an array."""
        return [self.load(array, _INT(256 * nth + _AT_ONCE * k)) for k in range(4)]

    def flags(self, bits: Any) -> Any:
        return self.builder.bitcast(bits, _FLAGS)

    def bits(self, flags: Any) -> Any:
        return self.builder.bitcast(flags, _INT)

    def compress(self, data: Any, bits: Any, out: Any, to: Any) -> None:
        """Write those of 64 bytes that have a bit, close together, and then zeros."""
        kinds = [_BYTES, _BYTES, _FLAGS]
        self.store(self.call("mask.compress.v64i8", kinds, data, _BYTES(None), self.flags(bits)), out, to)

    def expand(self, data: Any, bits: Any, others: Any) -> Any:
        """Return 64 bytes: where there is a bit the next of `data`, else those of `others`."""
        return self.call("mask.expand.v64i8", [_BYTES, _BYTES, _FLAGS], data, others, self.flags(bits))


@intrinsic
def _look_up(typing_context: Any, table: Any, numbers: Any, out: Any) -> Any:
    """Write `table[numbers]` into `out`, 64 at once; returns how many are done.

    All are contiguous bytes; `table` has 256, `out` as many as `numbers`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        table, numbers, out = code.args
        parts = code.table(table, 0)
        whole = builder.and_(numbers.nitems, _INT(-_AT_ONCE))
        with cgutils.for_range_slice(builder, _INT(0), whole, _INT(_AT_ONCE)) as (start, _):
            code.store(code.look_up_all(parts, code.load(numbers, start)), out, start)
        return whole

    return types.int64(table, numbers, out), generate


@intrinsic
def _differs(typing_context: Any, data: Any, one: Any, other: Any) -> Any:
    """Return 64 bits: whether 64 bytes from `one` on differ from those from `other` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        data, one, other = code.args
        return builder.bitcast(builder.icmp_unsigned("!=", code.load(data, one), code.load(data, other)), _INT)

    return types.uint64(data, types.int64, types.int64), generate


@intrinsic
def _compress(typing_context: Any, data: Any, start: Any, bits: Any, out: Any, to: Any) -> Any:
    """Write those of 64 bytes from `start` on that have a bit, close together, and then zeros; returns how many."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        data, start, bits, out, to = code.args
        code.compress(code.load(data, start), bits, out, to)
        return builder.ctpop(bits)

    return types.int64(data, types.int64, types.uint64, out, types.int64), generate


@intrinsic
def _expand(typing_context: Any, data: Any, start: Any, bits: Any, out: Any, above: Any, to: Any) -> Any:
    """Write 64 bytes: where there is a bit the next from `start` on, else those of `out` from `above` on.

    Returns how many bits there are.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        data, start, bits, out, above, to = code.args
        code.store(code.expand(code.load(data, start), bits, code.load(out, above)), out, to)
        return builder.ctpop(bits)

    return types.int64(data, types.int64, types.uint64, out, types.int64, types.int64), generate


@intrinsic
def _repeat(typing_context: Any, data: Any, start: Any, bits: Any, out: Any, to: Any) -> Any:
    """Write 64 bytes: where there is a bit the next from `start` on, else the one before again.

    Before the first bit that is the one before `start`. Returns how many bits there are.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        data, start, bits, out, to = code.args
        count = builder.zext(builder.bitcast(bits, _FLAGS), _BYTES)  # of each byte, how many bits up to it
        for step in (1, 2, 4, 8, 16, 32):
            places = [_AT_ONCE + i - step if i >= step else i for i in range(_AT_ONCE)]
            places = ir.Constant(ir.VectorType(ir.IntType(32), _AT_ONCE), places)
            count = builder.add(count, builder.shuffle_vector(_BYTES(None), count, places))
        begin = builder.sub(start, _INT(1))
        halves = code.load(data, begin), code.load(data, builder.add(begin, _INT(_AT_ONCE)))
        code.store(code.look_up(halves[0], count, halves[1]), out, to)
        return builder.ctpop(bits)

    return types.int64(data, types.int64, types.uint64, out, types.int64), generate


def _splats(values: list[int]) -> Any:
    return ir.Constant(_BYTES, values)


def _splat(value: int) -> Any:
    return _splats([value] * _AT_ONCE)


@intrinsic
def _rank(
    typing_context: Any,
    table: Any,
    pixels: Any,
    above: Any,
    to: Any,
    valid: Any,
    three: Any,
    words: Any,
    n: Any,
    others: Any,
    classes: Any,
) -> Any:
    """Write into three `words` which of 64 pixels from `to` on are not the likeliest below those from `above` on.

    That is their bits, and `low` and `high` at the same places. Those that are none of the likely ones go from `n` on
    to `others`, the classes of those above to `classes`. Returns how many these are. `table` is `ranks.writer`'s.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        table, pixels, above, to, valid, three, words, n, others, classes = code.args
        over, here = code.load(pixels, above), code.load(pixels, to)
        same = [
            code.bits(builder.icmp_unsigned("==", code.look_up_all(code.table(table, k), over), here)) for k in range(4)
        ]
        is_likeliest = builder.and_(same[0], builder.sub(three, _INT(1)))  # none if three are
        is_told = builder.and_(builder.not_(is_likeliest), valid)
        is_other = builder.and_(is_told, builder.not_(builder.or_(same[1], builder.or_(same[2], same[3]))))
        not_second = builder.not_(same[1])
        low = builder.or_(builder.and_(builder.and_(is_told, not_second), same[2]), is_other)
        not_third = builder.and_(not_second, builder.not_(same[2]))
        high = builder.or_(builder.and_(builder.and_(is_told, not_third), same[3]), is_other)
        for k, word in enumerate((is_told, low, high)):
            builder.store(word, builder.gep(words.data, [_INT(k)]))
        code.compress(here, is_other, others, n)
        code.compress(code.look_up_all(code.table(table, 4), over), is_other, classes, n)
        return builder.ctpop(is_other)

    return types.int64(
        table, pixels, types.int64, types.int64, types.uint64, types.int64, words, types.int64, others, classes
    ), generate


@intrinsic
def _rank_others(
    typing_context: Any, table: Any, others: Any, classes: Any, start: Any, valid: Any, nth: Any, values: Any, to: Any
) -> Any:
    """Write of 64 `others` from `start` on which of the fifteen of their classes they are, and those that are none.

    These go from `to` on to `values`; returns how many they are. `table` is `ranks.writer`'s.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        table, others, classes, start, valid, nth, values, to = code.args
        here, numbers, found = code.load(others, start), code.load(classes, start), _splat(15)
        for k in range(14, -1, -1):
            one = code.call("permvar.qi.512", [_BYTES] * 2, code.load(table, _INT(5 * 256 + _AT_ONCE * k)), numbers)
            found = builder.select(builder.icmp_unsigned("==", one, here), _splat(k), found)
        code.store(found, nth, start)
        is_none = builder.and_(code.bits(builder.icmp_unsigned("==", found, _splat(15))), valid)
        code.compress(here, is_none, values, to)
        return builder.ctpop(is_none)

    return types.int64(table, others, classes, types.int64, types.uint64, nth, values, types.int64), generate


@intrinsic
def _unrank(
    typing_context: Any,
    table: Any,
    pixels: Any,
    above: Any,
    to: Any,
    told: Any,
    low: Any,
    high: Any,
    nth: Any,
    at: Any,
    data: Any,
    value: Any,
) -> Any:
    """Write 64 pixels below those from `above` on, as `_rank` and `_rank_others` say; returns how many are `data`'s.

    `nth` is read from `at` on, `data` from `value` on; `table` is a set of `ranks`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        table, pixels, above, to, told, low, high, nth, at, data, value = code.args
        over = code.load(pixels, above)
        not_low, not_high = builder.not_(low), builder.not_(high)
        found = code.look_up_all(code.table(table, 0), over)
        ways = (
            builder.and_(builder.and_(told, not_low), not_high),
            builder.and_(low, not_high),
            builder.and_(high, not_low),
        )
        for k, which in enumerate(ways):
            found = builder.select(code.flags(which), code.look_up_all(code.table(table, 1 + k), over), found)
        is_other = builder.and_(low, high)
        numbers = code.expand(code.load(nth, at), is_other, _BYTES(None))
        classes = code.look_up_all(code.table(table, 4), over)
        places = builder.or_(builder.and_(classes, _splat(0xF0)), numbers)
        is_second = builder.icmp_unsigned("!=", builder.and_(classes, _splat(1)), _BYTES(None))
        halves = [code.look_up_all(code.table(table, k), places) for k in (5, 6)]
        found = builder.select(code.flags(is_other), builder.select(is_second, halves[1], halves[0]), found)
        is_none = builder.and_(code.bits(builder.icmp_unsigned("==", numbers, _splat(15))), is_other)
        code.store(code.expand(code.load(data, value), is_none, found), pixels, to)
        return builder.ctpop(is_none)

    words = [types.uint64] * 3
    return types.int64(table, pixels, types.int64, types.int64, *words, nth, types.int64, data, types.int64), generate


def _find(code: Any, channels: Any, matrices: Any, parts: Any, numbers: Any, to: Any) -> Any:
    """Write the numbers of 64 pixels, of which the values of each channel are given; returns whether all are right."""
    builder, found = code.builder, _BYTES(None)
    for k in range(3):
        corner = _BYTES(None)
        for c, values in enumerate(channels):
            matrix = builder.load(builder.gep(matrices.data, [_INT(3 * k + c)]))
            word = ir.VectorType(_INT, 8)
            rows = builder.insert_element(word(ir.Undefined), matrix, ir.IntType(32)(0))
            rows = builder.shuffle_vector(
                rows, word(ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
            )
            kind = ir.FunctionType(_BYTES, [_BYTES, _BYTES, ir.IntType(8)])
            multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.vgf2p8affineqb.512")
            product = builder.call(multiply, [values, builder.bitcast(rows, _BYTES), ir.IntType(8)(0)])
            corner = builder.xor(corner, product)
        found = builder.xor(found, code.look_up_all(code.table(parts, k), corner))
    code.store(found, numbers, to)
    differ = _INT(0)
    for c, values in enumerate(channels):
        wrong = builder.icmp_unsigned("!=", code.look_up_all(code.table(parts, 3 + c), found), values)
        differ = builder.or_(differ, code.bits(wrong))
    return builder.icmp_unsigned("==", differ, _INT(0))


@intrinsic
def _find_planar(
    typing_context: Any, frame: Any, pixels: Any, start: Any, matrices: Any, parts: Any, numbers: Any
) -> Any:
    """Do as `_find`, 64 pixels from `start` on, of frames that come channel by channel."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        frame, pixels, start, matrices, parts, numbers = code.args
        channels = [code.load(frame, builder.add(start, builder.mul(_INT(c), pixels))) for c in range(3)]
        return _find(code, channels, matrices, parts, numbers, start)

    return types.boolean(frame, types.int64, types.int64, matrices, parts, numbers), generate


@intrinsic
def _find_mixed(typing_context: Any, frame: Any, start: Any, matrices: Any, parts: Any, numbers: Any) -> Any:
    """Do as `_find`, 64 pixels from `start` on, of frames that come pixel by pixel."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        frame, start, matrices, parts, numbers = code.args
        begin = builder.mul(start, _INT(3))
        first, second, third = (code.load(frame, builder.add(begin, _INT(_AT_ONCE * k))) for k in range(3))
        channels = []
        for c in range(3):
            places = [3 * i + c for i in range(_AT_ONCE)]
            in_two = code.look_up(first, _splats([place % 128 for place in places]), second)
            last = code.call("permvar.qi.512", [_BYTES] * 2, third, _splats([place % 64 for place in places]))
            is_last = ir.Constant(_FLAGS, [place >= 128 for place in places])
            channels.append(builder.select(is_last, last, in_two))
        return _find(code, channels, matrices, parts, numbers, start)

    return types.boolean(frame, types.int64, matrices, parts, numbers), generate


@intrinsic
def _close(typing_context: Any, word: Any, bits: Any) -> Any:
    """Return the bits of a word that are at these places, close together."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT, [_INT, _INT])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.bmi.pext.64"), args)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _apart(typing_context: Any, word: Any, bits: Any) -> Any:
    """Return the lowest bits of a word, put to these places."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT, [_INT, _INT])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.bmi.pdep.64"), args)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _count(typing_context: Any, bits: Any) -> Any:
    """Return how many of 64 bits are 1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


def paint_kernel(
    data: Bytes,
    starts: Ints,
    pixels: int,
    palettes: Ints,
    colours: NDArray[np.uint32],
    channels: int,
    planar: bool,
    rows: Ints,
    out: Bytes,
) -> None:
    """Do as `painting.paint_reference`, of frames that come channel by channel."""
    values = np.empty(256, np.uint8)  # of one channel, of each number
    for i in range(rows.size):
        numbers, palette, frame = data[starts[i] : starts[i] + pixels], colours[palettes[i]], out[rows[i]]
        for c in range(channels):
            for k in range(256):
                values[k] = np.uint8(palette[k] >> np.uint32(8 * c))
            plane = frame[c * pixels : (c + 1) * pixels]
            for p in range(_look_up(values, numbers, plane), pixels):
                plane[p] = values[numbers[p]]


def find_kernel(frame: Bytes, planar: bool, matrices: NDArray[np.uint64], parts: Bytes, numbers: Bytes) -> bool:
    """Do as `finding.find_reference`."""
    pixels = numbers.size
    for block in range((pixels + 63) // 64):
        start = min(64 * block, pixels - 64)  # the last ones overlap
        if planar:
            is_right = _find_planar(frame, pixels, start, matrices, parts, numbers)
        else:
            is_right = _find_mixed(frame, start, matrices, parts, numbers)
        if not is_right:
            return False
    return True


def spans_changed_kernel(
    frames: Bytes,
    keys: Bytes,
    references: Ints,
    keyed: bool,
    row_bytes: int,
    bits: NDArray[np.uint64],
    expected: Bytes,
) -> None:
    """Do as `spans.changed_reference`."""
    frame_bytes, n_words = frames.shape[1], bits.shape[1]
    width = min(row_bytes, frame_bytes)
    begin = width + 64 * n_words  # of the key; before it the frame, and before that the row above
    pixels = np.zeros(begin + 64 * n_words, np.uint8)
    below, beside = pixels[width:], pixels[begin:]
    from_key = np.empty(n_words, np.uint64)
    for i in range(frames.shape[0]):
        frame, row = frames[i], bits[i]
        for p in range(frame_bytes):
            below[p] = frame[p]
        differ_above = np.int64(0)
        for w in range(n_words):
            word = _differs(pixels, 64 * w, 64 * w + width)
            if 64 * w + 64 > frame_bytes:
                word &= (np.uint64(1) << np.uint64(frame_bytes % 64)) - np.uint64(1)
            row[w] = word
            differ_above += _count(word)
        expected[i] = ABOVE if keyed or differ_above else SAME
        if keyed:
            key, differ_key = keys[references[i]], np.int64(0)
            for p in range(frame_bytes):
                beside[p] = key[p]
            for w in range(n_words):
                word = _differs(pixels, begin + 64 * w, 64 * w + width)
                from_key[w] = word
                differ_key += _count(word)
            if differ_above >= differ_key:
                expected[i] = KEY if differ_key else SAME
                for w in range(n_words):
                    row[w] = from_key[w]


def near_encode_kernel(frames: Bytes, width: int, data: Bytes, lengths: Ints) -> int:
    """Do as `near.encode_reference`, with rows of 64 bytes at least."""
    frame_bytes = frames.shape[1]
    n_words = (frame_bytes + 63) // 64
    pixels = np.zeros(width + 64 * n_words, np.uint8)  # the row above the first
    told, values = np.empty(64 * n_words + 128, np.uint8), np.empty(64 * n_words + 64, np.uint8)
    words = np.empty(2 * n_words, np.uint64)
    bits = words.view(np.uint8)
    begin = 0
    for i in range(frames.shape[0]):
        frame, below = frames[i], pixels[width:]
        for p in range(frame_bytes):
            below[p] = frame[p]
        n = 0
        for w in range(n_words):
            word = _differs(pixels, 64 * w, 64 * w + width)
            if 64 * w + 64 > frame_bytes:
                word &= (np.uint64(1) << np.uint64(frame_bytes % 64)) - np.uint64(1)
            words[w] = word
            n += _compress(pixels, 64 * w + width, word, told, 64 + n)
        told[63] = ~told[64]  # the first is new
        n_new, ends = 0, n_words + (n + 63) // 64
        for w in range(n_words, ends):
            start = 64 * (w - n_words)
            word = _differs(told, 63 + start, 64 + start)
            if start + 64 > n:
                word &= (np.uint64(1) << np.uint64(n % 64)) - np.uint64(1)
            words[w] = word
            n_new += _compress(told, 64 + start, word, values, n_new)
        length = 8 * ends + n_new
        payload = data[begin:]
        if length >= frame_bytes:
            length = frame_bytes
            for p in range(frame_bytes):
                payload[p] = frame[p]
        else:
            for p in range(8 * ends):
                payload[p] = bits[p]
            payload = payload[8 * ends :]
            for p in range(n_new):
                payload[p] = values[p]
        lengths[i] = length
        begin += length
    return begin


def near_decode_kernel(
    heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, sources: Ints, width: int, out: Bytes
) -> int:
    """Do as `near.decode_reference`, with rows of 64 bytes at least."""
    frame_bytes = out.shape[1]
    n_words = (frame_bytes + 63) // 64
    pixels, told = np.zeros(width + 64 * n_words, np.uint8), np.empty(64 * n_words + 64, np.uint8)
    words = np.zeros(1 + (frame_bytes + 7) // 8 + 16, np.uint64)  # the payload from the second on: more may be loaded
    data = words.view(np.uint8)
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
        copied = data[8:]
        for p in range(length):
            copied[p] = source[p]
        n = n_new = 0
        for w in range(1, 1 + n_words):
            n += _count(words[w])
        ends = 1 + n_words + (n + 63) // 64
        if 8 * (ends - 1) > length or (frame_bytes % 64 and words[n_words] >> np.uint64(frame_bytes % 64)):
            return i
        for w in range(1 + n_words, ends):
            n_new += _count(words[w])
        if 8 * (ends - 1) + n_new != length or (n % 64 and words[ends - 1] >> np.uint64(n % 64)):
            return i
        if n > 0 and words[1 + n_words] & np.uint64(1) == np.uint64(0):
            return i
        at = 8 * ends
        for w in range(1 + n_words, ends):
            at += _repeat(data, at, words[w], told, 64 * (w - 1 - n_words))
        at = 0
        for w in range(n_words):
            at += _expand(told, at, words[1 + w], pixels, 64 * w, 64 * w + width)
        below = pixels[width:]
        for p in range(frame_bytes):
            frame[p] = below[p]
    return -1


def ranks_encode_kernel(frames: Bytes, width: int, table: Bytes, data: Bytes, lengths: Ints) -> int:
    """Do as `ranks.encode_reference`, with rows of 64 bytes at least."""
    frame_bytes = frames.shape[1]
    n_words = (frame_bytes + 63) // 64
    pixels = np.zeros(width + 64 * n_words, np.uint8)  # the row above the first
    some, words = np.empty(3, np.uint64), np.empty(3 * n_words + 2, np.uint64)
    low, high = np.empty(n_words + 1, np.uint64), np.empty(n_words + 1, np.uint64)
    bits = words.view(np.uint8)
    three = np.int64(table[table.size - 8193])
    others, classes = np.empty(64 * n_words + 64, np.uint8), np.empty(64 * n_words + 64, np.uint8)
    nth, values = np.empty(64 * n_words + 64, np.uint8), np.empty(64 * n_words + 64, np.uint8)
    begin = 0
    for i in range(frames.shape[0]):
        frame, below = frames[i], pixels[width:]
        for p in range(frame_bytes):
            below[p] = frame[p]
        at, n_others = np.uint64(0), 0
        low[0] = high[0] = np.uint64(0)
        for w in range(n_words):
            valid = ~np.uint64(0)
            if 64 * w + 64 > frame_bytes:
                valid = (np.uint64(1) << np.uint64(frame_bytes % 64)) - np.uint64(1)
            n_others += _rank(table, pixels, 64 * w, 64 * w + width, valid, three, some, n_others, others, classes)
            words[w] = some[0]
            into, shift = at >> np.uint64(6), at & np.uint64(63)
            for part, word in ((low, _close(some[1], some[0])), (high, _close(some[2], some[0]))):
                part[into] |= word << shift
                part[into + np.uint64(1)] = word >> np.uint64(1) >> (np.uint64(63) - shift)
            at += np.uint64(_count(some[0]))
        n_low = (np.int64(at) + 63) // 64
        n_below = n_words * (1 - three)
        for w in range(n_low):
            words[n_below + w], words[n_below + n_low + w] = low[w], high[w]
        n_values = 0
        for start in range(0, n_others, 64):
            valid = ~np.uint64(0)
            if start + 64 > n_others:
                valid = (np.uint64(1) << np.uint64(n_others % 64)) - np.uint64(1)
            n_values += _rank_others(table, others, classes, start, valid, nth, values, n_values)
        nth[n_others] = 0
        size, n_bytes = 8 * (n_below + 2 * n_low), (n_others + 1) // 2
        length = size + n_bytes + n_values
        lengths[i] = min(length, frame_bytes)
        if length >= frame_bytes:
            continue
        payload = data[begin:]
        for p in range(size):
            payload[p] = bits[p]
        payload = payload[size:]
        for p in range(n_bytes):
            payload[p] = nth[2 * p] | nth[2 * p + 1] << np.uint8(4)
        payload = payload[n_bytes:]
        for p in range(n_values):
            payload[p] = values[p]
        begin += length
    return begin


def ranks_decode_kernel(
    heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, width: int, table: Bytes, out: Bytes
) -> int:
    """Do as `ranks.decode_reference`, with rows of 64 bytes at least."""
    frame_bytes = out.shape[1]
    n_words = (frame_bytes + 63) // 64
    pixels, nth = np.zeros(width + 64 * n_words, np.uint8), np.zeros(frame_bytes + 66, np.uint8)
    words = np.zeros((frame_bytes + 7) // 8 + 16, np.uint64)  # the payload: more may be loaded
    data = words.view(np.uint8)
    three = table[1792] == np.uint8(1)
    n_below = 0 if three else n_words
    for i in range(rows.size):
        start, length, frame = offsets[i], lengths[i], out[rows[i]]
        if start < 0 or length < 8 * n_below or length >= frame_bytes or start > heap.size - length:
            return i
        source = heap[start : start + length]
        for p in range(length):
            data[p] = source[p]
        # How many there are of everything, and that the payload ends where it should, before anything is looked at.
        n = frame_bytes if three else 0
        n_others = n_values = 0
        for w in range(n_below):
            n += _count(words[w])
        n_low = (n + 63) // 64
        size = 8 * (n_below + 2 * n_low)
        if size > length or (n_below and frame_bytes % 64 and words[n_words - 1] >> np.uint64(frame_bytes % 64)):
            return i
        low, high = words[n_below:], words[n_below + n_low :]
        for w in range(n_low):
            n_others += _count(low[w] & high[w])
        n_bytes = (n_others + 1) // 2
        if size + n_bytes > length:
            return i
        if n % 64 and (low[n_low - 1] | high[n_low - 1]) >> np.uint64(n % 64):
            return i
        packed = data[size:]
        for p in range(n_bytes):
            nth[2 * p], nth[2 * p + 1] = packed[p] & np.uint8(15), packed[p] >> np.uint8(4)
        if n_others % 2 and nth[n_others]:
            return i
        for p in range(n_others):
            n_values += int(nth[p] == 15)
        if size + n_bytes + n_values != length:
            return i
        at, other, value = np.uint64(0), 0, size + n_bytes
        for w in range(n_words):
            told = ~np.uint64(0) if three else words[w]
            from_, shift = at >> np.uint64(6), at & np.uint64(63)
            low_bits = low[from_] >> shift | low[from_ + np.uint64(1)] << np.uint64(1) << (np.uint64(63) - shift)
            high_bits = high[from_] >> shift | high[from_ + np.uint64(1)] << np.uint64(1) << (np.uint64(63) - shift)
            low_bits, high_bits = _apart(low_bits, told), _apart(high_bits, told)
            value += _unrank(table, pixels, 64 * w, 64 * w + width, told, low_bits, high_bits, nth, other, data, value)
            other += _count(low_bits & high_bits)
            at += np.uint64(_count(told))
        below = pixels[width:]
        for p in range(frame_bytes):
            frame[p] = below[p]
    return -1
