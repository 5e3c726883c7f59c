"""Buffers of small float vectors keep SB3's arrays and take the short way through `add` once it is safe."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer

SPACE = spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)
ROWS, N_ENVS = 5, 3


def some_steps(n: int) -> list[list[Any]]:
    random = np.random.default_rng(0)
    return [
        [
            random.normal(size=(N_ENVS, 17)).astype(np.float32),
            random.normal(size=(N_ENVS, 17)).astype(np.float32),
            random.normal(size=(N_ENVS, 6)).astype(np.float32),
            random.normal(size=N_ENVS).astype(np.float32),
            random.random(N_ENVS) < 0.3,
            [{"TimeLimit.truncated": bool(random.random() < 0.5)} for _ in range(N_ENVS)],
        ]
        for _ in range(n)
    ]


def make(cls: Any = CompressedReplayBuffer) -> Any:
    return cls(ROWS * N_ENVS, SPACE, ACTIONS, "cpu", n_envs=N_ENVS)


def assert_same_samples(ours: Any, theirs: Any) -> None:
    for seed in range(3):
        batches = []
        for buffer in (ours, theirs):
            np.random.seed(seed)
            batches.append(buffer.sample(20))
        for one, other in zip(*batches, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("n", [1, 4, 12])
def test_same_as_sb3(n: int, tmp_path: Path) -> None:
    ours, theirs = make(), make(ReplayBuffer)
    for i, step in enumerate(some_steps(n)):
        ours.add(*step) if i % 2 else ours.add(**dict(zip(FIELDS, step, strict=True)))
        theirs.add(*step)
    ours.save(tmp_path / "buffer")
    again = [ours, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), type(ours).load(tmp_path / "buffer")]
    for buffer in again:
        assert_same_samples(buffer, theirs)
    for step in some_steps(3):
        theirs.add(*step)
        for buffer in again:
            buffer.add(*step)
    for buffer in again:
        assert_same_samples(buffer, theirs)


FIELDS = ("obs", "next_obs", "action", "reward", "done", "infos")
BAD: dict[str, list[Any]] = {
    "obs": [np.zeros((N_ENVS, 16), np.float32), np.zeros((2, 17), np.float32), "no"],
    "next_obs": [
        np.zeros((N_ENVS, 16), np.float32),
        np.zeros((2, 17), np.float32),
        None,
        "no",
        np.full((N_ENVS, 17), "no"),
    ],
    "action": [np.zeros((N_ENVS, 5), np.float32)],
    "reward": [np.zeros(2), np.zeros(1), "no", np.zeros((N_ENVS, 2)), np.full(N_ENVS, "no")],
    "done": [np.zeros(2, bool), np.zeros((N_ENVS, 2))],
    "infos": [[], [{}] * 2, [None] * N_ENVS, None, 7],
}


@pytest.mark.parametrize("field", FIELDS)
def test_bad_input_changes_nothing(field: str) -> None:
    ours, theirs = make(), make(ReplayBuffer)
    for step in some_steps(ROWS + 2):  # the ring is full: each row holds something
        ours.add(*step)
        theirs.add(*step)
    for bad in BAD[field]:
        step = some_steps(1)[0]
        step[FIELDS.index(field)] = bad
        with pytest.raises((ValueError, TypeError, AttributeError)):
            ours.add(*step)
        assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_subclasses_that_add_are_asked() -> None:
    class Counting(CompressedReplayBuffer):
        added = converted = 0

        def add(self, *args: Any, **kwargs: Any) -> None:
            self.added += 1
            super().add(*args, **kwargs)

    class Converting(CompressedReplayBuffer):
        converted = 0

        def to_torch(self, array: Any, copy: bool = True) -> Any:
            self.converted += 1
            return super().to_torch(array, copy)

    counting, converting = make(Counting), make(Converting)
    for step in some_steps(4):
        counting.add(*step)
        converting.add(*step)
    converting.sample(3)
    assert counting.added == 4
    assert converting.converted == 5
