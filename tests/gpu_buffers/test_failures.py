"""What goes wrong half-way leaves nothing wrong behind, on the host and on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, StoreFullError
from sb3_extra_buffers.frames import writes
from sb3_extra_buffers.gpu_buffers import (
    GpuDictReplayBuffer,
    GpuReplayBuffer,
    GpuRolloutBuffer,
    mirror,
    store,
)
from sb3_extra_buffers.gpu_buffers.observations import GpuObservations

IMAGE = spaces.Box(0, 255, (4, 12, 12), np.uint8)
ACTIONS = spaces.Discrete(3)


class Stream:
    """Steps of stacked frames: a background with some changed pixels, or noise."""

    def __init__(self, n_envs: int, seed: int = 0, noise: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.background = self.random.integers(0, 256, (12, 12), np.uint8)
        self.obs = np.zeros((n_envs, 4, 12, 12), np.uint8)
        self.noise = noise

    def step(self) -> tuple[Any, ...]:
        n, random = len(self.obs), self.random
        frames = np.repeat(self.background[None], n, axis=0)
        if self.noise:
            frames = random.integers(0, 256, frames.shape, np.uint8)
        else:
            for frame in frames:
                frame.reshape(-1)[random.integers(0, frame.size, 5)] = random.integers(0, 256, 5)
        before, self.obs = self.obs, np.concatenate([self.obs[:, 1:], frames[:, None]], axis=1)
        rewards = random.random(n).astype(np.float32)
        return before, self.obs, random.integers(0, 3, (n, 1)), rewards, random.random(n) < 0.05, [{}] * n


def draw(buffer: Any, n: int = 64, seed: int = 0) -> Any:
    np.random.seed(seed)
    return buffer.sample(n)


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, dict):
            assert all(torch.equal(one[key], other[key]) for key in one)
        elif one is not None:
            assert torch.equal(one, other)


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("as on a device that is full")


@pytest.mark.parametrize("n_steps", [8, 20])
def test_a_short_rollout_with_a_limit(n_steps: int) -> None:
    given = (n_steps, IMAGE, ACTIONS, "cpu")
    ours, theirs = GpuRolloutBuffer(*given, n_envs=2, heap_bytes=10**7), RolloutBuffer(*given, n_envs=2)
    stream = Stream(2)
    for _ in range(n_steps):
        obs, _, actions, rewards, dones, _ = stream.step()
        for buffer in (ours, theirs):
            buffer.add(obs, actions, rewards, dones, torch.zeros(2), torch.zeros(2))
    batches = []
    for buffer in (ours, theirs):
        buffer.compute_returns_and_advantage(torch.zeros(2), np.zeros(2))
        np.random.seed(0)
        batches.append(list(buffer.get(8)))
    for one, other in zip(*batches, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("heap_bytes", [2_000, 6_000])
def test_a_plan_that_does_not_fit(heap_bytes: int) -> None:
    given = (100, IMAGE, ACTIONS, "cpu")
    ours, theirs = GpuReplayBuffer(*given, n_envs=2, heap_bytes=heap_bytes), ReplayBuffer(*given, n_envs=2)
    stream = Stream(2, noise=True)
    added = 0
    for _ in range(60):
        step = stream.step()
        try:
            ours.add(*step)
        except StoreFullError:
            break
        theirs.add(*step)
        added += 1
    assert 0 < added < 60
    assert_same(draw(ours), draw(theirs))


def test_a_plan_and_then_an_add_that_raises() -> None:
    given = (100, IMAGE, ACTIONS, "cpu")
    ours, theirs = GpuReplayBuffer(*given, n_envs=2, heap_bytes=10**7), ReplayBuffer(*given, n_envs=2)
    stream = Stream(2)
    for _ in range(8):
        step = stream.step()
        ours.add(*step)
        theirs.add(*step)
    with pytest.raises(ValueError, match="yes"):
        ours.add(*stream.step()[:5], [{"TimeLimit.truncated": "yes"}] * 2)
    assert_same(draw(ours), draw(theirs))


def test_no_memory_for_a_larger_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (200, IMAGE, ACTIONS, "cpu")
    ours, theirs = GpuReplayBuffer(*given, n_envs=2, frame_stack=4), ReplayBuffer(*given, n_envs=2)
    stream = Stream(2, noise=True)
    for i in range(60):
        step = stream.step()
        ours.add(*step)
        theirs.add(*step)
        if i == 20:
            assert_same(draw(ours), draw(theirs))
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "grown", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            draw(ours)
    assert_same(draw(ours), draw(theirs))


def dict_step(first: Stream, second: Stream) -> tuple[Any, ...]:
    one, other = first.step(), second.step()
    return {"a": one[0], "b": other[0]}, {"a": one[1], "b": other[1]}, *one[2:]


def test_two_stores_of_which_one_cannot_send(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (300, spaces.Dict(a=IMAGE, b=IMAGE), ACTIONS, "cpu")
    ours, theirs = GpuDictReplayBuffer(*given, n_envs=2, frame_stack=4), DictReplayBuffer(*given, n_envs=2)
    streams = Stream(2, 1), Stream(2, 2)
    for i in range(40):
        step = dict_step(*streams)
        ours.add(*step)
        theirs.add(*step)
        if i == 20:
            assert_same(draw(ours), draw(theirs))
    with monkeypatch.context() as patch:
        patch.setattr(list(ours._stores.values())[1], "outgoing", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            draw(ours)
    assert_same(draw(ours), draw(theirs))
    monkeypatch.setattr(store, "_WAITING", 1)
    with monkeypatch.context() as patch:
        patch.setattr(store, "for_kernels", out_of_memory)
        for _ in range(writes.ROWS):  # all but the last wait, then all are stored
            step = dict_step(*streams)
            ours.add(*step)
            theirs.add(*step)
        before = ours.pos
        with pytest.raises(torch.OutOfMemoryError):
            ours.add(*dict_step(*streams))
        assert ours.pos == before
    assert_same(draw(ours), draw(theirs))


def test_a_key_frame_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = mirror.grown

    def poisoned(tensor: torch.Tensor, n: int) -> torch.Tensor:
        larger = grown(tensor, n)
        larger[len(tensor) :] = 0x5B
        return larger

    monkeypatch.setattr(mirror, "grown", poisoned)
    given = (3_000, spaces.Box(0, 255, (16, 16), np.uint8), ACTIONS, "cpu")
    ours, theirs = GpuReplayBuffer(*given, frame_stack=1), ReplayBuffer(*given)
    random = np.random.default_rng(0)

    def play(background: Any, n: int) -> None:
        for i in range(n):
            obs = np.repeat(background[None, None], 2, axis=0)
            for one in obs:
                one.reshape(-1)[random.integers(0, 256, 3)] = random.integers(1, 256, 3)
            for buffer in (ours, theirs):
                buffer.add(*obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), [{}])
            if i % 10 == 0:
                draw(ours, 4)

    background = random.integers(1, 256, (16, 16), np.uint8)
    for _ in range(14):
        background = background.copy()
        background[random.permutation(16)[:6]] = random.integers(1, 256, (6, 16))
        play(background, 60)
    play(np.zeros((16, 16), np.uint8), 100)
    assert_same(draw(ours, 500), draw(theirs, 500))


@pytest.mark.parametrize("cls", [CompressedDictReplayBuffer, GpuDictReplayBuffer])
def test_small_keys_of_a_refused_add(cls: Any) -> None:
    space = spaces.Dict(image=IMAGE, vector=spaces.Box(-1, 1, (3,), np.float32))
    buffer = cls(20, space, ACTIONS, "cpu", n_envs=2, frame_stack=4)
    stream, random = Stream(2), np.random.default_rng(1)

    def step() -> tuple[Any, ...]:
        obs, next_obs, *rest = stream.step()
        parts = [{"image": part, "vector": random.random((2, 3), np.float32)} for part in (obs, next_obs)]
        return *parts, *rest

    for _ in range(25):
        buffer.add(*step())
    budget = buffer._stores["image"].budget
    buffer.memory_usage()  # nothing waits to be stored
    budget.max_bytes = budget.used + 500
    stream.noise = True
    for _ in range(400):
        before = {key: np.array(buffer.observations[key]) for key in space.spaces}
        try:
            buffer.add(*step())
        except StoreFullError:
            break
    else:
        pytest.fail("nothing was refused")
    for key, wanted in before.items():
        np.testing.assert_array_equal(np.array(buffer.observations[key]), wanted)


def test_fields_change_one_by_one() -> None:
    actions = spaces.Box(-1, 1, (2,))
    buffer = GpuReplayBuffer(50, IMAGE, actions, "cpu", frame_stack=4, output_dtype="float")
    stream = Stream(1)
    for _ in range(30):
        obs, next_obs, _, *rest = stream.step()
        buffer.add(obs, next_obs, np.zeros((1, 2), np.float32), *rest)
    batch = draw(buffer)
    weight = torch.ones(1, requires_grad=True)
    loss = (batch.actions * weight).sum() + (batch.observations * weight).sum()
    batch.rewards.mul_(0.5)
    batch.next_observations.div_(2)
    loss.backward()  # autograd does not take the others for changed


class Pairs(ReplayBuffer):
    """Samples each transition with the one after it, with index arrays of two axes."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> ReplayBufferSamples:
        rows = np.stack([batch_inds, (batch_inds + 1) % self.size()], axis=1)
        envs = np.zeros_like(rows)
        names = ("observations", "actions", "next_observations", "dones", "rewards")
        return ReplayBufferSamples(*[self.to_torch(getattr(self, name)[rows, envs]) for name in names])


class DevicePairs(GpuObservations, Pairs):
    """The same on a device."""


def test_index_arrays_of_two_axes() -> None:
    ours, theirs = DevicePairs(50, IMAGE, ACTIONS, "cpu", frame_stack=4), Pairs(50, IMAGE, ACTIONS, "cpu")
    stream = Stream(1)
    for _ in range(30):
        step = stream.step()
        ours.add(*step)
        theirs.add(*step)
    assert_same(draw(ours), draw(theirs))
