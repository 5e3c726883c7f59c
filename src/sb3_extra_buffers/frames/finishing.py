"""Steps that must not stay half done."""

from __future__ import annotations

from collections.abc import Callable


def finish(step: Callable[[], None]) -> None:
    """Call `step`, and once more if that was interrupted: by then it has begun. It can be repeated."""
    try:
        step()
    except BaseException:  # also of Ctrl-C
        step()
        raise
