"""An `add` that is refused leaves a hindsight buffer as it was: its episodes, too, which lie in other rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from kinds import steps
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from twins import TWINS, arrays, assert_same, assert_same_arrays, assert_same_draws, sample

from sb3_extra_buffers.compressed import StoreFullError, compressed_class
from sb3_extra_buffers.frames.store import FrameStore


class Noted(HerReplayBuffer):
    """A hindsight buffer of somebody's own."""


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 11])
@pytest.mark.parametrize("end", [0.02, 0.3, 0.9])
def test_a_refused_step_changes_nothing(end: float, rows: int, own: bool, monkeypatch: Any) -> None:
    """Every other step is refused, then comes again: beside SB3's buffer, which sees each once."""
    twin = TWINS["her"]
    ours, sb3 = twin.make(twin.default_kind, rows, 2, max_bytes=1 << 40)
    if own:
        ours = compressed_class(Noted)(**twin.arguments(twin.default_kind, rows, 2), max_bytes=1 << 40)
    put, refusing = FrameStore.put_blocks, False

    def limited(store: FrameStore, *args: Any) -> Any:
        if refusing:
            raise StoreFullError("there is no room")
        return put(store, *args)

    monkeypatch.setattr(FrameStore, "put_blocks", limited)
    for i, step in enumerate(steps(twin.default_kind, 2, 60, end=end)):
        if i % 2:
            refusing = True
            before = copy.deepcopy({name: _plain(value) for name, value in arrays(ours).items()})
            with pytest.raises(StoreFullError):
                twin.add(ours, step)
            refusing = False
            for name, value in before.items():
                assert_same(_plain(getattr(ours, name)), value, name)
        twin.add(ours, step)
        twin.add(sb3, step)
        assert_same_arrays(ours, sb3)
        if (sb3.ep_length > 0).any():
            assert_same_draws(ours, sb3, sample(5), range(1))


def _plain(value: Any) -> Any:
    return {key: np.array(part) for key, part in value.items()} if isinstance(value, dict) else np.array(value)
