"""Buffers of small float vectors keep SB3's arrays and take the short way through `add` once it is safe."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from interrupting import interrupts
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.compressed import (
    CompressedObservations,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    ahead,
    compressed_class,
    small,
)
from sb3_extra_buffers.frames.lock import is_held_here

SPACE = spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)
ROWS, N_ENVS = 5, 3
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
MODULES = (small.__name__, ahead.__name__, ReplayBuffer.__module__)


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


def assert_same_state(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


FIELDS = ("obs", "next_obs", "action", "reward", "done", "infos")
BAD: dict[str, list[Any]] = {
    "obs": [
        np.zeros((N_ENVS, 16), np.float32),
        np.zeros((2, 17), np.float32),
        np.full((N_ENVS, 17), "1"),
        np.full((N_ENVS, 17), 1j),
        "no",
    ],
    "next_obs": [
        np.zeros((N_ENVS, 16), np.float32),
        np.zeros((2, 17), np.float32),
        None,
        "no",
        np.full((N_ENVS, 17), "no"),
    ],
    "action": [np.zeros((N_ENVS, 5), np.float32)],
    "reward": [np.zeros(2), np.zeros(1), "no", np.zeros((N_ENVS, 2)), np.full(N_ENVS, "no")],
    "done": [np.zeros(2, bool), np.zeros(1, bool), np.zeros((N_ENVS, 2))],
    "infos": [[], [{}], [{}] * 2, [None] * N_ENVS, None, 7],
}


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("n", [2, ROWS + 2])  # in the full ring each row holds something
def test_what_sb3_refuses_changes_nothing(field: str, n: int) -> None:
    for bad in BAD[field]:
        ours, theirs = make(), make(ReplayBuffer)
        for step in some_steps(n):
            ours.add(*step)
            theirs.add(*step)
        before, step = copy.deepcopy(theirs), some_steps(1)[0]
        step[FIELDS.index(field)] = bad
        try:
            theirs.add(*step)
        except (ValueError, TypeError, AttributeError):
            with pytest.raises((ValueError, TypeError, AttributeError)):
                ours.add(*step)
            assert_same_state(ours, before)
        else:
            ours.add(*step)
            assert_same_state(ours, theirs)


def test_errors_say_what_is_wrong() -> None:
    ours = make()
    with pytest.raises(ValueError, match="17"):
        ours.add(*wrong_step())
    step = some_steps(1)[0]
    with pytest.raises(ValueError, match="infos is a list of dicts"):
        ours.add(*step[:5], [{}] * 2)


@pytest.mark.parametrize(
    "step",
    [
        [np.ones(17, np.float32), np.ones(17), np.ones(6), 1.0, False, [{}]],
        [np.ones((1, 17)), [[1] * 17], np.ones((1, 6)), np.float32(1), np.array(True), ({},)],
    ],
    ids=["one-env", "other-types"],
)
def test_what_sb3_takes(step: list[Any]) -> None:
    ours, theirs = (cls(ROWS, SPACE, ACTIONS, "cpu") for cls in (CompressedReplayBuffer, ReplayBuffer))
    for _ in range(ROWS + 2):
        ours.add(*step)
        theirs.add(*step)
        assert_same_state(ours, theirs)


def wrong_step() -> list[Any]:
    step = some_steps(1)[0]
    step[1] = step[1][:, 1:]
    return step


@pytest.mark.parametrize(("pos", "full"), [(3, True), (0, True), (1, True), (4, False)])
@pytest.mark.parametrize("n", [1, ROWS + 2])
def test_rows_that_were_written_by_hand(n: int, pos: int, full: bool) -> None:
    """Somebody fills the arrays and says where to go on: that, too, stays as it was."""
    ours, theirs = make(), make(ReplayBuffer)
    for buffer in (ours, theirs):
        for step in some_steps(n):
            buffer.add(*step)
        for name in ARRAYS:
            getattr(buffer, name)[:] = 7
            getattr(buffer, name)[ROWS if full else pos :] = 0  # nobody reads these
        buffer.pos, buffer.full = pos, full
    with pytest.raises(ValueError, match="shape"):
        ours.add(*wrong_step())
    assert_same_state(ours, theirs)


@pytest.mark.parametrize(
    ("error", "dtype"), [(KeyboardInterrupt, np.float32), (TimeoutError, np.float32), (TimeoutError, np.float64)]
)
@pytest.mark.parametrize("n", [0, 2, ROWS, ROWS + 2, 2 * ROWS])
def test_interrupted_anywhere(n: int, error: type[BaseException], dtype: Any) -> None:
    """Ctrl-C, or an alarm, arrives after any instruction: what was there is there, or the whole step is."""
    step, where, interrupted = some_steps(n + 1)[n], 0, True
    step[0] = step[0].astype(dtype)  # SB3 casts
    while interrupted:
        ours, before, after = make(), make(ReplayBuffer), make(ReplayBuffer)
        for some in some_steps(n):
            for buffer in (ours, before, after):
                buffer.add(*some)
        after.add(*step)
        interrupted = interrupts(lambda ours=ours: ours.add(*step), where, MODULES, error)
        assert_same_state(ours, after if ours.pos == after.pos else before)
        assert not is_held_here(ours._lock)
        where += 1
    assert where > 100


ROLLOUT_FIELDS = ("obs", "action", "reward", "episode_start", "value", "log_prob")


def rollout_steps(n: int) -> list[list[Any]]:
    random = np.random.default_rng(0)
    return [
        [
            random.normal(size=(N_ENVS, 17)).astype(np.float32),
            random.normal(size=(N_ENVS, 6)).astype(np.float32),
            random.normal(size=N_ENVS),
            random.random(N_ENVS) < 0.3,
            torch.from_numpy(random.normal(size=(N_ENVS, 1))).float(),
            torch.from_numpy(random.normal(size=N_ENVS)).float(),
        ]
        for _ in range(n)
    ]


def rollout(cls: Any = CompressedRolloutBuffer) -> Any:
    return cls(ROWS, SPACE, ACTIONS, "cpu", n_envs=N_ENVS)


def assert_same_rollout(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    for name in (*ahead.ROLLOUT, "returns", "advantages"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_rollouts_as_sb3() -> None:
    ours, theirs = rollout(), rollout(RolloutBuffer)
    for turn in range(3):
        for i, step in enumerate(rollout_steps(ROWS)):
            ours.add(*step) if (i + turn) % 2 else ours.add(
                *step[:2], **dict([*zip(ROLLOUT_FIELDS, step, strict=True)][2:])
            )
            theirs.add(*step)
            assert_same_rollout(ours, theirs)
        for buffer in (ours, theirs):
            buffer.compute_returns_and_advantage(torch.ones(N_ENVS), np.zeros(N_ENVS))
        batches = []
        for buffer in (ours, theirs):
            np.random.seed(turn)
            batches.append(list(buffer.get(4)))
        for one, other in zip(*batches, strict=True):
            assert all(map(torch.equal, one, other))
        for obs in (step[0], step[0][0]):  # after `get` SB3's arrays have other shapes: one of these fits
            with pytest.raises((IndexError, ValueError)):
                ours.add(obs, *step[1:])
            assert_same_rollout(ours, theirs)
        ours.reset()
        theirs.reset()


BAD_ROLLOUT: dict[str, list[Any]] = {
    "obs": [np.zeros((N_ENVS, 16), np.float32), np.zeros((2, 17), np.float32), "no", None],
    "action": [np.zeros((N_ENVS, 5), np.float32), None],
    "reward": [np.zeros(2), "no", np.zeros((N_ENVS, 2))],
    "episode_start": [np.zeros(2), "no"],
    "value": [None, torch.zeros(2), np.zeros(N_ENVS)],
    "log_prob": [None, torch.zeros(2)],
}


@pytest.mark.parametrize("field", BAD_ROLLOUT)
@pytest.mark.parametrize("n", [0, 2, ROWS])
def test_what_sb3_refuses_in_a_rollout_changes_nothing(field: str, n: int) -> None:
    for bad in BAD_ROLLOUT[field]:
        ours, theirs = rollout(), rollout(RolloutBuffer)
        for step in rollout_steps(n):
            ours.add(*step)
            theirs.add(*step)
        before, step = copy.deepcopy(theirs), rollout_steps(1)[0]
        step[ROLLOUT_FIELDS.index(field)] = bad
        refused = (ValueError, TypeError, AttributeError, IndexError)
        try:
            theirs.add(*step)
        except refused:
            with pytest.raises(refused):
                ours.add(*step)
            assert_same_rollout(ours, before)
        else:
            ours.add(*step)
            assert_same_rollout(ours, theirs)


@pytest.mark.parametrize("n", [0, 2, ROWS - 1])
def test_a_rollout_that_is_interrupted_anywhere(n: int) -> None:
    step, where, interrupted = rollout_steps(n + 1)[n], 0, True
    while interrupted:
        ours, before, after = rollout(), rollout(RolloutBuffer), rollout(RolloutBuffer)
        for some in rollout_steps(n):
            for buffer in (ours, before, after):
                buffer.add(*some)
        after.add(*step)
        interrupted = interrupts(lambda ours=ours: ours.add(*step), where, MODULES)
        assert_same_rollout(ours, after if ours.pos == after.pos else before)
        assert not is_held_here(ours._lock)
        where += 1
    assert where > 50


def test_a_rollout_that_is_set_back() -> None:
    ours = rollout()
    for step in rollout_steps(3):
        ours.add(*step)
    before, step = copy.deepcopy(ours), rollout_steps(1)[0]
    ours.pos = before.pos = 1
    with pytest.raises((ValueError, TypeError, AttributeError)):
        ours.add(*step[:5], None)
    assert_same_rollout(ours, before)


def test_steps_by_name_in_between() -> None:
    ours, theirs = make(), make(ReplayBuffer)
    for i, step in enumerate(some_steps(3 * ROWS)):
        ours.add(*step) if i < ROWS + 2 or i >= 2 * ROWS + 2 else ours.add(**dict(zip(FIELDS, step, strict=True)))
        theirs.add(*step)
        if i >= 2 * ROWS + 1:
            with pytest.raises(ValueError, match="17"):
                ours.add(*wrong_step())
        assert_same_state(ours, theirs)


def test_arguments_that_add_does_not_have() -> None:
    for ours, step in ((make(), some_steps(1)[0]), (rollout(), rollout_steps(1)[0])):
        for args, named in ((step, {"note": 1}), (step[:5], {}), ([*step, 7], {}), ([], {}), (step, {"obs": step[0]})):
            with pytest.raises(TypeError):
                ours.add(*args, **named)
        assert ours.pos == 0
        ours.add(*step)
        assert [*inspect.signature(ours.add).parameters] == [*inspect.signature(SB3[type(ours)].add).parameters][1:]


SB3 = {CompressedReplayBuffer: ReplayBuffer, CompressedRolloutBuffer: RolloutBuffer}


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


class Noting(ReplayBuffer):
    """Takes one argument more, and may raise after all is written."""

    noted: Any = None
    raises = False

    def add(self, *args: Any, note: Any = None) -> None:
        super().add(*args)
        self.noted = note
        if self.raises:
            raise RuntimeError


class CompressedNoting(CompressedReplayBuffer, Noting):
    pass


@pytest.mark.parametrize("cls", [CompressedNoting, compressed_class(Noting)])
def test_classes_behind_that_add(cls: Any) -> None:
    ours, theirs = make(cls), make(ReplayBuffer)
    for i, step in enumerate(some_steps(ROWS + 2)):
        ours.add(*step, note=i)
        theirs.add(*step)
        assert ours.noted == i
    ours.raises = True
    for named in ({}, {"note": 7}):
        with pytest.raises(RuntimeError):
            ours.add(*some_steps(1)[0], **named)
        assert_same_state(ours, theirs)


def test_mixins_between_are_asked() -> None:
    class Counting(CompressedObservations):
        added = 0

        def add(self, *args: Any, **kwargs: Any) -> None:
            self.added += 1
            super().add(*args, **kwargs)

    class Both(CompressedReplayBuffer, Counting):
        pass

    ours = make(Both)
    for step in some_steps(4):
        ours.add(*step)
    assert ours.added == 4


class Meanwhile(dict[str, Any]):
    """An info dict that does something when SB3's `add` reads it: when most of the row is written."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act

    def get(self, *args: Any) -> Any:
        self.act()
        return False


def numbered(i: int) -> list[Any]:
    """Return a step that has the same number in all of its fields."""
    n = i % 251
    fields = (np.full((N_ENVS, 17), n), np.full((N_ENVS, 17), n), np.full((N_ENVS, 6), n), np.full(N_ENVS, n))
    return [*(field.astype(np.float32) for field in fields), np.zeros(N_ENVS, bool), [{}] * N_ENVS]


def assert_whole(batch: Any) -> None:
    for field in (batch.observations, batch.next_observations, batch.actions):
        assert torch.equal(field, batch.rewards.expand_as(field))


@pytest.mark.parametrize("act", ["sample", "save", "add"])
@pytest.mark.parametrize("n", [1, ROWS, ROWS + 2])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_other_threads_wait_for_an_add(n_threads: int, n: int, act: str, tmp_path: Path) -> None:
    """Also for one that took no lock: until then, only one thread had to do with the buffer."""
    ours, done = make(), []

    def other(k: int) -> None:
        if act == "sample":
            assert_whole(ours.sample(20))
        elif act == "save":
            ours.save(tmp_path / f"buffer{k}")
        else:
            ours.add(*numbered(n + 1))
        done.append(act)

    def meanwhile() -> None:
        for thread in threads:
            if not thread.ident:
                thread.start()
                thread.join(0.1)
        assert not done

    threads = [threading.Thread(target=other, args=(k,)) for k in range(n_threads)]
    for i in range(n):
        ours.add(*numbered(i))
    ours.add(*numbered(n)[:5], [Meanwhile(meanwhile)] * N_ENVS)
    for thread in threads:
        thread.join()
    assert len(done) == n_threads
    assert ours.size() == min(n + 1 + n_threads * (act == "add"), ROWS)
    assert_whole(ours.sample(20))
    for k in range(n_threads if act == "save" else 0):
        assert_same_state(type(ours).load(tmp_path / f"buffer{k}"), ours)


def test_the_handler_of_a_signal_cannot_save_half_an_add(tmp_path: Path) -> None:
    ours = make()

    def handler() -> None:
        with pytest.raises(RuntimeError, match="handler of a signal"):
            ours.save(tmp_path / "buffer")

    for i in range(ROWS):
        ours.add(*numbered(i)[:5], [Meanwhile(handler)] * N_ENVS)
    ours.save(tmp_path / "buffer")


@contextmanager
def adding_threads(ours: Any, n: int) -> Iterator[list[int]]:
    """Add in `n` threads, which take turns as often as Python can; gives how many steps each has added."""
    stop, added, interval = threading.Event(), [0] * n, sys.getswitchinterval()

    def write(k: int) -> None:
        while not stop.is_set():
            ours.add(*numbered(added[k]))
            added[k] += 1

    threads = [threading.Thread(target=write, args=(k,)) for k in range(n)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        yield added
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_add_while_another_samples(n_threads: int) -> None:
    ours = make()
    with adding_threads(ours, n_threads) as added:
        while not ours.full:
            pass
        for _ in range(200):
            assert_whole(ours.sample(20))
    assert ours.pos == sum(added) % ROWS


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_add_while_the_first_one_does(n_threads: int) -> None:
    for _ in range(10):  # at first, that one takes no lock
        ours = make()
        for i in range(ROWS):
            ours.add(*numbered(i))
        with adding_threads(ours, n_threads) as added:
            for i in range(50):
                ours.add(*numbered(i))
            assert_whole(ours.sample(100))
        assert ours.pos == (50 + sum(added)) % ROWS
        assert_whole(ours.sample(100))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_sample_while_the_first_one_adds(n_threads: int) -> None:
    interval = sys.getswitchinterval()
    for _ in range(10):
        ours, stop, sampled = make(), threading.Event(), [0] * n_threads
        for i in range(ROWS):
            ours.add(*numbered(i))

        def read(k: int, ours: Any = ours, stop: threading.Event = stop, sampled: list[int] = sampled) -> None:
            while not stop.is_set():
                assert_whole(ours.sample(20))
                sampled[k] += 1

        threads = [threading.Thread(target=read, args=(k,)) for k in range(n_threads)]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            i = 0
            while all(thread.is_alive() for thread in threads) and min(sampled) < 5:
                ours.add(*numbered(i := i + 1))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)
        assert min(sampled) >= 5


def in_the_middle_of_an_add(ours: Any, act: Callable[[], None]) -> None:
    """Have another thread add steps, and act while it does so."""
    inside, acted = threading.Event(), []

    def meanwhile() -> None:
        inside.set()
        threading.Event().wait(0.1)
        assert not acted

    def write() -> None:
        for i in range(ROWS + 1):
            ours.add(*numbered(i))
        ours.add(*numbered(0)[:5], [Meanwhile(meanwhile), *[{}] * (N_ENVS - 1)])

    thread = threading.Thread(target=write)
    thread.start()
    assert inside.wait(60)
    act()
    acted.append(True)
    thread.join()


def test_who_added_first_waits_too() -> None:
    ours = make()
    for i in range(3):
        ours.add(*numbered(i))
    in_the_middle_of_an_add(ours, lambda: ours.add(*numbered(7)))
    assert ours.pos == (3 + ROWS + 3) % ROWS
    assert_whole(ours.sample(50))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and later, where torch has threads
def test_fork_while_another_thread_adds() -> None:
    """The child finds whole steps, and waits for nobody."""
    ours = make()
    child = multiprocessing.get_context("fork").Process(target=use, args=(ours,))
    in_the_middle_of_an_add(ours, child.start)
    child.join(60)
    assert child.exitcode == 0


def use(ours: Any) -> None:
    for i in range(ROWS):
        assert_whole(ours.sample(20))
        ours.add(*numbered(i))
