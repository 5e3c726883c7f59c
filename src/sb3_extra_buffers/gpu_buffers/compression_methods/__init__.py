"""Methods of buffers on a device, and the library that one of them needs."""

from __future__ import annotations

from sb3_extra_buffers.codecs import parse_method
from sb3_extra_buffers.codecs.optional import has_zstd
from sb3_extra_buffers.codecs.registry import CODECS

__all__ = ["COMPRESSION_METHOD_MAP", "check_method", "has_zstd"]

COMPRESSION_METHOD_MAP = {name: CODECS[name] for name in ("none", "rle", "zstd", "delta")}
"""Codec of each method: `none` keeps dense tensors, `rle` and `delta` decode on the device, `zstd` on the CPU."""


def check_method(method: str) -> str:
    """Return the name in a method string, without its level.

    Raises:
        ValueError: a name or level that buffers on a device do not have.
    """
    name, _ = parse_method(method)
    if name not in COMPRESSION_METHOD_MAP:
        known = ", ".join(COMPRESSION_METHOD_MAP)
        raise ValueError(f"buffers on a device have no method {method!r}; known: {known} (with a level: 'zstd-3')")
    return name
