"""sb3-contrib's buffers with compressed observations. Importing this module needs sb3-contrib."""

from __future__ import annotations

from typing import Any

try:
    from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
    from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
except ImportError as error:
    raise ImportError('these buffers need: pip install "sb3-extra-buffers[contrib]"') from error

from sb3_extra_buffers.compressed.observations import CompressedObservations

__all__ = [
    "CompressedMaskableDictRolloutBuffer",
    "CompressedMaskableRolloutBuffer",
    "CompressedRecurrentDictRolloutBuffer",
    "CompressedRecurrentRolloutBuffer",
]


class CompressedMaskableRolloutBuffer(CompressedObservations, MaskableRolloutBuffer):
    """`MaskableRolloutBuffer` whose observations are compressed."""


class CompressedMaskableDictRolloutBuffer(CompressedObservations, MaskableDictRolloutBuffer):
    """`MaskableDictRolloutBuffer` whose observations are compressed, key by key."""


class CompressedRecurrentRolloutBuffer(CompressedObservations, RecurrentRolloutBuffer):
    """`RecurrentRolloutBuffer` whose observations are compressed."""

    def _saved(self) -> dict[str, Any]:
        return _without_sequencers(super()._saved())


class CompressedRecurrentDictRolloutBuffer(CompressedObservations, RecurrentDictRolloutBuffer):
    """`RecurrentDictRolloutBuffer` whose observations are compressed, key by key."""

    def _saved(self) -> dict[str, Any]:
        return _without_sequencers(super()._saved())


def _without_sequencers(attributes: dict[str, Any]) -> dict[str, Any]:
    """Leave out the functions that sb3-contrib keeps for one minibatch and makes anew for the next."""
    return {name: value for name, value in attributes.items() if name not in ("pad", "pad_and_flatten")}
