"""Arrays that were gathered for a batch become tensors without a copy; all others are copied, as SB3 does."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from kinds import KINDS, steps
from twins import TWINS, assert_same

from sb3_extra_buffers.compressed import CompressedReplayBuffer

ROWS, ENVS = 6, 3
NAME = pytest.mark.parametrize("name", ["replay", "dict-replay", "rollout", "dict-rollout"])


def filled(name: str, kind: Any = None, cls: Any = None) -> tuple[Any, Any]:
    twin = TWINS[name]
    kind = twin.default_kind if kind is None else kind
    ours, sb3 = twin.make(kind, ROWS, ENVS)
    if cls is not None:
        ours.__class__ = cls
    for step in steps(kind, ENVS, ROWS, end=0.3):
        twin.add(ours, step)
        twin.add(sb3, step)
    if twin.rollout:
        for buffer in (ours, sb3):
            next(buffer.get(4))  # it reshapes its arrays
    return ours, sb3


def tensors(batch: Any) -> list[Any]:
    return [leaf for field in batch for leaf in (field.values() if isinstance(field, dict) else (field,))]


@NAME
@pytest.mark.parametrize("rows", [np.array([0, 1, 1]), [0, 1, 2], range(3)])
def test_batches_are_nobody_elses(name: str, rows: Any) -> None:
    ours, sb3 = filled(name)
    for _ in range(2):
        np.random.seed(0)
        got = tensors(ours._get_samples(rows))
        np.random.seed(0)
        for one, other in zip(got, tensors(sb3._get_samples(rows)), strict=True):
            assert_same(one, other)
            assert one is None or one.is_contiguous()
        for one in got:
            if one is not None:
                one.fill_(1)


@pytest.mark.parametrize("name", ["rollout", "dict-rollout"])
def test_rows_that_give_views(name: str) -> None:
    ours, sb3 = filled(name)
    for rows in (slice(0, 5), slice(None), np.arange(len(sb3.actions)) < 3):
        for one in tensors(ours._get_samples(rows)):
            one.fill_(1)
        for one, other in zip(tensors(ours._get_samples(rows)), tensors(sb3._get_samples(rows)), strict=True):
            assert_same(one, other)


@NAME
def test_what_somebody_else_has_is_copied(name: str) -> None:
    ours, _ = filled(name)
    mine = np.zeros(4)
    assert ours.to_torch(mine).fill_(1) is not None
    ours._get_samples(np.array([0, 1]))
    ours.to_torch(mine).fill_(1)
    with pytest.raises(IndexError):
        ours._get_samples(np.array([10_000]))
    ours.to_torch(mine).fill_(1)
    assert not mine.any()


class Asking(np.ndarray):
    """Calls a function when it is indexed."""

    ask: Any = None

    def __getitem__(self, index: Any) -> Any:
        if self.ask is not None:
            self.ask()
        return np.asarray(super().__getitem__(index))


def test_other_threads_get_copies() -> None:
    ours, _ = filled("replay", KINDS["small-float32"])
    mine, asked = np.zeros(4), []

    def ask() -> None:
        thread = threading.Thread(target=lambda: asked.append(ours.to_torch(mine)))
        thread.start()
        thread.join()

    ours.rewards = ours.rewards.view(Asking)
    ours.rewards.ask = ask
    ours._get_samples(np.array([0, 1]))
    assert asked
    for tensor in asked:
        tensor.fill_(1)
    assert not mine.any()


def test_small_fields_are_shared() -> None:
    given: list[Any] = []

    class Watched(CompressedReplayBuffer):
        def to_torch(self, array: Any, copy: bool = True) -> Any:
            tensor = super().to_torch(array, copy)
            given.append(np.shares_memory(array, tensor.numpy()))
            return tensor

    ours, _ = filled("replay", cls=Watched)
    ours.sample(4)
    assert len(given) >= 5
    assert all(given)
