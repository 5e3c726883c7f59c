"""What `memory_usage()` says, and that memory stays within what live frames need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from kinds import DICT_KINDS, KINDS, Kind, box, noise_frame, steps
from twins import METHODS, REPLAY, ROLLOUT, TWINS, Twin, fill_rollout

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.frames.lock import is_held_here
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer

ACTIONS = spaces.Discrete(4)


def frame(value: int, shape: tuple[int, ...] = (1, 20, 20)) -> Any:
    """One observation whose bytes differ from those of every other value."""
    obs = np.full((1, *shape), value % 200 + 1, np.uint8)
    obs[0, 0, 0, : value // 200] = 0
    return obs


def add(buffer: Any, obs: Any, next_obs: Any) -> None:
    buffer.add(obs, next_obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_empty_buffer(twin: Twin) -> None:
    ours, _ = twin.make(twin.default_kind, 8, 2)
    usage = ours.memory_usage()
    assert (usage.raw_bytes, usage.frames, usage.unique_frames, usage.ratio) == (0, 0, 0, 0.0)
    assert usage.stored_bytes >= 0
    assert usage.name == type(ours).__name__
    assert str(usage)


@pytest.mark.parametrize("method", METHODS)
def test_figures_of_frames_that_are_shared(method: str) -> None:
    """11 different frames: 10 observations, each the next observation of the one before."""
    buffer = CompressedReplayBuffer(40, box((1, 20, 20), np.uint8), ACTIONS, "cpu", compression_method=method)
    for i in range(10):
        add(buffer, frame(i), frame(i + 1))
    usage = buffer.memory_usage()
    assert usage.raw_bytes == 2 * 10 * 400
    assert usage.frames == 20
    assert usage.unique_frames == 11
    assert usage.ratio == usage.stored_bytes / usage.raw_bytes
    assert usage.parts == ()


@pytest.mark.parametrize("frame_stack", [4, "auto"])
def test_figures_of_stacks(frame_stack: Any) -> None:
    """Ten transitions of 8 frames each show 14 different ones."""
    buffer = CompressedReplayBuffer(
        40, box((4, 20, 20), np.uint8), ACTIONS, "cpu", compression_method="gzip", frame_stack=frame_stack
    )
    frames = np.concatenate([frame(i) for i in range(60)])[:, 0]
    for i in range(40):
        add(buffer, frames[None, i : i + 4], frames[None, i + 1 : i + 5])
    usage = buffer.memory_usage()
    assert usage.raw_bytes == 2 * 40 * 1600
    assert usage.frames == 2 * 40 * 4
    assert usage.unique_frames == 44
    assert usage.method == "gzip"


def test_figures_after_the_ring_has_wrapped() -> None:
    buffer = CompressedReplayBuffer(10, box((1, 20, 20), np.uint8), ACTIONS, "cpu", compression_method="none")
    for i in range(35):
        add(buffer, frame(i), frame(i + 1))
    usage = buffer.memory_usage()
    assert usage.raw_bytes == 2 * 10 * 400
    assert usage.frames == 20
    assert 11 <= usage.unique_frames <= 12  # the last frame of the stream may be remembered for comparing


def test_figures_of_frames_of_zeros() -> None:
    buffer = CompressedReplayBuffer(10, box((1, 20, 20), np.uint8), ACTIONS, "cpu")
    zeros = np.zeros((1, 1, 20, 20), np.uint8)
    for _ in range(5):
        add(buffer, zeros, zeros)
    usage = buffer.memory_usage()
    assert usage.frames == 10
    assert usage.unique_frames <= 1


def test_figures_of_several_envs() -> None:
    kind = Kind("noise", box((1, 20, 20), np.uint8), noise_frame((1, 20, 20)))
    buffer, _ = TWINS["replay"].make(kind, 10, 3, compression_method="zstd3")
    for step in steps(kind, 3, 10, end=0.0):
        TWINS["replay"].add(buffer, step)
    usage = buffer.memory_usage()
    assert usage.raw_bytes == 2 * 10 * 3 * 400
    assert usage.frames == 60
    assert usage.unique_frames == 33
    assert usage.stored_bytes >= 33 * 400


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["noise", "noise-of-4-channels", "int16", "int64"])
def test_noise_never_takes_much_more_than_its_size(kind: str, method: str) -> None:
    """At most 64 bytes more for each frame: what a first small buffer costs aside."""
    rows = 300
    small, _ = TWINS["replay"].make(KINDS[kind], 2, 2, compression_method=method)
    large, _ = TWINS["replay"].make(KINDS[kind], rows, 2, compression_method=method)
    for step in steps(KINDS[kind], 2, rows, end=0.0):
        TWINS["replay"].add(small, step)
        TWINS["replay"].add(large, step)
    usage = large.memory_usage()
    obs_bytes = int(np.prod(KINDS[kind].space.shape)) * KINDS[kind].space.dtype.itemsize
    raw = (usage.raw_bytes // 2) + 2 * obs_bytes  # next observations are shared
    segment = 70_000
    waiting = raw if method.startswith("zstd") else 0  # frames kept to train a dictionary
    assert usage.stored_bytes <= raw + 64 * usage.frames + segment + waiting + small.memory_usage().stored_bytes


@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_figures_of_rollouts(twin: Twin) -> None:
    kind = DICT_KINDS["image+vector"] if twin.keyed else KINDS["image"]
    ours, _ = twin.make(kind, 6, 2)
    for seed in range(3):
        fill_rollout(twin, [ours], steps(kind, 2, 6, seed=seed))
        usage = ours.memory_usage()
        assert usage.raw_bytes == 6 * 2 * (400 + (16 if twin.keyed else 0))
        assert usage.frames == 6 * 2 * (2 if twin.keyed else 1)
        list(ours.get(5))
        assert ours.memory_usage().raw_bytes == usage.raw_bytes


def test_parts_of_dicts() -> None:
    buffer, _ = TWINS["dict-replay"].make(DICT_KINDS["mixed"], 20, 2, compression_method="lz4-block")
    for step in steps(DICT_KINDS["mixed"], 2, 12):
        TWINS["dict-replay"].add(buffer, step)
    usage = buffer.memory_usage()
    parts = {part.name: part for part in usage.parts}
    assert set(parts) == set(DICT_KINDS["mixed"])
    assert parts["image"].method == "lz4-block"
    assert parts["image"].raw_bytes == 2 * 12 * 2 * 12 * 11 * 13
    assert parts["image"].frames == 2 * 12 * 2 * 4
    assert parts["discrete"].method == parts["choices"].method == "dense"
    assert parts["discrete"].raw_bytes == parts["discrete"].stored_bytes == 2 * 12 * 2 * 8
    for name in ("raw_bytes", "stored_bytes", "frames", "unique_frames"):
        assert getattr(usage, name) == sum(getattr(part, name) for part in usage.parts)
    assert usage.ratio == usage.stored_bytes / usage.raw_bytes


def test_one_key_is_no_part() -> None:
    space = spaces.Dict({"image": box((1, 20, 20), np.uint8)})
    buffer = CompressedDictReplayBuffer(4, space, ACTIONS, "cpu", compression_method="gzip", frame_stack=1)
    assert buffer.memory_usage().parts == ()
    assert buffer.memory_usage().method == "gzip"


def test_dense_observations_count_as_they_are() -> None:
    buffer = CompressedReplayBuffer(10, box((4,), np.float32), ACTIONS, "cpu")
    for _ in range(7):
        add(buffer, np.zeros((1, 4)), np.zeros((1, 4)))
    usage = buffer.memory_usage()
    assert (usage.method, usage.raw_bytes, usage.stored_bytes) == ("dense", 2 * 7 * 16, 2 * 7 * 16)
    assert usage.ratio == 1.0


def test_it_prints_as_a_table() -> None:
    buffer, _ = TWINS["dict-replay"].make(DICT_KINDS["image+vector"], 3_000, 2, compression_method="delta")
    for step in steps(DICT_KINDS["image+vector"], 2, 1_500):
        TWINS["dict-replay"].add(buffer, step)
    usage = buffer.memory_usage()
    header, rule, *rows = str(usage).splitlines()
    assert header.split() == ["observations", "method", "raw", "stored", "ratio", "frames", "unique"]
    assert set(rule) == {"-"}
    image, vector, total = (row.split() for row in rows)
    assert image[:4] == ["image", "delta", "2.4", "MB"]
    assert vector[:4] == ["vector", "dense", "96.0", "KB"]
    assert total[0] == "CompressedDictReplayBuffer"
    assert f"{usage.ratio:.2%}" in total
    assert f"{usage.frames:,}" in total
    assert len({len(row) for row in (header, *rows)}) == 1


def test_figures_are_a_value() -> None:
    buffer = CompressedReplayBuffer(4, box((1, 20, 20), np.uint8), ACTIONS, "cpu")
    before = buffer.memory_usage()
    assert before == buffer.memory_usage()
    add(buffer, frame(1), frame(2))
    assert before != buffer.memory_usage()
    assert before.raw_bytes == 0


def test_auto_says_what_it_chose() -> None:
    buffer = CompressedReplayBuffer(60, KINDS["stack"].space, ACTIONS, "cpu")
    for step in steps(KINDS["stack"], 1, 60):
        buffer.add(*step.replay())
    assert buffer.memory_usage().method in ("delta", "zstd")


SEGMENT = 1 << 16
"""Memory is bounded by what is alive and one segment, at most this."""


@pytest.mark.parametrize("method", ["auto", "delta", "none", "rle-jit", "gzip1", "zstd3", "zstd-100", "lz4-block"])
@pytest.mark.parametrize("kind", ["stack-view", "noise"])
def test_memory_is_bounded_over_ten_wraps(kind: str, method: str) -> None:
    """After ten wraps of the ring as after two, by the buffer's own account."""
    rows = 550 if method in ("auto", "zstd3") else 150  # zstd has trained its dictionaries by the second wrap
    buffer, _ = TWINS["replay"].make(KINDS[kind], rows, 2, compression_method=method)
    data = steps(KINDS[kind], 2, 2 * rows, end=0.02)  # over and over: enough to be new to a ring of half as many
    after = []
    for i in range(1, 10 * rows + 1):
        TWINS["replay"].add(buffer, data[i % len(data)])
        if i % rows == 0:
            after.append(buffer.memory_usage().stored_bytes)
    assert max(after[2:]) <= 1.1 * after[1] + SEGMENT, after
    assert max(after[5:]) <= 1.1 * after[4], after


@pytest.mark.parametrize("twin", REPLAY, ids=str)
def test_memory_of_each_replay_class_is_bounded(twin: Twin) -> None:
    rows = 60
    buffer, _ = twin.make(twin.default_kind, rows, 2, compression_method="delta")
    after = []
    for i, step in enumerate(steps(twin.default_kind, 2, 10 * rows, end=0.05), 1):
        twin.add(buffer, step)
        if i % rows == 0:
            after.append((buffer.memory_usage().stored_bytes, buffer.memory_usage().unique_frames))
    parts = len(buffer.memory_usage().parts) or 1
    assert after[-1][0] <= 1.1 * after[1][0] + SEGMENT * parts, after
    assert after[-1][1] <= 1.2 * after[1][1] + 10, after


@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_memory_of_rollouts_is_bounded(twin: Twin) -> None:
    """Each reset lets the old rollout go, also one that is still being read."""
    buffer, _ = twin.make(twin.default_kind, 40, 2, compression_method="delta")
    after = []
    for seed in range(10):
        fill_rollout(twin, [buffer], steps(twin.default_kind, 2, 40, seed=seed))
        reading = buffer.get(16)
        next(reading)
        after.append((buffer.memory_usage().stored_bytes, buffer.memory_usage().unique_frames))
    parts = len(buffer.memory_usage().parts) or 1
    assert after[-1][0] <= 1.1 * after[1][0] + SEGMENT * parts, after
    assert after[-1][1] <= 1.2 * after[1][1] + 10, after


def test_reset_lets_frames_go() -> None:
    twin = TWINS["rollout"]
    buffer, _ = twin.make(KINDS["noise"], 100, 2, compression_method="none")
    fill_rollout(twin, [buffer], steps(KINDS["noise"], 2, 100))
    assert buffer.memory_usage().unique_frames == 200
    buffer.reset()
    assert buffer.memory_usage().unique_frames <= 2


def test_a_slice_that_is_kept_does_not_keep_the_ring() -> None:
    buffer = CompressedReplayBuffer(50, box((1, 20, 20), np.uint8), ACTIONS, "cpu", compression_method="none")
    kept = []
    for i in range(500):
        add(buffer, frame(i), frame(i + 1))
        kept.append(buffer.observations[i % 50])
    assert buffer.memory_usage().unique_frames <= 52
    for i, obs in enumerate(kept):
        assert (obs == frame(i)).all()


def test_stacked_images_take_a_small_share() -> None:
    """The point of it all, on made-up frames: an eighth by sharing alone, far less with a codec."""
    shares, data = {}, steps(KINDS["stack-view"], 1, 1_500, end=0.01)
    for method in ("none", "delta", "zstd3"):
        buffer = CompressedReplayBuffer(1_500, KINDS["stack-view"].space, ACTIONS, "cpu", compression_method=method)
        for step in data:
            buffer.add(*step.replay())
        shares[method] = buffer.memory_usage().ratio
    assert shares["none"] < 0.16
    assert shares["delta"] < 0.06
    assert shares["zstd3"] < 0.1


@pytest.mark.parametrize("cls", [CompressedReplayBuffer, GpuReplayBuffer])
def test_how_full_it_is_is_asked_under_the_lock(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SB3 looks at `full`, then at `pos`: just as the ring becomes full, a buffer would seem empty."""
    kind = KINDS["stack"]
    buffer = cls(20, kind.space, spaces.Discrete(4), "cpu", n_envs=2)
    asked = []

    def noted(name: str) -> Any:
        method = getattr(cls, name)

        def note(self: Any, *args: Any) -> Any:
            asked.append((name, is_held_here(self._lock)))
            return method(self, *args)

        return note

    for name in ("size", "_place") if cls is GpuReplayBuffer else ("size",):
        monkeypatch.setattr(cls, name, noted(name))
    for step in steps(kind, 2, 3):
        buffer.add(*step.replay())
    buffer.sample(3)
    buffer.memory_usage()
    assert ("size", True) in asked
    assert all(held for _, held in asked)
