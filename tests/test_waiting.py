"""What `add` has taken waits until several rows are stored at once. Whoever looks finds it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupting import interrupts
from kinds import steps
from stable_baselines3.common.buffers import RolloutBuffer
from twins import TWINS, Twin, assert_same_arrays, assert_same_draws, can_sample, sample

from sb3_extra_buffers.codecs.base import array_bytes
from sb3_extra_buffers.compressed import compressed_class, observations
from sb3_extra_buffers.frames import ObservationStore, writes
from sb3_extra_buffers.frames.store import FrameStore
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, GpuRolloutBuffer

N_ENVS = 2
GPU = Twin("replay", TWINS["replay"].sb3, GpuReplayBuffer)
GPU_ROLLOUT = Twin("rollout", TWINS["rollout"].sb3, GpuRolloutBuffer, rollout=True)
ALL = [*TWINS.values(), GPU, GPU_ROLLOUT]


def planned(twin: Twin, rows: int = 9, **ours: Any) -> tuple[Any, Any]:
    """Return buffers of which ours has nothing to find out first."""
    return twin.make(twin.default_kind, rows, N_ENVS, compression_method="delta", frame_stack=1, **ours)


def n_waiting(buffer: Any) -> int:
    return max(len(store.waiting) for store in buffer._stores.values())


def assert_counted(buffer: Any, *, lost: bool = False) -> None:
    """Assert that every frame is counted once for each who has it; if some may be lost, at least."""
    for store in buffer._stores.values():
        store.collect()
        ids = [store.frames.recent_ids.reshape(-1), *(table.ids.reshape(-1) for table in store.tables)]
        counted, held = (
            store.frames.counts,
            np.bincount(np.concatenate(ids).astype(int), minlength=len(store.frames.counts)),
        )
        assert (counted[1:] >= held[1:]).all() if lost else (counted[1:] == held[1:]).all()


def saved(buffer: Any, folder: Path) -> Any:
    buffer.save(folder / "buffer")  # to the same file again and again: only what has changed is written
    loaded = type(buffer).load(folder / "buffer")
    if hasattr(buffer, "env"):
        loaded.set_env(buffer.env)
    return loaded


READS: dict[str, Callable[[Any, Any, Path], None]] = {
    "sample": lambda ours, sb3, _: assert_same_draws(ours, sb3, sample(9), range(1)) if can_sample(sb3) else None,
    "arrays": lambda ours, sb3, _: assert_same_arrays(ours, sb3),
    "pickle": lambda ours, sb3, _: assert_same_arrays(pickle.loads(pickle.dumps(ours)), sb3),
    "deepcopy": lambda ours, sb3, _: assert_same_arrays(copy.deepcopy(ours), sb3),
    "save": lambda ours, sb3, folder: assert_same_arrays(saved(ours, folder), sb3),
}


@given(st.data())
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["dict-replay"], TWINS["nstep"], TWINS["her"], GPU], ids=str)
def test_whatever_reads(twin: Twin, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Rings that are shorter than what waits, too."""
    folder = tmp_path_factory.mktemp("saved")
    ours, sb3 = planned(twin, data.draw(st.sampled_from([1, 2, 3, 7, 20]), "rows"))
    left = iter(steps(twin.default_kind, N_ENVS, 40, end=0.3))
    for name in data.draw(st.lists(st.sampled_from([*READS]), min_size=1, max_size=4), "reads"):
        for _ in range(data.draw(st.integers(1, 10), "steps")):
            step = next(left)
            twin.add(ours, step)
            twin.add(sb3, step)
        READS[name](ours, sb3, folder)
    assert_counted(ours)


@pytest.mark.parametrize("twin", ALL, ids=lambda twin: twin.ours.__name__)
def test_the_caller_may_use_its_arrays_again(twin: Twin) -> None:
    ours, sb3 = planned(twin)
    for step in steps(twin.default_kind, N_ENVS, 9):
        twin.add(sb3, step)
        lent = copy.deepcopy(step)
        twin.add(ours, lent)
        for obs in (lent.obs, lent.next_obs):
            for part in obs.values() if isinstance(obs, dict) else [obs]:
                part[...] = 1
    assert n_waiting(ours) > 0
    assert_same_arrays(ours, sb3)
    assert n_waiting(ours) == 0


def test_arrays_that_lie_otherwise() -> None:
    twin = TWINS["replay"]
    ours, sb3 = planned(twin, 20)
    for i, step in enumerate(steps(twin.default_kind, N_ENVS, 30)):
        obs, next_obs, *rest = step.replay()
        if i % 3:
            obs, next_obs = np.ascontiguousarray(obs), np.asfortranarray(next_obs)
        elif i % 2:
            obs, next_obs = np.repeat(obs, 2, axis=-1)[..., ::2], next_obs[..., ::-1].copy()[..., ::-1]
        ours.add(obs, next_obs, *rest)
        sb3.add(obs, next_obs, *rest)
    assert_same_arrays(ours, sb3)


def test_views_show_it() -> None:
    twin = TWINS["rollout"]
    ours, sb3 = planned(twin)
    views = [buffer.observations.swapaxes(0, 1) for buffer in (ours, sb3)]
    for step in steps(twin.default_kind, N_ENVS, 9):
        twin.add(ours, step)
        twin.add(sb3, step)
        assert views[0].shape == views[1].shape
        np.testing.assert_array_equal(views[0][:, ours.pos - 1], views[1][:, sb3.pos - 1])


@pytest.mark.parametrize(("begun", "n", "written"), [(58, 6, [0]), (61, 5, [0, 1]), (64, 5, [1]), (126, 6, [0, 1, 2])])
def test_what_a_save_takes_for_changed(begun: int, n: int, written: list[int]) -> None:
    """Rows that waited together may be of two parts of the table, and at both ends of the ring."""
    ours, _ = planned(twin := TWINS["replay"], 130)
    given = steps(twin.default_kind, N_ENVS, begun + n)
    for step in given[:begun]:
        twin.add(ours, step)
    tables = [array._table for array in (ours.observations, ours.next_observations)]
    marks = [table.mark() for table in tables]
    for step in given[begun:]:
        twin.add(ours, step)
    assert n_waiting(ours) == 2 * n
    for table, mark in zip(tables, marks, strict=True):
        assert table.written_since(mark).nonzero()[0].tolist() == written


REFUSING = [TWINS["replay"], TWINS["dict-replay"], TWINS["her"], GPU]


@pytest.mark.parametrize("twin", REFUSING, ids=lambda twin: twin.ours.__name__)
def test_no_memory(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is stored, at last, there is no memory: who reads is told, and nothing is lost."""
    ours, sb3 = planned(twin, 7)
    refused = 0
    for i, step in enumerate(steps(twin.default_kind, N_ENVS, 60)):
        with monkeypatch.context() as patch:
            if i % 3:
                patch.setattr(FrameStore, "_resolve", no_memory)
                if n_waiting(ours):
                    with pytest.raises(MemoryError):
                        ours.memory_usage()
            before = ours.pos
            try:
                twin.add(ours, step)
            except MemoryError:
                refused += 1
                assert ours.pos == before
                continue
        twin.add(sb3, step)
        if i % 10 == 9:
            assert_same_arrays(ours, sb3)
    assert refused > 3
    assert_same_arrays(ours, sb3)
    assert_counted(ours)


def no_memory(*args: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("method", ["delta", "zstd3"])
@pytest.mark.parametrize("by", ["who reads", "the last row", "a row of new episodes"])
@pytest.mark.parametrize("twin", REFUSING, ids=lambda twin: twin.ours.__name__)
def test_ctrl_c_while_it_is_stored(twin: Twin, by: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who reads, or by the `add` after which there is no room to wait: at any instruction."""
    monkeypatch.setattr(writes, "ROWS", 4)
    reads = by == "who reads"
    given = (twin.default_kind, 4, N_ENVS)
    settings = {"compression_method": method, "frame_stack": 1}
    *before, last = (all_steps := steps(twin.default_kind, N_ENVS, 16, end=0))[:8]
    after = all_steps[8:]
    if by == "a row of new episodes":
        del before[-1]
        last, *after = steps(twin.default_kind, N_ENVS, 9, seed=1)
    where, interrupted, outcomes = 0, True, set()
    while interrupted:
        ours, sb3 = twin.make(*given, **settings)
        for step in before:
            twin.add(ours, step)
            twin.add(sb3, step)
        assert n_waiting(ours) == 2 * len(before) - 8  # of the last two or three steps

        def act(ours: Any = ours) -> None:
            ours.memory_usage() if reads else twin.add(ours, last)

        interrupted = interrupts(act, where, ("sb3_extra_buffers",))
        added = ours.pos != sb3.pos
        outcomes.add((interrupted, added))
        if added:
            twin.add(sb3, last)
        for step in after:
            twin.add(ours, step)
            twin.add(sb3, step)
        assert_same_arrays(ours, sb3)
        assert_counted(ours, lost=True)  # if it came just after some were let go: memory, no observation
        where += 31
    assert outcomes == ({(True, False), (False, False)} if reads else {(True, False), (True, True), (False, True)})


@pytest.mark.parametrize("n_before", [1, 3, 7])
def test_who_reads_after_ctrl_c_is_not_refused(n_before: int) -> None:
    *before, last = steps(TWINS["replay"].default_kind, N_ENVS, n_before + 1, end=0.1)
    where, interrupted = 0, True
    while interrupted:
        ours, sb3 = planned(TWINS["replay"], 20)
        for step in before:
            TWINS["replay"].add(ours, step)
            TWINS["replay"].add(sb3, step)

        def act(ours: Any = ours) -> None:
            TWINS["replay"].add(ours, last)

        interrupted = interrupts(act, where, ("sb3_extra_buffers",))
        if ours.pos != sb3.pos:
            TWINS["replay"].add(sb3, last)
        assert_same_arrays(ours, sb3)
        where += 1


@pytest.mark.parametrize("twin", REFUSING, ids=lambda twin: twin.ours.__name__)
@pytest.mark.parametrize("during", ["hold", "_resolve", "publish"])
def test_a_signal_comes_while_it_is_stored(twin: Twin, during: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler reads: that is refused where rows are about to be stored, and does no harm."""
    monkeypatch.setattr(writes, "ROWS", 4)
    ours, sb3 = planned(twin, 7)
    refused = 0

    def interrupted(owner: Any, name: str) -> None:
        usual = getattr(owner, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal refused
            for store in ours._stores.values():
                about_to = store.storing or store.prepared or store.accepted
                if about_to and (store.waiting or store.frames.is_holding):
                    refused += 1
                    with pytest.raises(RuntimeError, match="handler of a signal"):
                        pickle.dumps(ours)
            return usual(*args, **kwargs)

        monkeypatch.setattr(owner, name, step)

    interrupted(ObservationStore if during == "publish" else FrameStore, during)
    for step in steps(twin.default_kind, N_ENVS, 23):
        twin.add(ours, step)
        twin.add(sb3, step)
    assert refused > 3
    assert_same_arrays(ours, sb3)
    assert_counted(ours)


def test_two_threads_read() -> None:
    """Both find that something waits: it is stored once."""
    twin = TWINS["replay"]
    ours, sb3 = planned(twin)
    for i, step in enumerate(steps(twin.default_kind, N_ENVS, 40)):
        twin.add(ours, step)
        twin.add(sb3, step)
        store = ours._stores[None]
        if not store.waiting:
            continue
        with store.lock:
            other = threading.Thread(target=store.flush)
            other.start()
            other.join(0.01)  # by then it waits for the lock
            store.flush()
        other.join()
        if i % 10 == 9:
            assert_same_arrays(ours, sb3)
    assert_same_arrays(ours, sb3)
    assert_counted(ours)


class Beyond(RolloutBuffer):
    """Writes where there is no row, too."""

    def add(self, obs: Any, *args: Any) -> None:
        self.observations[self.pos + 1] = obs
        super().add(obs, *args)


def test_a_row_that_there_is_not() -> None:
    twin = TWINS["rollout"]
    ours, sb3 = (cls(**twin.arguments(twin.default_kind, 9, N_ENVS)) for cls in (compressed_class(Beyond), Beyond))
    for i, step in enumerate(steps(twin.default_kind, N_ENVS, 9)):
        for buffer in (ours, sb3):
            if i < 8:
                twin.add(buffer, step)
                continue
            with pytest.raises(IndexError, match="out of bounds"):
                twin.add(buffer, step)
    assert_same_arrays(ours, sb3)
    assert_counted(ours)


class Behind(RolloutBuffer):
    """Writes the row `back` before its own: at first, one that is counted from the end."""

    back = 1

    def add(self, obs: Any, *args: Any) -> None:
        self.observations[self.pos - self.back] = obs
        self.pos = (self.pos + 1) % self.buffer_size


@pytest.mark.parametrize("back", [1, 3, 7])
@pytest.mark.parametrize("n", [1, 2, 3, 9, 25])
def test_rows_that_are_counted_from_the_end(n: int, back: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Behind, "back", back)
    arguments = TWINS["rollout"].arguments(TWINS["rollout"].default_kind, 20, N_ENVS)
    ours = compressed_class(Behind)(**arguments, compression_method="delta", frame_stack=1)
    sb3 = Behind(**arguments)
    table = ours.observations._table
    table.part = 1  # each row is marked for itself
    table.parts = table.parts_of(table.stored)
    mark = table.mark()
    for step in steps(TWINS["rollout"].default_kind, N_ENVS, n, end=0):
        for buffer in (ours, sb3):
            TWINS["rollout"].add(buffer, step)
    assert n_waiting(ours)
    assert set(np.flatnonzero(table.written_since(mark))) == {(pos - back) % 20 for pos in range(n)}
    assert np.array_equal(ours.observations, sb3.observations)
    assert_counted(ours)


@pytest.mark.parametrize("limit", ["max_bytes", "spill_dir", "heap_bytes"])
def test_what_may_be_refused_does_not_wait(limit: str, tmp_path: Path) -> None:
    twin = GPU if limit == "heap_bytes" else TWINS["replay"]
    ours, sb3 = planned(twin, **{limit: tmp_path if limit == "spill_dir" else 1 << 20})
    for step in steps(twin.default_kind, N_ENVS, 9):
        twin.add(ours, step)
        twin.add(sb3, step)
        assert n_waiting(ours) == 0
    assert_same_arrays(ours, sb3)


@pytest.mark.parametrize(
    ("name", "stack", "rows", "at_once"),
    [
        *[("replay", 1, 699, 1), ("replay", 1, 700, 2), ("replay", 1, 2799, 7), ("replay", 1, 2800, 8)],
        *[("replay", 4, 1224, 1), ("replay", 4, 1225, 2), ("replay", 4, 3325, 8), ("replay", 4, 9000, 8)],
        *[("rollout", 1, 31, 1), ("rollout", 1, 32, 2), ("rollout", 1, 128, 8)],
        *[("rollout", 4, 55, 1), ("rollout", 4, 56, 2), ("rollout", 4, 151, 7)],
    ],
)
def test_rows_of_short_buffers_wait_less(
    name: str, stack: int, rows: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "WAITING", {"replay": 1 / 700, "rollout": 1 / 16})
    twin = TWINS[name]
    ours, _ = twin.make(twin.default_kind, rows, N_ENVS, compression_method="delta", frame_stack=stack)
    found = []
    for step in steps(twin.default_kind, N_ENVS, 17, end=0):
        twin.add(ours, step)
        found.append(n_waiting(ours) // (1 if twin.rollout else 2))
    assert found == [i % at_once for i in range(1, 18)]


def test_its_memory_is_counted() -> None:
    """Only new frames are kept, not the observations."""
    twin = TWINS["replay"]
    ours, sb3 = twin.make(twin.default_kind, 40, N_ENVS, compression_method="delta", frame_stack=4)
    for step in steps(twin.default_kind, N_ENVS, 3, end=0):
        twin.add(ours, step)
    assert n_waiting(ours) == 6
    store = ours._stores[None]
    frames, held = store.frames, store.frames._held
    assert held is not None
    assert 3 * N_ENVS * frames.frame_bytes < held.nbytes < 2 * sb3.observations[:3].nbytes
    assert frames.nbytes == array_bytes(frames) + frames.heap.nbytes + frames.coder.nbytes + held.nbytes
    assert store.nbytes == frames.nbytes + sum(table.nbytes for table in store.tables)
