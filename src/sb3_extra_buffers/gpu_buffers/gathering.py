"""What stands for a buffer while SB3's code gathers a batch from it.

SB3 takes the same rows and envs from every field: `self.rewards[batch_inds, env_indices]`. The stand-in's fields turn
them into numbers of cells, once, and take those: NumPy needs a third of the time for that. Observations are chosen and
not read. SB3's code runs unchanged, and the buffer too stays as it is: other threads may look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_extra_buffers.codecs.base import Ints
from sb3_extra_buffers.compressed.ahead import REPLAY

_ALL = slice(None)
_INT64 = np.dtype(np.int64)
_SETTINGS = ("n_envs", "buffer_size", "optimize_memory_usage")


class StandIn:
    """An object that SB3's method can take for `self`. What it does not have, the buffer has.

    Args:
        buffer: a replay buffer; it is not kept.
        choose: returns what stands for an array that is not NumPy's, from that and the cells of the buffer.
    """

    buffer: Any = None  # while a batch is gathered

    def __init__(self, buffer: Any, choose: Callable[[Any, Cells], Any]) -> None:
        cells = Cells((buffer.buffer_size, buffer.n_envs))

        def stand_in(held: Any) -> Any:
            if type(held) is dict:
                return {key: stand_in(part) for key, part in held.items()}
            if type(held) is not np.ndarray:
                return choose(held, cells)
            return Field(held, cells) if held.shape[:2] == cells.shape and held.flags.c_contiguous else held

        own = vars(self)  # attributes that are set go to the buffer
        own.update({name: stand_in(getattr(buffer, name)) for name in REPLAY})
        own.update(cells=cells, to_torch=_as_it_is)
        own["arrays"] = _arrays(buffer)  # kept, so that their ids stay theirs
        own["ids"] = [*map(id, self.arrays)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # in a copy of the buffer it is made again

    def is_for(self, buffer: Any) -> bool:
        """Tell whether the buffer has the same arrays still, and nobody is gathering."""
        if self.buffer is not None or (buffer.buffer_size, buffer.n_envs) != self.cells.shape:
            return False
        return [*map(id, _arrays(buffer))] == list(self.ids)

    def gather(self, gathers: Callable[..., Any], buffer: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the batch that SB3's method `gathers` for `buffer`."""
        own = vars(self)
        own["buffer"], self.cells.asked = buffer, None
        for name in _SETTINGS:
            own[name] = getattr(buffer, name)
        own["_normalize_obs"], own["_normalize_reward"] = buffer._normalize_obs, buffer._normalize_reward
        try:
            return gathers(self, *args, **kwargs)
        finally:
            own["buffer"] = own["_normalize_obs"] = own["_normalize_reward"] = None  # no cycle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.buffer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.buffer, name, value)


def _as_it_is(array: Any, copy: bool = True) -> Any:
    """Stand for `to_torch`: fields are converted all at once."""
    return array


def _arrays(buffer: Any) -> list[Any]:
    """Return the fields of a buffer; of those that are dicts, the keys and what they hold."""
    arrays: list[Any] = []
    for name in REPLAY:
        held = getattr(buffer, name)
        if type(held) is dict:
            arrays += [*held, *held.values()]
        else:
            arrays.append(held)
    return arrays


class Cells:
    """Turns rows and envs, which SB3 has drawn, into numbers of cells, once for all fields of a batch.

    Args:
        shape: how many rows and envs there are.
    """

    __slots__ = ("asked", "found", "shape")

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.asked: tuple[Any, Any] | None = None
        self.found: Ints | None = None

    def of(self, index: Any) -> Ints | None:
        """Return the cells of `index`, or None if that is not rows, envs and at most `:`."""
        n = len(index) if type(index) is tuple else 0
        if n < 2 or n > 3 or (n == 3 and (type(index[2]) is not slice or index[2] != _ALL)):
            return None
        if self.asked is None or index[0] is not self.asked[0] or index[1] is not self.asked[1]:
            rows, envs = self.asked = index[:2]
            self.found = None
            if _are_numbers(rows) and _are_numbers(envs) and len(rows) == len(envs):
                self.found = rows * self.shape[1] + envs  # rows from the end or beyond it are such cells
        return self.found


def _are_numbers(array: Any) -> bool:
    return type(array) is np.ndarray and array.ndim == 1 and array.dtype == _INT64


class Field:
    """Stands for an array `[rows, envs, ...]`."""

    __slots__ = ("array", "cells", "flat")

    def __init__(self, array: Any, cells: Cells) -> None:
        self.array = array
        self.flat = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        self.cells = cells

    def __getitem__(self, index: Any) -> Any:
        cells = self.cells.of(index)
        if cells is None or len(index) > self.array.ndim:  # then it raises, as without us
            return self.array[index]
        return self.flat.take(cells, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)
