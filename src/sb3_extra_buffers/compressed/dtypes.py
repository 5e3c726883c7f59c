"""Which dtypes to store with, and compiling ahead of use."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from sb3_extra_buffers.codecs import get_codec, parse_method


def find_smallest_dtype(max_val: int, signed: bool = False, fallback: DTypeLike = np.float32) -> Any:
    """Return the smallest integer type that holds `max_val`, or `fallback` if none does.

    >>> find_smallest_dtype(300)
    <class 'numpy.uint16'>
    """
    kinds = (np.int8, np.int16, np.int32, np.int64) if signed else (np.uint8, np.uint16, np.uint32, np.uint64)
    return next((kind for kind in kinds if np.iinfo(kind).min <= max_val <= np.iinfo(kind).max), fallback)


def find_buffer_dtypes(
    obs_shape: int | Iterable[int], elem_dtype: DTypeLike = np.uint8, compression_method: str = "rle"
) -> dict[str, Any]:
    """Return the `dtypes` argument for observations of this shape and dtype.

    Also compiles the kernels of methods that have any, so that it is safe to fork afterwards.
    """
    size = int(obs_shape) if isinstance(obs_shape, int | np.integer) else prod(obs_shape)
    dtypes = {"elem_type": elem_dtype, "runs_type": find_smallest_dtype(size)}
    method = "delta" if compression_method == "auto" else compression_method
    parse_method(method)
    item_bytes = np.dtype(elem_dtype).itemsize
    get_codec(method, item_bytes=item_bytes if item_bytes in (1, 2, 4, 8) else 1).coder(size * item_bytes)
    return dtypes


def init_jit(*, elem_type: DTypeLike = np.uint8, runs_type: DTypeLike = np.uint16) -> None:
    """Compile the kernels of `rle-jit` for these dtypes now.

    Raises:
        ImportError: numba is missing; the message holds the pip command.
    """
    from sb3_extra_buffers.codecs import optional

    optional.require("numba", "init_jit", "numba")
    get_codec("rle-jit", item_bytes=np.dtype(elem_type).itemsize, runs_type=runs_type).coder(1)


class DummyCls:
    """Accepts anything: a stand-in for a buffer class when loading a model that was saved with one.

    >>> from sb3_extra_buffers.compressed import DummyCls
    >>> custom_objects = {"replay_buffer_class": DummyCls}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take and forget all arguments."""
