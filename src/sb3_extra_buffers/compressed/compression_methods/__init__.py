"""Old import path of the codec registry and the probes; their home is `sb3_extra_buffers.codecs`."""

from sb3_extra_buffers.codecs.optional import has_igzip, has_lz4, has_numba, has_zstd
from sb3_extra_buffers.codecs.registry import CODECS as COMPRESSION_METHOD_MAP

HAS_NUMBA = has_numba()

__all__ = ["COMPRESSION_METHOD_MAP", "HAS_NUMBA", "has_igzip", "has_lz4", "has_numba", "has_zstd"]
