"""Reading two arrays at once: SB3 reads a replay buffer's next observations and then, at the same places, the others.

Of the frames of a transition most are in both. Together they are decoded once each, and in one call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Ints

if TYPE_CHECKING:
    from sb3_extra_buffers.frames.observations import IdTable, ObservationStore
    from sb3_extra_buffers.frames.store import Ids

_IDS, _INTS = "uint32[:,::1]", "int64[::1]"


def grouping() -> Callable[..., None]:
    """Return what lists the frames of two arrays of ids `[n, stack]`, one transition after another.

    It writes their ids, the rows where they belong (in all frames of the first array and then of the second), and the
    row of an earlier frame of the transition that is the same, or -1.
    """
    return jit.choose(_groups_kernel, groups_reference, f"void({_IDS}, {_IDS}, {_INTS}, {_INTS}, {_INTS})")


def _groups_kernel(first: Ids, second: Ids, ids: Ints, rows: Ints, sources: Ints) -> None:
    n, stack = first.shape
    for i in range(n):
        begin = 2 * stack * i
        for k in range(2 * stack):
            if k < stack:
                frame, row = first[i, k], stack * i + k
            else:
                frame, row = second[i, k - stack], stack * (n + i - 1) + k
            ids[begin + k], rows[begin + k], sources[begin + k] = frame, row, -1
            for j in range(begin, begin + k):
                if ids[j] == frame:
                    sources[begin + k] = rows[j]
                    break


def groups_reference(first: Ids, second: Ids, ids: Ints, rows: Ints, sources: Ints) -> None:
    """Do as the kernel does, in NumPy."""
    n, stack = first.shape
    both = np.concatenate([first, second], axis=1)
    places = np.arange(2 * n * stack).reshape(2, n, stack).swapaxes(0, 1).reshape(n, 2 * stack)
    same = (both[:, :, None] == both[:, None, :]).argmax(axis=-1)  # the first that is the same, or itself
    ids[:], rows[:] = both.reshape(-1), places.reshape(-1)
    sources[:] = np.where(same == np.arange(2 * stack), -1, np.take_along_axis(places, same, 1)).reshape(-1)


class Pairs:
    """Learns which two arrays of a store are read one after the other, and reads the second with the first."""

    def __init__(self) -> None:
        self._pair: tuple[weakref.ref[IdTable], weakref.ref[IdTable]] | None = None
        self._last: tuple[weakref.ref[IdTable], tuple[Any, ...]] | None = None
        self._ahead: _Ahead | None = None

    def take(self, store: ObservationStore, table: IdTable, index: tuple[Any, ...], ids: Ids) -> NDArray[Any]:
        """Return the observations of `ids`, which are `table.ids[index]`, `[n, stack]`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.is_for(store, ids):
            return ahead.obs
        if ahead is not None:
            self._pair = None  # the other was not read: a wrong guess
        elif self._pair is not None and self._pair[0]() is table:
            other = self._pair[1]()
            if other is not None and other.ids.shape == table.ids.shape:
                also = other.ids[index]
                try:
                    obs, others = store.take_both(ids, also)
                except Exception:  # a damaged frame of the other, or no memory for both: read these alone
                    self._pair = None
                    return store.take(ids)
                self._ahead = _Ahead(store.frames, store.frames.n_puts, also, others)
                return obs
        last, self._last = self._last, (weakref.ref(table), index)
        if last is not None and last[0]() is not table and _are(last[1], index):
            self._pair, self._last = (last[0], weakref.ref(table)), None
        return store.take(ids)


class _Ahead(NamedTuple):
    """Observations that were read before they are asked for."""

    frames: Any
    n_puts: int
    ids: Ids
    obs: NDArray[Any]

    def is_for(self, store: ObservationStore, ids: Ids) -> bool:
        """Tell whether these are the observations of `ids` now."""
        same = self.frames is store.frames and self.n_puts == store.frames.n_puts and self.ids.shape == ids.shape
        return same and self.ids.tobytes() == ids.tobytes()  # a third of the time of `np.array_equal`


def _are(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
