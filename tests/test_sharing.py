"""Arrays that were gathered for a batch become tensors without a copy; all others are copied, as SB3 does."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from kinds import KINDS, steps
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from twins import TWINS, assert_same

from sb3_extra_buffers.compressed import CompressedReplayBuffer, compressed_class

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


@pytest.mark.parametrize(("name", "kind"), [("rollout", "small-float32"), ("rollout", None), ("dict-rollout", None)])
def test_rows_that_give_views(name: str, kind: str | None) -> None:
    ours, sb3 = filled(name, kind and KINDS[kind])
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


def test_small_fields_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = filled("replay")
    given, convert = [], BaseBuffer.to_torch

    def to_torch(self: Any, array: Any, copy: bool = True) -> Any:
        tensor = convert(self, array, copy)
        given.append(np.shares_memory(array, tensor.numpy()))
        return tensor

    monkeypatch.setattr(BaseBuffer, "to_torch", to_torch)
    ours.sample(4)
    assert len(given) >= 5
    assert all(given)


class Scratch:
    """Converts everything by way of one array."""

    def to_torch(self, array: Any, copy: bool = True) -> Any:
        if not hasattr(self, "scratch"):
            self.scratch = np.zeros(1000)
        place = self.scratch[: array.size].reshape(array.shape)
        place[...] = array
        return super().to_torch(place, copy)  # type: ignore[misc]


class Before(Scratch, CompressedReplayBuffer):
    """Asked first."""


class ScratchReplayBuffer(Scratch, ReplayBuffer):
    """Of somebody else."""


@pytest.mark.parametrize("cls", [Before, compressed_class(ScratchReplayBuffer)])
def test_what_other_code_converts_is_copied(cls: Any) -> None:
    ours, sb3 = filled("replay", KINDS["small-float32"], cls)
    np.random.seed(0)
    got = ours.sample(4)
    np.random.seed(0)
    for one, other in zip(got[:5], sb3.sample(4)[:5], strict=True):
        assert_same(one.float(), other.float())


@NAME
def test_what_sb3_converts_is_new(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should this fail with another SB3, its arrays must not be shared."""
    _, sb3 = filled(name)
    given, convert = [], BaseBuffer.to_torch
    monkeypatch.setattr(
        BaseBuffer, "to_torch", lambda self, array, copy=True: given.append(array) or convert(self, array)
    )
    sb3._get_samples(np.array([0, 1, 2]))
    fields = [part for held in vars(sb3).values() for part in (held.values() if isinstance(held, dict) else (held,))]
    fields = [part for part in fields if isinstance(part, np.ndarray)]
    assert len(given) >= 5
    for i, array in enumerate(given):
        for other in (*fields, *given[:i]):
            assert not np.shares_memory(array, other)
