"""`gzip` and `igzip`: raw deflate streams, from the standard library or, faster, from Intel's ISA-L."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from typing import Any

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError

_RAW_DEFLATE = -15  # no header, no checksum: 18 bytes less per frame


@dataclass(frozen=True)
class Gzip(Codec):
    """Deflate with the standard library. Level 0 stores, 1 is fastest, 9 smallest."""

    name = "gzip"
    levels = (range(10),)
    level: int = 6

    def encode(self, frame: Bytes) -> bytes:
        return zlib.compress(frame.data, self.level, _RAW_DEFLATE)

    def decode(self, payload: Bytes, out: Bytes) -> None:
        _inflate(zlib, payload, out)


@dataclass(frozen=True)
class IGzip(Codec):
    """Deflate with python-isal. Level 0 is fastest, 3 smallest."""

    name = "igzip"
    levels = (range(4),)
    level: int = 2

    @classmethod
    def from_level(cls, level: int | None, **settings: Any) -> Codec:
        """Return the codec, or `gzip` with a warning where python-isal is missing."""
        if optional.has_igzip():
            return super().from_level(level, **settings)
        warnings.warn(
            'igzip falls back to gzip; for speed: pip install "sb3-extra-buffers[isal]"', UserWarning, stacklevel=2
        )
        return Gzip.from_level(None if level is None else max(level, 1), **settings)

    def encode(self, frame: Bytes) -> bytes:
        from isal import isal_zlib

        return bytes(isal_zlib.compress(frame.data, self.level, _RAW_DEFLATE))

    def decode(self, payload: Bytes, out: Bytes) -> None:
        from isal import isal_zlib

        _inflate(isal_zlib, payload, out)


def _inflate(library: Any, payload: Bytes, out: Bytes) -> None:
    """Inflate `payload` into `out`, never making more than one byte too many of it."""
    stream = library.decompressobj(_RAW_DEFLATE)
    try:
        frame = stream.decompress(payload, out.size + 1)
    except (library.error, ValueError) as error:
        raise CodecError(f"deflate: {error}") from error
    if len(frame) != out.size or not stream.eof or stream.unused_data:
        raise CodecError(f"deflate: the payload does not hold a frame of {out.size} bytes")
    out[:] = memoryview(frame)
