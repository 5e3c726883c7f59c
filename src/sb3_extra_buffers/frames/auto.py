"""What `auto` decides from the first data: how observations are stacked, and which codec suits them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import Codec, optional

SMALL = 256
"""Bytes below which an observation, or a frame of one, costs more to manage than compressing it saves."""

_MASKS = 4  # rows that are as the ones above must leave so many times fewer bytes than `delta`, which is faster


def likely_stack(obs_shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the number of frames to begin with, before anything is known: the channels of a channel-first image."""
    if len(obs_shape) != 3 or obs_shape[0] > 16:
        return 1
    return obs_shape[0] if obs_shape[1] * obs_shape[2] * dtype.itemsize >= SMALL else 1


def find_stack(before: NDArray[np.uint8], after: NDArray[np.uint8], item_bytes: int) -> tuple[int, int] | None:
    """Find how observations are stacked: which shift of `before` gives most of `after`.

    Args:
        before: bytes of observations `[n, *obs_shape]`, the last axis `item_bytes` times as long.
        after: likewise, the next observations of the same envs.
        item_bytes: size of one value.

    Returns:
        `(stack, axis)`, or None if no row shows any. A row shows a stack if the shift explains it and standing still
        does not.
    """
    if not len(before):
        return None
    for axis in (0, -1):
        moved_axis = axis % (before.ndim - 1) + 1
        a, b = np.moveaxis(before, moved_axis, 1), np.moveaxis(after, moved_axis, 1)
        unit = item_bytes if moved_axis == before.ndim - 1 else 1
        channels = a.shape[1] // unit
        for shift in range(1, channels // 2 + 1):
            if channels % shift or before[0].nbytes * shift // channels < SMALL:
                continue
            cut = shift * unit
            moved = _same_rows(a[:, cut:], b[:, :-cut])
            still = _same_rows(a[moved, cut:], a[moved, :-cut])
            if len(still) < len(moved):
                return channels // shift, axis
    return None


def _same_rows(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.int64]:
    """Return which rows of `[n, m, ...]` are the same. Most differ soon, and are not read further."""
    rows, start, stop = np.arange(len(a)), 0, 1
    while len(rows) and start < a.shape[1]:
        same = a[rows, start:stop] == b[rows, start:stop]
        rows = rows[same.reshape(len(rows), -1).all(axis=1)]
        start, stop = stop, 2 * stop + 1
    return rows


def candidates(codec: Callable[..., Codec]) -> dict[str, Codec]:
    """Return the codecs that `auto` may choose; `codec(method, **settings)` opens them for frames of one layout.

    `rows` are the spans of `delta/2` without keys: a row is as the one above it. It is for masks, `pixels` for colours.
    """
    found = {"delta": codec("delta")}
    if optional.has_numba():
        found["rows"] = codec("delta/2", keys=0)
    if optional.has_zstd():
        found["zstd"] = codec("zstd3")
        with suppress(ValueError):  # pixels of one byte
            found["pixels"] = codec("zstd3", filter="palette", dictionary_bytes=0)  # no dictionary helps pictures much
    return found


def choose_codec(samples: list[NDArray[np.uint8]], codec: Callable[..., Codec]) -> Codec:
    """Return the codec for `auto`: `delta`, unless it leaves much and another is far smaller on these frames.

    Each frame of a stack is stored once, so of stacked ones `delta`, the fastest to read, may leave more.

    `samples` are blocks of frames `[n, stack, bytes]` in the order they came.
    """
    found = candidates(codec)
    frames = [block[:, -1] for block in samples if len(block)]  # the newest frame of each observation
    if not frames or len(found) == 1:
        return found["delta"]
    newest = np.ascontiguousarray(np.concatenate(frames)[:64])
    sizes = {name: _encoded_bytes(candidate, newest) for name, candidate in found.items()}
    delta = sizes.pop("delta")
    rows = sizes.pop("rows", delta)
    other = min(sizes, key=sizes.__getitem__, default="delta")
    least = sizes.get(other, delta)
    if _MASKS * rows < delta and rows < 1.25 * least:  # and it will learn to be smaller
        return found["rows"]
    much = newest.size // 8 * min(max(samples[0].shape[1], 2), 4)  # a quarter, of stacks of 4 half of the bytes
    return found[other] if delta > much and 2 * least < delta else found["delta"]


def _encoded_bytes(codec: Codec, frames: NDArray[np.uint8]) -> int:
    return int(codec.coder(frames.shape[1]).encode(frames, np.zeros(len(frames), np.int64)).lengths.sum())
