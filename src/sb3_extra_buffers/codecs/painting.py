"""Paint pictures: put the colours of their numbers straight into a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit, parallel
from sb3_extra_buffers.codecs.base import Bytes, Ints

Colours = NDArray[np.uint32]

_LITTLE = sys.byteorder == "little"
_AT_ONCE = 1024  # pixels that are painted: their colours stay near


def painting(planar: bool) -> Callable[..., None]:
    """Return what paints as `paint_reference` does, frames that come channel by channel or not.

    The former are painted in a sixth of the time where the processor looks up 64 bytes at once.
    """
    ints, numbers = "int64[::1]", ("uint8[::1]", "Array(uint8, 1, 'C', readonly=True)")
    others = f"{ints}, int64, {ints}, uint32[:,::1], int64, boolean, {ints}, uint8[:,::1]"
    kernel = _paint_kernel
    if planar and jit.has_vectors():
        from sb3_extra_buffers.codecs import vectors

        kernel = vectors.paint_kernel
    return jit.choose(kernel, paint_reference, *(f"void({one}, {others})" for one in numbers))


def worth(planar: bool) -> int:
    """Return from how many bytes on another thread pays."""
    return 8 * parallel.WORTH if planar and jit.has_vectors() else parallel.WORTH


def _paint_kernel(
    data: Bytes,
    starts: Ints,
    pixels: int,
    palettes: Ints,
    colours: Colours,
    channels: int,
    planar: bool,
    rows: Ints,
    out: Bytes,
) -> None:
    some = np.empty(_AT_ONCE, np.uint32)
    for i in range(rows.size):
        numbers, palette, frame = data[starts[i] : starts[i] + pixels], colours[palettes[i]], out[rows[i]]
        for p in range(0, pixels, _AT_ONCE):  # looked up one by one, then their channels in vector code
            n = min(_AT_ONCE, pixels - p)
            part = numbers[p : p + n]
            for q in range(n):
                some[q] = palette[part[q]]
            if not planar and channels == 3 and pixels % 4 == 0 and _LITTLE:  # four pixels are three words
                words = frame[3 * p : 3 * (p + n)].view(np.uint32)
                for w in range(n // 4):
                    one, two, three, four = some[4 * w], some[4 * w + 1], some[4 * w + 2], some[4 * w + 3]
                    words[3 * w] = one | two << np.uint32(24)
                    words[3 * w + 1] = two >> np.uint32(8) | three << np.uint32(16)
                    words[3 * w + 2] = three >> np.uint32(16) | four << np.uint32(8)
                continue
            for c in range(channels):
                shift = np.uint32(8 * c)
                if planar:
                    plane = frame[c * pixels + p : c * pixels + p + n]
                    for q in range(n):
                        plane[q] = np.uint8(some[q] >> shift)
                else:
                    these = frame[p * channels + c : (p + n) * channels : channels]
                    for q in range(n):
                        these[q] = np.uint8(some[q] >> shift)


def paint_reference(
    data: Bytes,
    starts: Ints,
    pixels: int,
    palettes: Ints,
    colours: Colours,
    channels: int,
    planar: bool,
    rows: Ints,
    out: Bytes,
) -> None:
    """Write the colours of the numbers that begin at `starts` of `data`, so many `pixels`, into `rows` of `out`."""
    for start, palette, row in zip(starts, palettes, rows, strict=True):
        painted = colours[palette][data[start : start + pixels]]  # [pixels]
        values = painted >> np.arange(0, 8 * channels, 8, dtype=np.uint32)[:, None]  # [channels, pixels]
        out[row] = (values if planar else values.T).astype(np.uint8).reshape(-1)
