"""SB3's buffers with compressed observations. Each class is a name: SB3's code and the mixin do the work."""

from __future__ import annotations

import copyreg
import functools
from abc import ABCMeta
from typing import Any

from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed.observations import CompressedObservations
from sb3_extra_buffers.compressed.small import quick_add


class CompressedReplayBuffer(CompressedObservations, ReplayBuffer):
    """`ReplayBuffer` whose observations are compressed. Samples equal SB3's, bit for bit."""

    add = quick_add(ReplayBuffer.add, CompressedObservations.add)


class CompressedDictReplayBuffer(CompressedObservations, DictReplayBuffer):
    """`DictReplayBuffer` whose observations are compressed, key by key."""


class CompressedRolloutBuffer(CompressedObservations, RolloutBuffer):
    """`RolloutBuffer` whose observations are compressed. Minibatches equal SB3's, bit for bit."""

    add = quick_add(RolloutBuffer.add, CompressedObservations.add)


class CompressedDictRolloutBuffer(CompressedObservations, DictRolloutBuffer):
    """`DictRolloutBuffer` whose observations are compressed, key by key."""


class CompressedNStepReplayBuffer(CompressedObservations, NStepReplayBuffer):
    """`NStepReplayBuffer` whose observations are compressed."""

    add = quick_add(NStepReplayBuffer.add, CompressedObservations.add)


class CompressedHerReplayBuffer(CompressedObservations, HerReplayBuffer):
    """`HerReplayBuffer` whose observations are compressed, key by key."""


class _MadeClass(ABCMeta):
    """Type of the classes that `compressed_class` makes: they pickle as the call that makes them."""


@functools.cache
def compressed_class(buffer_class: type[BaseBuffer]) -> type[Any]:
    """Return `buffer_class` with compressed observations: a class to pass to SB3, the same one every time.

    The class and its instances pickle if `buffer_class` can be imported.

    Raises:
        TypeError: not an SB3 buffer class.
    """
    if not (isinstance(buffer_class, type) and issubclass(buffer_class, BaseBuffer)):
        raise TypeError(f"compressed_class takes a subclass of an SB3 buffer, not {buffer_class!r}")
    if issubclass(buffer_class, CompressedObservations):
        return buffer_class
    bases = (CompressedObservations, buffer_class)
    named = (known for known in CompressedObservations.__subclasses__() if known.__bases__ == bases)
    doc = f"`{buffer_class.__name__}` whose observations are compressed."
    made = _MadeClass(f"Compressed{buffer_class.__name__}", bases, {"__doc__": doc, "__module__": __name__})
    return next(named, made)


def _make_again(made: _MadeClass) -> tuple[Any, ...]:
    return compressed_class, (made.__bases__[1],)


copyreg.pickle(_MadeClass, _make_again)
