"""Observations as a picture: a contact sheet in a PNG file.

PNG is zlib and three headers: written here, it needs no library, so that `inspect --frames` works everywhere.
"""

from __future__ import annotations

import colorsys
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # [..., height, width, 3]

_COLUMNS = 8
_TILE = 168  # pixels: smaller pictures are drawn larger
_GAP = 4
_BETWEEN = 64  # grey: many pictures are black at their edges
_MASK_VALUES = 16  # a picture of masks has no more, a grey one many


def as_pictures(obs: NDArray[Any], stack: int = 1, channels_first: bool | None = None) -> Image | None:
    """Return the pictures `[n, height, width, 3]` of observations: of a stack, the newest frame.

    Three channels are RGB, of others the last one is shown: grey, or in colours where it is a mask. Values that are not
    bytes are scaled to what these observations have.

    Args:
        obs: `[n, *obs_shape]`.
        stack: frames in an observation, along its channels.
        channels_first: whether channels come first. None: they are the shorter one of first and last.

    Returns:
        None if these are no pictures but vectors, numbers or volumes.
    """
    if obs.ndim == 3:
        obs = obs[..., None]
    if obs.ndim != 4 or obs.dtype.kind not in "biuf":
        return None
    if channels_first is None:
        channels_first = obs.shape[1] <= obs.shape[-1]
    obs = np.moveaxis(obs, 1, -1) if channels_first else obs
    newest = obs[..., obs.shape[-1] - obs.shape[-1] // stack :]
    if newest.shape[-1] % 3 == 0:
        return _as_bytes(newest[..., -3:])
    last = newest[..., -1]
    if _are_masks(last):
        return _colours()[last.astype(np.int64) % 256]
    return np.repeat(_as_bytes(last)[..., None], 3, axis=-1)


def _are_masks(pictures: NDArray[Any]) -> bool:
    if pictures.dtype.kind not in "iu":
        return False
    values = sorted(len(np.unique(each)) for each in pictures)
    return 2 < values[len(values) // 2] <= _MASK_VALUES


def _colours() -> Image:
    """Return a colour for each value, black for 0; values next to each other get hues far apart."""
    hues = [colorsys.hsv_to_rgb(0.754878 * value % 1, 0.7, 1.0) for value in range(256)]
    table = np.array(hues) * 255
    table[0] = 0
    return table.astype(np.uint8)


def _as_bytes(values: NDArray[Any]) -> Image:
    if values.dtype == np.bool_:
        return values * np.uint8(255)
    if values.dtype == np.uint8:
        return values
    exact = values.astype(np.float64)
    finite = exact[np.isfinite(exact)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    scaled = (np.nan_to_num(exact, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return (255 * scaled).astype(np.uint8)


def sheet(panels: Sequence[Image]) -> Image:
    """Return one picture of all: panels below each other, the pictures of each in lines."""
    grids = [_grid(panel) for panel in panels]
    width = max(grid.shape[1] for grid in grids)
    return np.concatenate(
        [np.pad(grid, ((0, _GAP), (0, width - grid.shape[1]), (0, 0)), constant_values=_BETWEEN) for grid in grids]
    )


def _grid(pictures: Image) -> Image:
    n, height, width, _ = pictures.shape
    larger = max(1, _TILE // max(height, width))
    step = -(-max(height, width) // (3 * _TILE))  # of a huge one, every second or third pixel
    tiles = pictures[:, ::step, ::step].repeat(larger, axis=1).repeat(larger, axis=2)
    columns = min(n, _COLUMNS)
    lines = -(-n // columns)
    tiles = np.pad(tiles, ((0, lines * columns - n), (0, _GAP), (0, _GAP), (0, 0)), constant_values=_BETWEEN)
    _, height, width, _ = tiles.shape
    grid = tiles.reshape(lines, columns, height, width, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid.reshape(lines * height, columns * width, 3))


def write_png(path: Path, image: Image) -> None:
    """Write `[height, width, 3]` as a PNG file."""
    height, width, _ = image.shape
    lines = np.pad(image.reshape(height, 3 * width), ((0, 0), (1, 0)))  # each begins with its filter: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
