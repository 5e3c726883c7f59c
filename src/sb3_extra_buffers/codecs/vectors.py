"""Kernels in instructions that a compiler does not find by itself, for 64 bytes at once.

They are those of x86's AVX-512 VBMI and VBMI2, of most processors since 2019 (Intel's servers) and 2022 (AMD): a table
of 256 bytes (`vpermi2b`), and bytes that are put close together and apart again by a mask (`vpcompressb`, `vpexpandb`).
What kernels do is said where their references are. Import only where numba is installed.
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
    return not config.DISABLE_JIT and {"+avx512bw", "+avx512vbmi", "+avx512vbmi2"} <= set(features)


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


@intrinsic
def _look_up(typing_context: Any, table: Any, numbers: Any, out: Any) -> Any:
    """Write `table[numbers]` into `out`, 64 at once; returns how many are done.

    All are contiguous bytes; `table` has 256, `out` as many as `numbers`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        table, numbers, out = code.args
        parts = [code.load(table, _INT(_AT_ONCE * k)) for k in range(4)]
        whole = builder.and_(numbers.nitems, _INT(-_AT_ONCE))
        with cgutils.for_range_slice(builder, _INT(0), whole, _INT(_AT_ONCE)) as (start, _):
            some = code.load(numbers, start)
            low, high = (code.look_up(parts[k], some, parts[k + 1]) for k in (0, 2))
            is_high = builder.icmp_signed("<", some, _BYTES(None))
            code.store(builder.select(is_high, high, low), out, start)
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
        flags, kinds = builder.bitcast(bits, _FLAGS), [_BYTES, _BYTES, _FLAGS]
        code.store(code.call("mask.compress.v64i8", kinds, code.load(data, start), _BYTES(None), flags), out, to)
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
        flags, kinds = builder.bitcast(bits, _FLAGS), [_BYTES, _BYTES, _FLAGS]
        expanded = code.call("mask.expand.v64i8", kinds, code.load(data, start), code.load(out, above), flags)
        code.store(expanded, out, to)
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
