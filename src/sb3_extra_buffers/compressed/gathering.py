"""Code of SB3's that gathers batches and that we know: what it may then be spared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    DictRolloutBuffer,
    ReplayBuffer,
    RolloutBuffer,
)

_REPLAY = [vars(cls)["_get_samples"] for cls in (ReplayBuffer, DictReplayBuffer)]
_ROLLOUT = [vars(cls)["_get_samples"] for cls in (RolloutBuffer, DictRolloutBuffer)]
_NORMALIZE = BaseBuffer._normalize_obs, BaseBuffer._normalize_reward


def known_gatherer(cls: Any, mixin: type) -> Callable[..., Any] | None:
    """Return the `_get_samples` that comes after that of `mixin`, if it is of SB3's replay buffers; else None.

    That only reads fields, by the same rows and envs, and hands what it has read to `to_torch`.
    """
    gathers = _gatherer(cls, mixin)
    return gathers if gathers in _REPLAY else None


def gathers_anew(buffer: Any, mixin: Any, rows: Any, env: Any = None) -> bool:
    """Tell whether `_get_samples(rows, env)` converts arrays that were made for it, and that only code of SB3's sees.

    Args:
        buffer: of `mixin`.
        mixin: that asks.
        rows: other ones than an array of numbers may give views of the buffer's fields.
        env: one that normalises might keep what it is given.
    """
    if env is not None or type(rows) is not np.ndarray or rows.ndim != 1:
        return False
    if (buffer._normalize_obs, buffer._normalize_reward) != _NORMALIZE:
        return False
    cls: Any = type(buffer)
    if getattr(buffer.to_torch, "__func__", None) is not mixin.to_torch or not _converts(cls, mixin):
        return False
    gathers = _gatherer(cls, mixin)
    return gathers in _REPLAY or gathers in _ROLLOUT


def _gatherer(cls: Any, mixin: type) -> Callable[..., Any] | None:
    base = _base_with("_get_samples", cls, mixin)
    return None if base is None else vars(base)["_get_samples"]  # as it is now: somebody may have patched it


@functools.cache
def _converts(cls: Any, mixin: type) -> bool:
    """Tell whether the `to_torch` that comes after that of `mixin` is SB3's: another might use what it is given."""
    return _base_with("to_torch", cls, mixin) is BaseBuffer


@functools.cache
def _base_with(name: str, cls: Any, mixin: type) -> type | None:
    """Return the base of `cls`, of those after `mixin`, that has a method of its own of that name."""
    after = cls.__mro__[cls.__mro__.index(mixin) + 1 :]
    return next((base for base in after if name in vars(base)), None)
