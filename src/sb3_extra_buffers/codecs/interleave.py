"""Filter `interleave`: pixel by pixel instead of channel by channel, then any codec.

Colours repeat more than the values of their channels do one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sb3_extra_buffers.codecs.base import Bytes, Codec, Coder, Encoded, Ints


@dataclass(frozen=True)
class Interleave(Codec):
    """Turns channel-first frames into channel-last ones for `inner`.

    Attributes:
        inner: what encodes them.
        channels: bytes of a pixel. Frames that cannot be divided so are left as they are.
        planar: whether frames come channel by channel. Others are left as they are.
    """

    name = "interleave"
    sizes: ClassVar[range] = range(2, 1 << 31)
    inner: Codec
    channels: int = 3
    planar: bool = True

    def __post_init__(self) -> None:
        if type(self.channels) is not int or self.channels not in self.sizes:
            raise ValueError(f"interleave is for pixels of several bytes, not {self.channels}")

    @property
    def named(self) -> Codec:
        """The codec that it was put before."""
        return self.inner

    def encode(self, frame: Bytes) -> bytes:
        return self.inner.encode(to_pixels(frame[None], self.channels)[0] if self._applies(frame.size) else frame)

    def decode(self, payload: Bytes, out: Bytes) -> None:
        pixels = np.empty(out.size, np.uint8) if self._applies(out.size) else out
        self.inner.decode(payload, pixels)
        if pixels is not out:
            out[:] = to_planes(pixels[None], self.channels)[0]

    def coder(self, frame_bytes: int) -> Coder:
        return InterleaveCoder(self, frame_bytes) if self._applies(frame_bytes) else self.inner.coder(frame_bytes)

    def _applies(self, frame_bytes: int) -> bool:
        return self.planar and frame_bytes % self.channels == 0


class InterleaveCoder(Coder):
    """Reorders on the way to the inner codec's coder and back."""

    codec: Interleave

    def __init__(self, codec: Interleave, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.inner = codec.inner.coder(frame_bytes)

    @property
    def pixel_channels(self) -> int:
        return self.codec.channels

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        return self.encode_pixels(to_pixels(frames, self.codec.channels), streams)

    def encode_pixels(self, frames: Bytes, streams: Ints) -> Encoded:
        self.inner.learning = self.learning
        return self.inner.encode(frames, streams)

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        new = np.flatnonzero(sources < 0)
        pixels = np.empty((len(new), self.frame_bytes), np.uint8)
        bad = self.inner.decode_new(heap, offsets[new], lengths[new], references[new], pixels)
        if bad >= 0:
            return int(new[bad])
        out[rows[new]] = to_planes(pixels, self.codec.channels)
        copied = sources >= 0
        out[rows[copied]] = out[sources[copied]]
        return -1

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        return self.inner.effort(lengths, sources, out)

    def release(self, references: Ints) -> None:
        self.inner.release(references)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        return self.inner.growth_bytes(n_frames)

    def missing_bytes(self, n_streams: int) -> int:
        return self.inner.missing_bytes(n_streams)


def to_pixels(frames: Bytes, channels: int) -> Bytes:
    """Return channel-first `frames` [n, bytes] pixel by pixel."""
    n, size = frames.shape
    return frames.reshape(n, channels, size // channels).transpose(0, 2, 1).reshape(n, size)


def to_planes(frames: Bytes, channels: int) -> Bytes:
    """Return `frames` [n, bytes] that come pixel by pixel channel-first again."""
    n, size = frames.shape
    return frames.reshape(n, size // channels, channels).transpose(0, 2, 1).reshape(n, size)
