"""Which dtypes to store with."""

from __future__ import annotations

from math import prod

import torch

from sb3_extra_buffers.gpu_buffers.compression_methods import check_method
from sb3_extra_buffers.gpu_buffers.utils import find_smallest_dtype


def find_gpu_buffer_dtypes(
    obs_shape: int | tuple[int, ...], elem_dtype: torch.dtype = torch.uint8, compression_method: str = "rle"
) -> dict[str, torch.dtype]:
    """Return the `dtypes` argument for observations of this shape and dtype.

    Raises:
        ValueError: a method that buffers on a device do not have.
    """
    check_method(compression_method)
    size = int(obs_shape) if isinstance(obs_shape, int) else prod(obs_shape)
    return {"elem_type": elem_dtype, "runs_type": find_smallest_dtype(size)}
