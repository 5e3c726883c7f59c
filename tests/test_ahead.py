"""Rows are copied many at a time before they are overwritten: whatever `add` fails at, all are as they were."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from interrupting import interrupts
from kinds import KINDS, steps
from twins import TWINS, assert_same_arrays

from sb3_extra_buffers.codecs.base import grown
from sb3_extra_buffers.compressed import CompressedReplayBuffer, ahead
from sb3_extra_buffers.frames import store
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


def test_replaced_arrays(tmp_path: Path) -> None:
    """Arrays of another dtype or type take the place of SB3's."""
    twin = TWINS["replay"]
    ours, sb3 = twin.make(twin.default_kind, ROWS, N_ENVS)
    given = steps(twin.default_kind, N_ENVS, 3 * ROWS)
    for step in given[: ROWS + 1]:
        for buffer in (ours, sb3):
            buffer.add(*step.replay())
    mapped = np.memmap(tmp_path / "rewards", np.float64, "w+", shape=ours.rewards.shape)
    mapped[:] = 1 / 3
    for array in (np.full(ours.rewards.shape, 1 / 3), mapped):
        ours.rewards = array
        sb3.rewards = array.copy()
        with failing(ours):
            ours.add(*given[-1].replay())
        assert_same_arrays(ours, sb3)
        assert ours.rewards is array


def test_an_array_of_the_wrong_shape() -> None:
    """SB3 raises at it, after it has written other fields. When it is put right, all goes on."""
    twin = TWINS["replay"]
    ours, sb3 = twin.make(twin.default_kind, ROWS, N_ENVS)
    given = steps(twin.default_kind, N_ENVS, 3 * ROWS)
    for step in given[: ROWS + 2]:
        for buffer in (ours, sb3):
            buffer.add(*step.replay())
    right, ours.actions = ours.actions, np.zeros((ROWS, N_ENVS + 1, 1), ours.actions.dtype)
    for _ in range(2):
        with pytest.raises(ValueError, match="broadcast"):
            ours.add(*given[-1].replay())
    ours.actions = right
    assert_same_arrays(ours, sb3)
    for buffer in (ours, sb3):
        buffer.observations[0] = given[-1].obs  # by hand
        buffer.add(*given[-1].replay())
    assert_same_arrays(ours, sb3)


@pytest.mark.parametrize("kind", ["image", "small-float32", "small-uint8"])
def test_a_rollout_that_gets_longer(kind: str) -> None:
    twin = TWINS["rollout"]
    ours, sb3 = twin.make(KINDS[kind], ROWS, N_ENVS)
    for rows in (ROWS, 300):
        given = steps(KINDS[kind], N_ENVS, rows)
        for buffer in (ours, sb3):
            buffer.buffer_size = rows
            buffer.reset()
            for step in given[:5]:
                twin.add(buffer, step)
            buffer.pos = 3  # copies are made
            for step in given[3:]:
                twin.add(buffer, step)
        assert_same_arrays(ours, sb3)


def test_a_turn_with_a_limit_in_between() -> None:
    """While there is a limit, no rows are copied ahead: the old copies are not used afterwards."""
    twin = TWINS["replay"]
    ours, sb3 = twin.make(twin.default_kind, ROWS, N_ENVS)
    budget = ours._stores[None].budget
    for i, step in enumerate(steps(twin.default_kind, N_ENVS, 4 * ROWS)):
        budget.max_bytes = 10**9 if 2 * ROWS + 2 <= i < 3 * ROWS + 2 else None
        if i == 3 * ROWS + 2:
            with failing(ours):
                ours.add(*step.replay())
            assert_same_arrays(ours, sb3)
        for buffer in (ours, sb3):
            buffer.add(*step.replay())


@pytest.mark.parametrize("kind", ["small-uint8", "small-float32"])
@pytest.mark.parametrize("cls", [CompressedReplayBuffer, GpuReplayBuffer])
def test_small_observations_that_are_interrupted_anywhere(cls: Any, kind: str) -> None:
    twin = TWINS["replay"]
    given = steps(KINDS[kind], N_ENVS, ROWS + 3)
    where, interrupted = 0, True
    while interrupted:
        arguments = twin.arguments(KINDS[kind], ROWS, N_ENVS)
        ours, before, after = cls(**arguments), twin.sb3(**arguments), twin.sb3(**arguments)
        for step in given[:-1]:
            for buffer in (ours, before, after):
                buffer.add(*step.replay())
        after.add(*given[-1].replay())

        def add(buffer: Any = ours) -> None:
            buffer.add(*given[-1].replay())

        interrupted = interrupts(add, where, ("sb3_extra_buffers", "stable_baselines3"))
        assert_same_arrays(ours, after if ours.pos == after.pos else before)
        where += 3
    assert where > 100


def test_a_table_that_cannot_grow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no memory for one of its arrays: it stays as it was, and can be saved."""
    twin = TWINS["replay"]
    for fails_at in range(1, 12):
        ours, sb3 = twin.make(twin.default_kind, 40, N_ENVS, compression_method="zstd3", frame_stack=1)
        calls = 0

        def grown_or_not(*args: Any, fails_at: int = fails_at) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise MemoryError
            return grown(*args)

        with monkeypatch.context() as patching:
            patching.setattr(store, "grown", grown_or_not)
            patching.setattr(store, "_ENTRIES", 8)
            for step in steps(twin.default_kind, N_ENVS, 40):
                with suppress(MemoryError):
                    ours.add(*step.replay())
                    sb3.add(*step.replay())
        assert calls > fails_at
        frames = ours._stores[None].frames
        assert len({len(getattr(frames, name)) for name in ("offsets", "lengths", "references", "counts", "free")}) == 1
        ours.save(tmp_path / "buffer")
        assert_same_arrays(type(ours).load(tmp_path / "buffer"), sb3)


def test_a_field_of_vectors_that_is_replaced() -> None:
    twin = TWINS["replay"]
    ours, sb3 = twin.make(KINDS["small-float32"], ROWS, N_ENVS)
    given = steps(KINDS["small-float32"], N_ENVS, ROWS + 3)
    for step in given[:-1]:
        for buffer in (ours, sb3):
            buffer.add(*step.replay())
    ours.rewards = ours.rewards * 1
    bad = [*given[-1].replay()]
    bad[4] = "done"
    with pytest.raises((ValueError, TypeError)):
        ours.add(*bad)
    assert_same_arrays(ours, sb3)


@pytest.mark.parametrize("kind", ["image", "small-float32"])
def test_arrays_of_a_rollout_that_is_over_are_let_go(kind: str) -> None:
    twin = TWINS["rollout"]
    ours, _ = twin.make(KINDS[kind], ROWS, N_ENVS)
    for step in steps(KINDS[kind], N_ENVS, ROWS):
        twin.add(ours, step)
    field = weakref.ref(ours.rewards), weakref.ref(ours.observations)
    for _ in ours.get(3):
        pass
    assert field[0]() is not None  # SB3 keeps it until `reset`
    ours.reset()
    gc.collect()
    assert [one() for one in field] == [None, None]


def test_rows_that_were_changed_before_the_disk_was_full(tmp_path: Path) -> None:
    twin = TWINS["replay"]
    ours, _ = twin.make(twin.default_kind, ROWS, N_ENVS, spill_dir=tmp_path)
    given = steps(twin.default_kind, N_ENVS, ROWS + 3)
    for step in given[:-1]:
        ours.add(*step.replay())
    ours.rewards[:] = 5
    with patch.object(ours._stores[None], "prepare", side_effect=OSError("full")), pytest.raises(OSError, match="full"):
        ours.add(*given[-1].replay())
    assert (ours.rewards == 5).all()
