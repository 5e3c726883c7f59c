"""What `auto` decides from the first data: how observations are stacked, and which codec suits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import Codec, optional

SMALL = 256
"""Bytes below which an observation, or a frame of one, costs more to manage than compressing it saves."""


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
            still = _same_rows(a[:, cut:], a[:, :-cut])
            if np.any(moved & ~still):
                return channels // shift, axis
    return None


def _same_rows(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (a == b).reshape(len(a), -1).all(axis=1)
    return same


def choose_codec(samples: list[NDArray[np.uint8]], codec: Callable[[str], Codec]) -> Codec:
    """Return the codec for `auto`: `delta`, unless zstd is far smaller on these frames and delta does poorly.

    `samples` are blocks of frames `[n, stack, bytes]` in the order they came.
    """
    delta = codec("delta")
    frames = [block[:, -1] for block in samples if len(block)]  # the newest frame of each observation
    if not frames or not optional.has_zstd():
        return delta
    newest = np.ascontiguousarray(np.concatenate(frames)[:64])
    sizes = {
        method: int(codec(method).coder(newest.shape[1]).encode(newest, np.zeros(len(newest), np.int64)).lengths.sum())
        for method in ("delta", "zstd3")
    }
    poor = sizes["delta"] > newest.size // 4
    return codec("zstd3") if poor and 2 * sizes["zstd3"] < sizes["delta"] else delta
