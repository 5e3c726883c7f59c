"""What is measured: one module per package, all with the same names.

    replay(recording, rows, method)     a buffer with SB3's `add(*step)` and `sample(n)`
    rollout(recording, rows, method)    a buffer with SB3's `add` and `get`, or None where the package has none
    owned_bytes(buffer)                 bytes that a replay buffer keeps, by its own account
    same(buffer, reference)             compare with an SB3 buffer that was given the same steps; raises `Different`
    NOTE                                what a reader of the figures should know, or ""

Those whose buffers SB3's algorithms can use have also `REPLAY`, `ROLLOUT` (classes) and `options(space, method)`.

A subject's name is `module` or `module:method`, such as `sb3`, `ours:zstd3`, `torchrl:LazyTensorStorage`. A module
imports its package at the top: it is loaded only in the process that measures it.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class Different(Exception):
    """A buffer gave back something else than it was given."""


def split(name: str) -> tuple[str, str]:
    """Return the module and the method of a subject's name."""
    module, _, method = name.partition(":")
    return module, method


def find(name: str) -> ModuleType:
    """Return the module that measures subject `name`.

    Raises:
        ImportError: its package is missing, or cannot be loaded here.
    """
    return importlib.import_module(f"subjects.{split(name)[0]}")
