"""Dtypes of NumPy and torch, and how large a heap should be."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike

from sb3_extra_buffers.gpu_buffers.size_estimation import estimate_save_ratio

__all__ = [
    "estimate_max_slot_bytes",
    "estimate_total_heap_bytes",
    "find_smallest_dtype",
    "numpy_dtype_to_torch",
    "torch_dtype_to_numpy",
]

_TORCH = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    )
}
_NUMPY = {kind: dtype for dtype, kind in _TORCH.items()}
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def numpy_dtype_to_torch(dtype: DTypeLike) -> torch.dtype:
    """Return the torch dtype of a NumPy dtype.

    Raises:
        TypeError: torch has none.
    """
    found: torch.dtype | None = _TORCH.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"torch has no dtype for NumPy's {np.dtype(dtype)}; it has: {', '.join(map(str, _TORCH))}")
    return found


def torch_dtype_to_numpy(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the NumPy dtype of a torch dtype.

    Raises:
        TypeError: NumPy has none.
    """
    if dtype not in _NUMPY:
        raise TypeError(f"NumPy has no dtype for {dtype!r}; it has those of: {', '.join(map(str, _NUMPY))}")
    return _NUMPY[dtype]


def find_smallest_dtype(max_val: int, signed: bool = False, fallback: torch.dtype = torch.float32) -> torch.dtype:
    """Return the smallest integer dtype that holds `max_val`, or `fallback` if none does.

    >>> find_smallest_dtype(300)
    torch.uint16
    """
    kinds = _SIGNED if signed else _UNSIGNED
    return next((kind for kind in kinds if torch.iinfo(kind).min <= max_val <= torch.iinfo(kind).max), fallback)


def estimate_max_slot_bytes(
    obs_shape: int | tuple[int, ...],
    elem_dtype: torch.dtype = torch.uint8,
    compression_method: str = "delta",
    overalloc_factor: float = 1.5,
) -> int:
    """Return how many bytes of heap to plan for one observation: the expected size times `overalloc_factor`.

    Never more than the observation has: what does not compress is stored as it is.
    """
    if overalloc_factor <= 0:
        raise ValueError(f"overalloc_factor is above 0, not {overalloc_factor}")
    size = int(obs_shape) if isinstance(obs_shape, int) else prod(obs_shape)
    raw = size * elem_dtype.itemsize
    return min(raw, max(1, ceil(raw * estimate_save_ratio(compression_method) * overalloc_factor)))


def estimate_total_heap_bytes(
    n_cells: int,
    obs_shape: int | tuple[int, ...],
    elem_dtype: torch.dtype = torch.uint8,
    compression_method: str = "delta",
    overalloc_factor: float = 1.5,
) -> int:
    """Return how many bytes of heap to plan for `n_cells` observations."""
    return n_cells * estimate_max_slot_bytes(obs_shape, elem_dtype, compression_method, overalloc_factor)
