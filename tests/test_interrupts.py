"""Ctrl-C in the middle of an `add`, at any instruction: the step is in the buffer as a whole, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interrupting import interrupts
from kinds import KINDS, Kind, steps
from twins import TWINS, Twin, assert_same_arrays, assert_same_draws, can_sample, sample

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer
from sb3_extra_buffers.recording import RecordBuffer

N_ENVS = 2
GPU = Twin("replay", TWINS["replay"].sb3, GpuReplayBuffer, keyed=False, rollout=False)
MODULES = ("sb3_extra_buffers", "stable_baselines3")


def check(twin: Twin, rows: int, before: int, stride: int, kind: Kind | None = None, **given: Any) -> None:
    """Interrupt the `add` after so many, at every so manieth instruction. What comes after is right, too."""
    shown = kind or twin.default_kind
    all_steps = steps(shown, N_ENVS, before + 8, end=0.3)
    where, interrupted, outcomes = 0, True, set()
    while interrupted:
        ours, sb3 = twin.make(shown, rows, N_ENVS, **given)
        for step in all_steps[:before]:
            twin.add(ours, step)
            twin.add(sb3, step)
        if can_sample(sb3):
            ours.sample(3)  # what is kept to sample faster must not be wrong afterwards

        def add(buffer: Any = ours) -> None:
            twin.add(buffer, all_steps[before])

        interrupted = interrupts(add, where, MODULES)
        added = ours.pos != sb3.pos
        outcomes.add((interrupted, added))
        if added:
            twin.add(sb3, all_steps[before])
        for step in all_steps[before + 1 :]:
            assert_same_arrays(ours, sb3)
            twin.add(ours, step)
            twin.add(sb3, step)
        assert_same_arrays(ours, sb3)
        if can_sample(sb3):
            assert_same_draws(ours, sb3, sample(40), seeds=[0])
        where += stride
    assert outcomes == {(True, False), (True, True), (False, True)}


@pytest.mark.parametrize("method", ["delta", "zstd3"])
@pytest.mark.parametrize("name", ["replay", "dict-replay", "her"])
def test_a_step_is_added_or_not(name: str, method: str) -> None:
    """The ring is full, so each step overwrites one."""
    check(TWINS[name], 4, 6, 17, compression_method=method)


@pytest.mark.parametrize("method", ["delta", "delta/2", "zstd3", "rle"])
def test_a_compressed_step(method: str) -> None:
    """`frame_stack` is given, so nothing is planned: codecs are at work from the start."""
    check(TWINS["replay"], 4, 6, 17, compression_method=method, frame_stack=4)


@pytest.mark.parametrize("method", ["none", "near", "zstd3"])
@pytest.mark.parametrize("kind", ["pictures", "pictures-last"])
def test_a_step_of_pictures(kind: str, method: str) -> None:
    """Each one brings new colours, which are known from then on, whether it is stored or not."""
    filtered = {"compression_kwargs": {"filter": "palette"}, "frame_stack": 1}
    check(TWINS["replay"], 4, 1, 17, KINDS[kind], compression_method=method, **filtered)


@pytest.mark.parametrize("name", ["replay", "dict-replay"])
def test_the_step_that_plans(name: str) -> None:
    """After it all that came before is stored anew."""
    check(TWINS[name], 12, 8, 101 if name == "dict-replay" else 43, compression_method="delta")


@pytest.mark.parametrize("method", ["delta", "none", "rle"])
def test_a_step_on_a_device(method: str) -> None:
    check(GPU, 4, 6, 17, compression_method=method, frame_stack=4)


def test_the_step_that_plans_on_a_device() -> None:
    check(GPU, 12, 8, 43)


@pytest.mark.parametrize("method", [None, "delta"])
def test_a_step_of_a_record(method: str | None) -> None:
    """The oldest step becomes the newest one, as a whole."""
    given = [np.random.default_rng(i).integers(0, 256, (8, 9, 3), np.uint8) for i in range(7)]

    def made(n: int) -> Any:
        record = RecordBuffer((8, 9), 3, 4, compression_method=method)
        for i in range(n):
            record.add(given[i], i, i, done=bool(i % 2))
        return record

    def seen(record: Any) -> list[Any]:
        return [np.asarray(part).tolist() for part in record[:]]

    before, after = seen(made(6)), seen(made(7))
    where, outcomes = 0, set()
    while True:
        record = made(6)
        interrupted = interrupts(lambda record=record: record.add(given[6], 6, 6), where, MODULES)
        found = seen(record)
        assert found in (before, after)
        outcomes.add((interrupted, found == after))
        if not interrupted:
            break
        where += 1 if method is None else 13
    assert outcomes == {(True, False), (True, True), (False, True)}
