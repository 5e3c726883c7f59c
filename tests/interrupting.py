"""Ctrl-C, pressed at any instruction."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def interrupts(
    call: Callable[[], None],
    where: int,
    modules: tuple[str, ...],
    error: type[BaseException] = KeyboardInterrupt,
) -> bool:
    """Call, and press Ctrl-C before its instruction `where`; False if there are not so many.

    Args:
        call: what to call.
        where: counts the instructions of some modules.
        modules: how their names begin.
        error: what the handler of the signal raises.
    """
    left = where

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_globals["__name__"].startswith(modules):
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left < 0:
            sys.settrace(None)
            raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except error:
        return True
    finally:
        sys.settrace(before)
    return False
