"""Libraries that make things faster or smaller but are not required."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def has(module: str) -> bool:
    """Tell whether `module` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def require(module: str, method: str, extra: str) -> Any:
    """Import `module`.

    Raises:
        ImportError: it is missing; the message says which pip command installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{method} needs: pip install "sb3-extra-buffers[{extra}]"') from error


def has_numba() -> bool:
    """Tell whether numba is installed: `rle-jit`, and the compiled kernels of `delta` and of the frame store."""
    return has("numba")


def has_igzip() -> bool:
    """Tell whether python-isal is installed: `igzip`."""
    return has("isal")


def has_zstd() -> bool:
    """Tell whether zstandard is installed: `zstd`."""
    return has("zstandard")


def has_lz4() -> bool:
    """Tell whether python-lz4 is installed: `lz4-frame`, `lz4-block`."""
    return has("lz4")
