"""`lz4-frame` and `lz4-block`: fast to decode, from python-lz4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError

_MAX_ACCELERATION = 65_537


@dataclass(frozen=True)
class _Lz4(Codec):
    level: int = 0

    def __post_init__(self) -> None:
        optional.require("lz4.frame", self.name, "lz4")
        optional.require("lz4.block", self.name, "lz4")

    def _check(self, frame: bytes, out: Bytes) -> None:
        if len(frame) != out.size:
            raise CodecError(f"{self.name}: the payload does not hold a frame of {out.size} bytes")
        out[:] = memoryview(frame)


@dataclass(frozen=True)
class Lz4Frame(_Lz4):
    """LZ4 frames. Levels 3 and up search harder; a negative level is an acceleration."""

    name = "lz4-frame"
    levels = (range(-_MAX_ACCELERATION, 0), range(17))

    def encode(self, frame: Bytes) -> bytes:
        import lz4.frame

        return bytes(lz4.frame.compress(frame.data, compression_level=self.level, store_size=False))

    def decode(self, payload: Bytes, out: Bytes) -> None:
        import lz4.frame

        stream = lz4.frame.LZ4FrameDecompressor()
        try:
            frame = stream.decompress(payload.tobytes(), max_length=out.size + 1)
        except (RuntimeError, ValueError, EOFError) as error:
            raise CodecError(f"lz4-frame: {error}") from error
        if not stream.eof or stream.unused_data:
            raise CodecError(f"lz4-frame: the payload does not hold a frame of {out.size} bytes")
        self._check(frame, out)


@dataclass(frozen=True)
class Lz4Block(_Lz4):
    """LZ4 blocks. Levels 1 to 12 are high compression, 0 is the default, a negative level is fast mode."""

    name = "lz4-block"
    levels = (range(-_MAX_ACCELERATION, 0), range(13))

    def encode(self, frame: Bytes) -> bytes:
        import lz4.block

        mode: dict[str, Any] = {"mode": "default"}
        if self.level > 0:
            mode = {"mode": "high_compression", "compression": self.level}
        elif self.level < 0:
            mode = {"mode": "fast", "acceleration": -self.level}
        return bytes(lz4.block.compress(frame.data, store_size=False, **mode))

    def decode(self, payload: Bytes, out: Bytes) -> None:
        import lz4.block

        try:
            frame = lz4.block.decompress(payload.tobytes(), uncompressed_size=out.size)
        except (lz4.block.LZ4BlockError, ValueError) as error:
            raise CodecError(f"lz4-block: {error}") from error
        self._check(frame, out)
