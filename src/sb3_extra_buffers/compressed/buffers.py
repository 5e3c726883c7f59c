"""SB3's buffers with compressed observations. Each class is a name: SB3's code and the mixin do the work."""

from __future__ import annotations

import functools
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


class CompressedReplayBuffer(CompressedObservations, ReplayBuffer):
    """`ReplayBuffer` whose observations are compressed. Samples equal SB3's, bit for bit."""


class CompressedDictReplayBuffer(CompressedObservations, DictReplayBuffer):
    """`DictReplayBuffer` whose observations are compressed, key by key."""


class CompressedRolloutBuffer(CompressedObservations, RolloutBuffer):
    """`RolloutBuffer` whose observations are compressed. Minibatches equal SB3's, bit for bit."""


class CompressedDictRolloutBuffer(CompressedObservations, DictRolloutBuffer):
    """`DictRolloutBuffer` whose observations are compressed, key by key."""


class CompressedNStepReplayBuffer(CompressedObservations, NStepReplayBuffer):
    """`NStepReplayBuffer` whose observations are compressed."""


class CompressedHerReplayBuffer(CompressedObservations, HerReplayBuffer):
    """`HerReplayBuffer` whose observations are compressed, key by key."""


@functools.cache
def compressed_class(buffer_class: type[BaseBuffer]) -> type[Any]:
    """Return `buffer_class` with compressed observations: a class to pass to SB3, the same one every time.

    Its instances pickle if `buffer_class` can be imported.

    Raises:
        TypeError: not an SB3 buffer class.
    """
    if not (isinstance(buffer_class, type) and issubclass(buffer_class, BaseBuffer)):
        raise TypeError(f"compressed_class takes a subclass of an SB3 buffer, not {buffer_class!r}")
    if issubclass(buffer_class, CompressedObservations):
        return buffer_class
    doc = f"`{buffer_class.__name__}` whose observations are compressed."
    members = {"__doc__": doc, "__module__": __name__, "__reduce_ex__": _reduce, "_plain_class": buffer_class}
    bases: tuple[type, ...] = (CompressedObservations, buffer_class)
    return type(f"Compressed{buffer_class.__name__}", bases, members)


def _reduce(buffer: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle by way of the plain class: the compressed one is made again when loading."""
    state = buffer.__getstate__() if hasattr(buffer, "__getstate__") else vars(buffer).copy()
    return _new, (buffer._plain_class,), state


def _new(plain_class: type[BaseBuffer]) -> Any:
    return object.__new__(compressed_class(plain_class))
