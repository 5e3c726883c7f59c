"""Where kernels run: Triton on CUDA, imported when the first kernel is launched, and never elsewhere.

`TRITON_INTERPRET=1`, set before Python starts, runs the kernels on the CPU: slowly, for tests.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch


def use_triton(tensor: torch.Tensor) -> bool:
    """Tell whether the kernel, not its torch reference, handles this tensor."""
    return tensor.is_cuda or (tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1")


@functools.cache
def compiled(kernel: Callable[..., Any], calls: tuple[Callable[..., Any], ...] = ()) -> Any:
    """Return `kernel`, a plain function that calls `triton.language` by the name `tl`, as Triton's.

    It is compiled once for all values of arguments whose names begin with `n_`.

    Args:
        kernel: the function.
        calls: functions of that kind that it calls.

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
    for called in calls:
        kernel.__globals__[called.__name__] = compiled(called)
    numbers = [name for name in inspect.signature(kernel).parameters if name.startswith("n_")]
    return triton.jit(kernel, do_not_specialize=numbers)


class Launch:
    """A kernel with its constants, to be run many times.

    From the second time on the compiled kernel itself is launched, which saves most of what a launch costs: Triton
    would look at each argument anew. It is compiled for tensors that begin at a multiple of 16 bytes; others go the
    long way.

    Args:
        kernel: a function as for `compiled`; its arguments are tensors, then numbers, then constants.
        dtypes: what the kernel takes each tensor for, whatever its own dtype.
        calls: as of `compiled`.
        **constants: in the order the kernel has them.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        dtypes: Sequence[torch.dtype],
        calls: tuple[Callable[..., Any], ...] = (),
        **constants: Any,
    ) -> None:
        self.kernel = kernel
        self.dtypes = dtypes
        self.calls = calls
        self.constants = constants
        self.values = tuple(constants.values())
        self.handles: dict[int, Callable[..., None]] = {}  # by the number of the device

    def __call__(self, n: int, tensors: Sequence[torch.Tensor], *numbers: int) -> None:
        """Run `n` programs with `tensors`, contiguous ones. The last is on the device, others may be pinned."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        is_aligned = functools.reduce(operator.or_, addresses) % 16 == 0
        number = tensors[-1].get_device()  # -1: the CPU
        if number >= 0 and number != torch.cuda.current_device():
            with torch.cuda.device(number):  # Triton looks for the current one
                self(n, tensors, *numbers)
            return
        handle = self.handles.get(number) if is_aligned else None
        if handle is not None:
            handle(n, number, *addresses, *numbers, *self.values)
            return
        typed = [tensor.view(-1).view(dtype) for tensor, dtype in zip(tensors, self.dtypes, strict=True)]
        ran = compiled(self.kernel, self.calls)[(n,)](*typed, *numbers, **self.constants, num_warps=4)
        handle = _handle(ran) if is_aligned and ran is not None else None  # interpreted kernels return nothing
        if handle is not None:
            self.handles[number] = handle


def _handle(kernel: Any) -> Callable[..., None] | None:
    """Return what launches a kernel that Triton has compiled: call it with programs, device, and all arguments.

    None for a Triton that launches in another way.
    """
    import triton

    def usual(n: int, number: int, *arguments: Any) -> None:
        kernel[(n, 1, 1)](*arguments)

    def direct(n: int, number: int, *arguments: Any) -> None:
        if hooks.launch_enter_hook is enter and hooks.launch_exit_hook is leave and not (enter.calls or leave.calls):
            run(n, 1, 1, stream(number), function, metadata, None, None, None, *arguments)  # as Triton does in the end
        else:  # somebody profiles launches
            usual(n, number, *arguments)

    try:
        run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
        stream = triton.runtime.driver.active.get_current_stream
        hooks = triton.knobs.runtime
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        _ = enter.calls, leave.calls
        names = [*inspect.signature(run).parameters]
    except (AttributeError, TypeError, ValueError):
        return None
    return direct if names[:5] == _LAUNCHER and names[-1] == "args" else None


_LAUNCHER = ["gridX", "gridY", "gridZ", "stream", "function"]  # parameters of Triton's launcher, the first ones
