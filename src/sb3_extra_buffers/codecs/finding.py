"""Find the numbers of pixels' colours: three looks into tables for 64 pixels at once, where the processor can do that.

A pixel has a corner in each of three tables: its bytes, multiplied by matrices of bits that were drawn at random. What
the tables have there, put together by exclusive or, is the number of its colour. Such tables are found by setting the
colours one after another, each at a corner that none before it has (as in the perfect hashing of Majewski, Wormald,
Havas and Czech). A pixel of another colour gets some number as well, so each one is compared with the colour it found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes

CHANNELS = 3
"""Bytes of the pixels that this is for."""

_TABLES = 3


class Tables(NamedTuple):
    """What finds the colours of one palette.

    Attributes:
        known: how many these are.
        matrices: of each table one for each channel, `[9]`. A row is a byte, the last row in the lowest.
        parts: the tables, and of each number the three values of its colour, `[6 * 256]`.
    """

    known: int
    matrices: NDArray[np.uint64]
    parts: Bytes


BYTES = 8 * _TABLES * CHANNELS + 256 * (_TABLES + CHANNELS)
"""Bytes of such tables."""

LEAST = 64
"""Pixels of a frame, at least."""


def tables(colours: NDArray[np.uint32], known: int) -> Tables:
    """Return what finds the first `known` colours. Should one be there twice, as a file may say, it finds the first."""
    some = colours[:known].astype("<u4").view(np.uint8).reshape(-1, 4)[:, :CHANNELS]
    different = np.sort(np.unique(some, axis=0, return_index=True)[1]).tolist()
    rng = np.random.default_rng(0)
    while True:  # once or twice; of colours that are much alike, such as greys, a few times
        matrices = rng.integers(1, 1 << 64, _TABLES * CHANNELS, np.uint64)
        products = np.array([multiplied(matrix) for matrix in matrices]).reshape(_TABLES, CHANNELS, 256)
        corners = np.bitwise_xor.reduce(products[:, np.arange(CHANNELS), some], axis=2).T  # [known, tables]
        found = _assigned(different, (corners + 256 * np.arange(_TABLES)).tolist())
        if found is not None:
            values = np.repeat(some[:1], 256, axis=0)  # what has no colour has the first: that has another number
            values[:known] = some
            return Tables(known, matrices, np.concatenate([found, values.T.reshape(-1)]))


def multiplied(matrix: np.uint64) -> Bytes:
    """Return the product of a matrix of bits with each byte, as `gf2p8affineqb` has it."""
    rows = np.array([matrix], "<u8").view(np.uint8)[::-1]  # the lowest bit's first
    ones = np.unpackbits(rows[:, None] & np.arange(256, dtype=np.uint8), axis=0).reshape(8, 8, 256).sum(axis=1) & 1
    return np.packbits(ones.astype(np.uint8), axis=0, bitorder="little").reshape(256)


def _assigned(colours: list[int], corners: list[list[int]]) -> Bytes | None:
    """Return tables, one after another, in which the corners of each colour make it; None if they depend in rings."""
    left, sums = [0] * (256 * _TABLES), [0] * (256 * _TABLES)  # of each corner: how many colours, and their sum
    for colour in colours:
        for corner in corners[colour]:
            left[corner] += 1
            sums[corner] += colour
    alone = [corner for corner, n in enumerate(left) if n == 1]
    order: list[tuple[int, int]] = []
    while alone:
        corner = alone.pop()
        if left[corner] != 1:
            continue
        colour = sums[corner]
        order.append((colour, corner))
        for each in corners[colour]:
            left[each] -= 1
            sums[each] -= colour
            if left[each] == 1:
                alone.append(each)
    if len(order) < len(colours):
        return None
    values = [0] * (256 * _TABLES)
    for colour, corner in reversed(order):  # the last one has a corner that is nobody else's by now
        for each in corners[colour]:
            if each != corner:
                values[corner] ^= values[each]
        values[corner] ^= colour
    return np.array(values, np.uint8)


def find_reference(frame: Bytes, planar: bool, matrices: NDArray[np.uint64], parts: Bytes, numbers: Bytes) -> bool:
    """Write the number of each pixel's colour; returns False, and writes anything, if there is one of another colour.

    Args:
        frame: three bytes a pixel.
        planar: whether they come channel by channel.
        matrices: as in `Tables`.
        parts: as in `Tables`.
        numbers: they go there. At least 64.
    """
    pixels = frame.reshape(CHANNELS, -1) if planar else frame.reshape(-1, CHANNELS).T
    products = np.array([multiplied(matrix) for matrix in matrices]).reshape(_TABLES, CHANNELS, 256)
    numbers[:] = 0
    for table, of_channels in zip(parts.reshape(-1, 256)[:_TABLES], products, strict=True):
        corner = np.bitwise_xor.reduce([product[values] for product, values in zip(of_channels, pixels, strict=True)])
        numbers ^= table[corner]
    return bool((parts.reshape(-1, 256)[_TABLES:, numbers] == pixels).all())
