"""Where kernels run: Triton on CUDA, imported when the first kernel is launched, and never elsewhere.

`TRITON_INTERPRET=1`, set before Python starts, runs the kernels on the CPU: slowly, for tests.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch


def use_triton(tensor: torch.Tensor) -> bool:
    """Tell whether the kernel, not its torch reference, handles this tensor."""
    return tensor.is_cuda or (tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1")


@functools.cache
def compiled(kernel: Callable[..., Any]) -> Any:
    """Return `kernel`, a plain function that calls `triton.language` by the name `tl`, as Triton's.

    Raises:
        ImportError: Triton is missing; it comes with torch for CUDA.
    """
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise ImportError(
            "observations on a CUDA device need Triton, which torch for CUDA has: pip install triton"
        ) from error
    kernel.__globals__["tl"] = triton.language
    return triton.jit(kernel)


_handles: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Callable[..., Any], n: int, tensors: Sequence[torch.Tensor], **constants: Any) -> None:
    """Run `n` programs of `kernel` with `tensors`, then `constants`, as its arguments, in the order it has them.

    Launching the compiled kernel itself, from the second time on, saves half of what a launch costs: Triton would look
    at each argument anew. It is compiled for tensors that begin at a multiple of 16 bytes; others go the long way.
    """
    aligned = not any(tensor.data_ptr() % 16 for tensor in tensors)
    key = (kernel, tensors[0].device, *[tensor.dtype for tensor in tensors], *constants.values())
    handle = _handles.get(key) if aligned else None
    if handle is not None:
        handle[(n, 1, 1)](*tensors, *constants.values())
        return
    handle = compiled(kernel)[(n,)](*tensors, **constants, num_warps=4)
    if aligned and handle is not None:  # interpreted kernels have none
        _handles[key] = handle
