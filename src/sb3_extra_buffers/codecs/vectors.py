"""Painting with instructions that a compiler does not find by itself: a table of 256 bytes for 64 bytes at once.

That is `vpermi2b` of x86's AVX-512 VBMI, of most processors since 2019 (Intel's servers) and 2022 (AMD).
Import only where numba is installed.
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

_AT_ONCE = 64


def _is_available() -> bool:
    """Ask for what numba compiles, which environment variables may change, not for what the processor has."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return not config.DISABLE_JIT and {"+avx512vbmi", "+avx512bw"} <= set(features)


AVAILABLE = _is_available()


@intrinsic  # type: ignore[untyped-decorator]
def _look_up(typing_context: Any, table: Any, numbers: Any, out: Any) -> Any:
    """`_look_up(table, numbers, out)` writes `table[numbers]` into `out`, 64 at once; returns how many are done.

    All are contiguous bytes; `table` has 256, `out` as many as `numbers`.
    """
    vector = ir.VectorType(ir.IntType(8), _AT_ONCE)
    index = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, arg) for kind, arg in zip(signature.args, args)]  # noqa: B905

        def at(array: Any, start: Any) -> Any:
            return builder.bitcast(builder.gep(array.data, [start]), vector.as_pointer())

        def load(array: Any, start: Any) -> Any:
            return builder.load(at(array, start), align=1)

        two_parts = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), "llvm.x86.avx512.vpermi2var.qi.512"
        )
        parts = [load(arrays[0], index(_AT_ONCE * k)) for k in range(4)]
        whole = builder.and_(arrays[1].nitems, index(-_AT_ONCE))
        with cgutils.for_range_slice(builder, index(0), whole, index(_AT_ONCE)) as (start, _):
            some = load(arrays[1], start)
            low, high = (builder.call(two_parts, [parts[k], some, parts[k + 1]]) for k in (0, 2))
            is_high = builder.icmp_signed("<", some, vector(None))
            builder.store(builder.select(is_high, high, low), at(arrays[2], start), align=1)
        return whole

    return types.int64(table, numbers, out), generate


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
