"""`none`: frames as they are."""

from __future__ import annotations

from dataclasses import dataclass

from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError


@dataclass(frozen=True)
class NoCompression(Codec):
    """Stores the bytes of a frame."""

    name = "none"

    def encode(self, frame: Bytes) -> bytes:
        return frame.tobytes()

    def decode(self, payload: Bytes, out: Bytes) -> None:
        if payload.size != out.size:
            raise CodecError(f"none: {payload.size} bytes where a frame has {out.size}")
        out[:] = payload
