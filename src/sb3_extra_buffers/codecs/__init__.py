"""Layer 0: bytes to fewer bytes and back. Knows nothing of SB3, torch, rings or observations."""

from sb3_extra_buffers.codecs.base import Codec, CodecError, Coder, Encoded
from sb3_extra_buffers.codecs.registry import CODECS, get_codec, parse_method

__all__ = ["CODECS", "Codec", "CodecError", "Coder", "Encoded", "get_codec", "parse_method"]
