"""Rows are copied many at a time before they are overwritten: whatever `add` fails at, all are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from kinds import steps
from twins import TWINS, assert_same_arrays

from sb3_extra_buffers.compressed import CompressedReplayBuffer, ahead
from sb3_extra_buffers.frames.heap import StoreFullError
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, GpuRolloutBuffer

ROWS, N_ENVS = 7, 2


class Weighing(CompressedReplayBuffer):
    """Has an array of its own, which SB3's `add` does not know."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights = np.ones((ROWS, N_ENVS))


class Adding(CompressedReplayBuffer):
    def add(self, *args: Any, **kwargs: Any) -> None:
        super().add(*args, **kwargs)


def test_what_add_writes() -> None:
    known = {"replay": ahead.REPLAY, "dict-replay": ahead.REPLAY, "nstep": ahead.REPLAY, "rollout": ahead.ROLLOUT}
    known["dict-rollout"] = ahead.ROLLOUT
    for name, twin in TWINS.items():
        assert ahead.fields_of(twin.ours) == known.get(name, ())
    assert ahead.fields_of(Weighing) == ahead.fields_of(GpuReplayBuffer) == ahead.REPLAY
    assert ahead.fields_of(GpuRolloutBuffer) == ahead.ROLLOUT
    assert ahead.fields_of(Adding) == ()


@contextmanager
def failing(buffer: Any) -> Iterator[None]:
    """Have its stores fail, and expect that."""
    with ExitStack() as stack:
        for store in buffer._stores.values():
            stack.enter_context(patch.object(store, "prepare", side_effect=MemoryError))
        stack.enter_context(pytest.raises(MemoryError))
        yield


@pytest.mark.parametrize("many", [1, 3, 256])
@pytest.mark.parametrize("name", ["replay", "dict-replay", "nstep", "her", "rollout", "dict-rollout", "maskable"])
def test_a_step_that_fails_at_any_time(name: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SB3 has written its row when the store fails."""
    monkeypatch.setattr(ahead, "_ROWS", many)
    twin = TWINS[name]
    ours, sb3 = twin.make(twin.default_kind, ROWS, N_ENVS)
    for step in steps(twin.default_kind, N_ENVS, ROWS if twin.rollout else 3 * ROWS, end=0.3):
        for times in range(2):
            with failing(ours):
                twin.add(ours, step)
            assert_same_arrays(ours, sb3)
            assert (ours.pos, ours.full) == (sb3.pos, sb3.full), times
        twin.add(ours, step)
        twin.add(sb3, step)
        assert_same_arrays(ours, sb3)


def test_other_arrays_stay() -> None:
    twin = TWINS["replay"]
    ours = Weighing(**twin.arguments(twin.default_kind, ROWS, N_ENVS))
    for step in steps(twin.default_kind, N_ENVS, 2 * ROWS):
        with failing(ours):
            ours.add(*step.replay())
        ours.add(*step.replay())
    assert (ours.weights == 1).all()


def test_rows_that_were_changed_before_there_was_no_room() -> None:
    """Somebody changes rewards in place; the step that is refused later does not bring the old ones back."""
    twin = TWINS["replay"]
    ours, _ = twin.make(twin.default_kind, ROWS, N_ENVS, compression_method="none", max_bytes=200_000)
    given = steps(twin.default_kind, N_ENVS, 4 * ROWS)
    for step in given[: ROWS + 2]:
        ours.add(*step.replay())
    ours._stores[None].budget.max_bytes = 1  # nothing more
    ours.rewards[:] = 5
    with pytest.raises(StoreFullError):
        ours.add(*given[ROWS + 2].replay())
    assert (ours.rewards == 5).all()


def test_replaced_arrays() -> None:
    """An array of another dtype takes the place of SB3's."""
    twin = TWINS["replay"]
    ours, sb3 = twin.make(twin.default_kind, ROWS, N_ENVS)
    given = steps(twin.default_kind, N_ENVS, 3 * ROWS)
    for step in given[: ROWS + 1]:
        for buffer in (ours, sb3):
            buffer.add(*step.replay())
    for buffer in (ours, sb3):
        buffer.rewards, buffer.pos = np.full(buffer.rewards.shape, 1 / 3), 4
    with failing(ours):
        ours.add(*given[-1].replay())
    assert_same_arrays(ours, sb3)
    assert ours.rewards.dtype == np.float64
