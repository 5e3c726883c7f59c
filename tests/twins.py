"""Pairs of buffers, ours and SB3's, and functions that fill both and compare all they give, exactly."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from kinds import DICT_KINDS, GOAL_KIND, KINDS, AnyKind, Step, space_of
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_extra_buffers.compressed.contrib import (
    CompressedMaskableDictRolloutBuffer,
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentDictRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
)

METHODS = [
    "auto",
    "delta",
    "delta/2",
    "near",
    "none",
    "rle",
    "rle-jit",
    "gzip",
    "gzip0",
    "gzip1",
    "gzip9",
    "igzip",
    "igzip0",
    "igzip3",
    "zstd",
    "zstd-100",
    "zstd-5",
    "zstd/-1",
    "zstd1",
    "zstd3",
    "zstd22",
    "lz4-frame",
    "lz4-frame/0",
    "lz4-frame/16",
    "lz4-frame/-5",
    "lz4-block",
    "lz4-block/0",
    "lz4-block/1",
    "lz4-block/12",
    "lz4-block/-7",
]
"""Each method of the spec, with levels from every range it has."""


class GoalRewards:
    """All that `HerReplayBuffer` asks of an env: rewards of goals. Stands in for a VecEnv."""

    def env_method(self, name: str, achieved: Any, desired: Any, infos: Any, indices: Any) -> list[Any]:
        """Return one reward for each goal."""
        assert name == "compute_reward"
        assert indices == [0]
        notes = np.array([info.get("note", 0) for info in infos])
        return [np.abs(achieved - desired).sum(axis=-1) + notes]


@dataclass(frozen=True)
class Twin:
    """A class of ours and the SB3 class it extends."""

    name: str
    sb3: type[Any]
    ours: type[Any]
    keyed: bool = False
    rollout: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def default_kind(self) -> AnyKind:
        """A kind of observation that exercises codecs and stacks."""
        if self.name == "her":
            return GOAL_KIND
        return DICT_KINDS["stack+large-vector"] if self.keyed else KINDS["stack-view"]

    def arguments(self, kind: AnyKind, rows: int, n_envs: int, action_space: Any = None) -> dict[str, Any]:
        """Arguments of SB3's constructor, all by name."""
        given: dict[str, Any] = {
            "buffer_size": rows if self.rollout else rows * n_envs,
            "observation_space": space_of(kind),
            "action_space": spaces.Discrete(4) if action_space is None else action_space,
            "device": "cpu",
            "n_envs": n_envs,
        }
        if self.name == "her":
            given["env"] = GoalRewards()
        if self.name.startswith("recurrent"):
            given["hidden_state_shape"] = (rows, 1, n_envs, 6)
        return given

    def make(
        self, kind: AnyKind, rows: int, n_envs: int, *, sb3: dict[str, Any] | None = None, **ours: Any
    ) -> tuple[Any, Any]:
        """Return `(our buffer, SB3's)`; `sb3` are keyword arguments of both, `ours` of ours."""
        given = {**self.arguments(kind, rows, n_envs), **(sb3 or {})}
        return self.ours(**given, **ours), self.sb3(**given)

    def add(self, buffer: Any, step: Step) -> None:
        """Add a step to a buffer of this kind."""
        if not self.rollout:
            buffer.add(*step.replay())
            return
        extra: dict[str, Any] = {}
        if self.name.startswith("maskable"):
            extra["action_masks"] = _masks(step)
        if self.name.startswith("recurrent"):
            extra["lstm_states"] = _states(step)
        buffer.add(*step.rollout(), **extra)


def _masks(step: Step) -> Any:
    rng = np.random.default_rng(zlib.crc32(step.reward.tobytes()))
    return rng.integers(0, 2, (len(step.reward), 4)).astype(np.float32)


def _states(step: Step) -> RNNStates:
    rng = np.random.default_rng(zlib.crc32(step.reward.tobytes()))
    draws = rng.normal(size=(4, 1, len(step.reward), 6)).astype(np.float32)
    pi_h, pi_c, vf_h, vf_c = map(torch.from_numpy, draws)
    return RNNStates((pi_h, pi_c), (vf_h, vf_c))


TWINS = {
    twin.name: twin
    for twin in (
        Twin("replay", ReplayBuffer, CompressedReplayBuffer),
        Twin("dict-replay", DictReplayBuffer, CompressedDictReplayBuffer, keyed=True),
        Twin("nstep", NStepReplayBuffer, CompressedNStepReplayBuffer),
        Twin("her", HerReplayBuffer, CompressedHerReplayBuffer, keyed=True),
        Twin("rollout", RolloutBuffer, CompressedRolloutBuffer, rollout=True),
        Twin("dict-rollout", DictRolloutBuffer, CompressedDictRolloutBuffer, keyed=True, rollout=True),
        Twin("maskable", MaskableRolloutBuffer, CompressedMaskableRolloutBuffer, rollout=True),
        Twin(
            "maskable-dict",
            MaskableDictRolloutBuffer,
            CompressedMaskableDictRolloutBuffer,
            keyed=True,
            rollout=True,
        ),
        Twin("recurrent", RecurrentRolloutBuffer, CompressedRecurrentRolloutBuffer, rollout=True),
        Twin(
            "recurrent-dict",
            RecurrentDictRolloutBuffer,
            CompressedRecurrentDictRolloutBuffer,
            keyed=True,
            rollout=True,
        ),
    )
}
REPLAY = [twin for twin in TWINS.values() if not twin.rollout]
ROLLOUT = [twin for twin in TWINS.values() if twin.rollout]


def assert_same(got: Any, wanted: Any, where: str = "") -> None:
    """Assert that two samples are equal: structure, shapes, dtypes, strides, and every byte."""
    if isinstance(wanted, torch.Tensor):
        assert type(got) is type(wanted), where
        assert got.dtype == wanted.dtype, where
        assert got.shape == wanted.shape, where
        assert got.stride() == wanted.stride() or not wanted.numel(), where  # of nothing they say nothing
        assert got.device == wanted.device, where
        assert got.contiguous().cpu().numpy().tobytes() == wanted.contiguous().cpu().numpy().tobytes(), where
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted), where
        for key, value in wanted.items():
            assert_same(got[key], value, f"{where}[{key!r}]")
    elif isinstance(wanted, np.ndarray):
        assert isinstance(got, np.ndarray), where
        assert got.dtype == wanted.dtype, where
        assert got.shape == wanted.shape, where
        if wanted.dtype == object:
            assert got.tolist() == wanted.tolist(), where
        else:
            assert np.asarray(got).tobytes() == wanted.tobytes(), where
    elif isinstance(wanted, tuple):
        assert type(got) is type(wanted), where
        assert len(got) == len(wanted), where
        for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, f"{where}.{getattr(wanted, '_fields', range(len(wanted)))[i]}")
    else:
        assert got == wanted, where


def arrays(buffer: Any) -> dict[str, Any]:
    """Return all arrays that SB3's buffer has, as NumPy sees them."""
    return {name: value for name, value in vars(buffer).items() if _is_data(value)}


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(isinstance(part, np.ndarray) for part in value.values())
    return isinstance(value, np.ndarray)


def assert_same_arrays(ours: Any, sb3: Any) -> None:
    """Assert that every array of SB3's buffer equals ours: shape, dtype, bytes; and where the ring stands."""
    for name, wanted in arrays(sb3).items():
        assert_same(getattr(ours, name), wanted, name)
    assert (ours.pos, ours.full, ours.size(), ours.buffer_size) == (sb3.pos, sb3.full, sb3.size(), sb3.buffer_size)


def random_state() -> tuple[Any, ...]:
    """Return the state of `np.random`, to compare."""
    name, keys, *rest = np.random.get_state()
    return name, keys.tobytes(), *rest


def draw(buffer: Any, seed: int, take: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return what `take` gets from `buffer` under `seed`, and the state that leaves `np.random` in."""
    np.random.seed(seed)
    return take(buffer), random_state()


def assert_same_draws(ours: Any, sb3: Any, take: Callable[[Any], Any], seeds: Sequence[int] = range(3)) -> None:
    """Assert that both give the same, with the same draws from `np.random`."""
    for seed in seeds:
        got, got_state = draw(ours, seed, take)
        wanted, wanted_state = draw(sb3, seed, take)
        assert_same(got, wanted, f"seed {seed}")
        assert got_state == wanted_state


def sample(batch_size: int, env: Any = None) -> Callable[[Any], Any]:
    """Return a function that samples a replay buffer."""
    return lambda buffer: buffer.sample(batch_size, env=env)


def can_sample(buffer: Any) -> bool:
    """Tell whether SB3 can sample this buffer: HER needs a finished episode."""
    return bool(np.any(buffer.ep_length > 0)) if isinstance(buffer, HerReplayBuffer) else buffer.size() > 0


def check_replay(
    twin: Twin, ours: Any, sb3: Any, data: Sequence[Step], levels: Sequence[int] | None = None, env: Any = None
) -> None:
    """Fill both replay buffers and compare everything at several fill levels."""
    rows = sb3.buffer_size
    marks = (
        {1, 5, rows - 1, rows, rows + 1, rows + rows // 2, 3 * rows + 1, len(data)} if levels is None else set(levels)
    )
    for i, step in enumerate(data, 1):
        np.random.seed(i)
        twin.add(ours, step)
        added = random_state()
        np.random.seed(i)
        assert added == random_state()  # adding draws nothing
        twin.add(sb3, step)
        if i in marks:
            assert_same_arrays(ours, sb3)
            if can_sample(sb3):
                assert_same_draws(ours, sb3, sample(1, env), range(2))
                assert_same_draws(ours, sb3, sample(33, env), range(i, i + 3))
    assert_same_arrays(ours, sb3)


def fill_rollout(twin: Twin, buffers: Sequence[Any], data: Sequence[Step]) -> None:
    """Reset rollout buffers, fill them with a rollout, and compute what SB3's algorithms compute."""
    for buffer in buffers:
        buffer.reset()
        for step in data:
            twin.add(buffer, step)
        buffer.compute_returns_and_advantage(data[-1].value, data[-1].done)


def minibatches(batch_size: int | None) -> Callable[[Any], Any]:
    """Return a function that takes all minibatches of a rollout buffer."""
    return lambda buffer: tuple(buffer.get(batch_size))


def check_rollout(twin: Twin, ours: Any, sb3: Any, data: Sequence[Step]) -> None:
    """Fill both rollout buffers several times, as an algorithm does, and compare everything."""
    rows = sb3.buffer_size
    for start in range(0, len(data) - rows + 1, rows):
        fill_rollout(twin, (ours, sb3), data[start : start + rows])
        assert_same_arrays(ours, sb3)
        for batch_size in (7, None, 1000):
            assert_same_draws(ours, sb3, minibatches(batch_size), range(2))
        assert_same_arrays(ours, sb3)


def check(twin: Twin, ours: Any, sb3: Any, data: Sequence[Step]) -> None:
    """Compare a pair of either sort."""
    (check_rollout if twin.rollout else check_replay)(twin, ours, sb3, data)
