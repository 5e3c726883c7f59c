"""Hand observations to SB3's `add` without the copy it makes of them.

SB3 copies what it stores, `self.observations[self.pos] = np.array(obs)`, because its caller may change `obs` later.
Compressing keeps no reference to `obs`, so that copy is made for nothing: `np.array` of a `Lent` is the array itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_KNOWN = ("stable_baselines3", "sb3_contrib")


class Lent:
    """An array, lent for the time of a call. NumPy before 2 copies it all the same."""

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self.array if dtype is None else np.asarray(self.array, dtype)


def may_lend(cls: type) -> bool:
    """Tell whether every `add` that `cls` inherits is known to store observations and do nothing else with them.

    A class of somebody else's may keep its own copy, so it gets plain arrays.
    """
    adds = [base for base in cls.__mro__ if "add" in vars(base)]
    ours = __name__.partition(".")[0]
    return all(base.__module__.partition(".")[0] in (ours, *_KNOWN) for base in adds)
