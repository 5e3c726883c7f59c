"""How an observation is cut into frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs.base import Bytes

_UINT8 = np.dtype(np.uint8)  # to compare with the type itself takes longer


@dataclass(frozen=True)
class Layout:
    """An observation of `stack` frames along `axis` (0: channel-first, -1: channel-last)."""

    obs_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stack: int = 1
    axis: int = 0

    def __post_init__(self) -> None:
        along = self.obs_shape[self.axis] if self.obs_shape else 1
        if self.stack < 1 or along % self.stack:
            raise ValueError(
                f"frame_stack={self.stack} does not divide the {along} channels of observations {self.obs_shape}"
            )

    @cached_property
    def frame_values(self) -> int:
        """Values of one frame."""
        return prod(self.obs_shape) // self.stack

    @cached_property
    def frame_bytes(self) -> int:
        """Size of one frame."""
        return self.frame_values * self.dtype.itemsize

    @property
    def picture(self) -> dict[str, Any]:
        """What codecs may know of a frame: `row_bytes` of its rows, `channels` of a pixel, `planar` if they lie apart.

        Channels are along the axis of the stack, or else the shorter one of the first and the last. Where values are
        larger than a byte, or there are not three axes, there is one channel.
        """
        item = self.dtype.itemsize
        if len(self.obs_shape) < 3:
            return {"row_bytes": item * (self.obs_shape[-1] if len(self.obs_shape) == 2 else 1), "channels": 1}
        first, last = self.obs_shape[0], self.obs_shape[-1]
        planar = self.axis == 0 if self.stack > 1 else first <= last
        channels = (first if planar else last) // self.stack
        row = last if planar else self.obs_shape[-2] * channels
        return {"row_bytes": item * row, "channels": channels if item == 1 else 1, "planar": planar}

    def split(self, obs: NDArray[Any]) -> Bytes:
        """Return the frames `[n, stack, frame_bytes]` of observations `[n, *obs_shape]`, without a copy if possible."""
        if self.axis == -1 and self.stack > 1:
            *outer, channels = obs.shape
            obs = np.moveaxis(obs.reshape(*outer, self.stack, channels // self.stack), -2, 1)
        frames = obs.reshape(len(obs), self.stack, self.frame_values)
        if self.dtype.itemsize == 1:  # SB3 gives channel-first views of channel-last memory: strided, not copied
            return frames if frames.dtype == _UINT8 else frames.view(_UINT8)
        return np.ascontiguousarray(frames).view(np.uint8)

    def split_pixels(self, obs: NDArray[Any]) -> Bytes | None:
        """Return the frames pixel by pixel, `[n, 1, pixels, channels]`, if observations of one lie so in memory.

        So does what SB3 gives of an image: channel-first views of channel-last memory.
        """
        if self.stack > 1 or obs.dtype.itemsize > 1 or obs.ndim != 4:
            return None
        pixels = obs.transpose(0, 2, 3, 1)
        if not pixels.flags.c_contiguous:
            return None
        n, height, width, channels = pixels.shape
        return pixels.view(np.uint8).reshape(n, 1, height * width, channels)

    def join(self, frames: Bytes) -> NDArray[Any]:
        """Return the observations `[n, *obs_shape]` of frames `[n, stack, frame_bytes]`."""
        n = len(frames)
        obs = frames.reshape(n, self.stack * self.frame_bytes).view(self.dtype)
        if self.axis == -1 and self.stack > 1:
            *outer, channels = self.obs_shape
            obs = obs.reshape(n, self.stack, *outer, channels // self.stack)
            obs = np.ascontiguousarray(np.moveaxis(obs, 1, -2))
        return obs.reshape(n, *self.obs_shape)


def stack_axis(obs_shape: tuple[int, ...], stack: int) -> int:
    """Return the axis that `stack` frames lie along: the first if it can be divided so, else the last."""
    return 0 if not obs_shape or obs_shape[0] % stack == 0 else -1
