"""`save` and `load`: the buffer that comes out is the one that went in, goes on like it, and is saved again cheaply."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import storing
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import DICT_KINDS, KINDS, box, endless_steps, steps
from stable_baselines3.common.buffers import ReplayBuffer
from test_persistence import ALL_REPLAY, METHODS, NOTED, filled, goes_on, set_env
from twins import (
    ROLLOUT,
    TWINS,
    Twin,
    assert_same,
    assert_same_arrays,
    assert_same_draws,
    fill_rollout,
    minibatches,
    sample,
)

from sb3_extra_buffers.compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    DamagedFileError,
    compressed_class,
)
from sb3_extra_buffers.frames import files
from sb3_extra_buffers.frames.observations import IdTable
from sb3_extra_buffers.frames.store import FrameStore

STORED = Path(__file__).parent / "stored"


def again(buffer: Any, path: Path) -> Any:
    """Save, load."""
    buffer.save(path)
    copied = type(buffer).load(path)
    set_env(copied)
    return copied


@pytest.mark.parametrize("n", [0, 1, 4, 10, 23])
@pytest.mark.parametrize("twin", ALL_REPLAY, ids=str)
def test_replay_buffers_go_on(twin: Twin, n: int, tmp_path: Path) -> None:
    ours, sb3, more = filled(twin, n)
    copied = again(ours, tmp_path / "buffer")
    if n < 4:
        assert_same_arrays(copied, sb3)
        twin.add(copied, more[0])
        assert copied.size() == n + 1
        return
    goes_on(twin, copied, sb3, more)


@pytest.mark.parametrize("method", [*METHODS, "delta/2"])
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["dict-replay"]], ids=str)
def test_each_method_goes_on(twin: Twin, method: str, tmp_path: Path) -> None:
    ours, sb3, more = filled(twin, 170, method=method, rows=30)
    goes_on(twin, again(ours, tmp_path / "buffer"), sb3, more)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_observation(kind: str, tmp_path: Path) -> None:
    twin, data = TWINS["replay"], steps(KINDS[kind], 2, 40)
    ours, sb3 = twin.make(KINDS[kind], 12, 2)
    for step in data:
        twin.add(ours, step)
        twin.add(sb3, step)
        if ours.pos % 5 == 0:
            ours = again(ours, tmp_path / "buffer")
            assert ours.observation_space == sb3.observation_space
            assert ours.action_space == sb3.action_space
            assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(20))


@pytest.mark.parametrize("kind", DICT_KINDS)
def test_each_kind_of_dict(kind: str, tmp_path: Path) -> None:
    twin, data = TWINS["dict-replay"], steps(DICT_KINDS[kind], 2, 30)
    ours, sb3 = twin.make(DICT_KINDS[kind], 12, 2)
    for step in data:
        twin.add(ours, step)
        twin.add(sb3, step)
    ours = again(ours, tmp_path / "buffer")
    assert ours.observation_space == sb3.observation_space
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(20))


@pytest.mark.parametrize(
    "settings",
    [
        {"compression_method": "zstd3", "compression_kwargs": {"filter": "palette", "dictionary_bytes": 500}},
        {"compression_method": "delta", "compression_kwargs": {"keys": 3, "filter": "interleave"}},
        {"compression_method": "delta/2", "compression_kwargs": {"keys": 0}},
        {"compression_method": "rle", "dtypes": {"elem_type": np.uint8, "runs_type": np.uint16}},
        {"output_dtype": "float", "frame_stack": 1},
        {"normalize_images": True, "max_bytes": 10_000_000},
    ],
)
@pytest.mark.parametrize("kind", ["pictures", "pictures-last", "picture-stack"])
def test_settings_survive(settings: dict[str, Any], kind: str, tmp_path: Path) -> None:
    twin, data = TWINS["replay"], steps(KINDS[kind], 2, 160)
    settings = {"frame_stack": KINDS[kind].stack, **settings}
    one, other = (twin.make(KINDS[kind], 20, 2, **settings)[0] for _ in range(2))
    for step in data[:150]:
        twin.add(one, step)
        twin.add(other, step)
    copied = again(one, tmp_path / "buffer")
    for step in data[150:]:
        twin.add(copied, step)
        twin.add(other, step)
        assert_same_draws(copied, other, sample(20), range(1))
    got, wanted = copied.memory_usage(), other.memory_usage()
    assert (got.method, got.raw_bytes, got.frames) == (wanted.method, wanted.raw_bytes, wanted.frames)


@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_rollout_buffers_go_on(twin: Twin, tmp_path: Path) -> None:
    """Saved while filling, when full, and after the first `get`."""
    path = tmp_path / "buffer"
    ours, sb3, more = filled(twin, 6)
    ours = again(ours, path)
    assert type(ours) is twin.ours
    for step in more[:4]:
        twin.add(ours, step)
        twin.add(sb3, step)
    for buffer in (ours, sb3):
        buffer.compute_returns_and_advantage(more[3].value, more[3].done)
    ours = again(ours, path)
    assert_same_arrays(ours, sb3)
    for _ in range(2):
        assert_same_draws(ours, sb3, minibatches(7))
        ours = again(ours, path)
        assert_same_arrays(ours, sb3)
    fill_rollout(twin, (ours, sb3), more)
    ours = again(ours, path)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, minibatches(None))


def test_hindsight_infos(tmp_path: Path) -> None:
    twin = TWINS["her"]
    ours, sb3 = twin.make(twin.default_kind, 20, 2, sb3={"copy_info_dict": True, "goal_selection_strategy": "final"})
    for step in steps(twin.default_kind, 2, 33, end=0.2):
        twin.add(ours, step)
        twin.add(sb3, step)
    copied = again(ours, tmp_path / "buffer")
    assert copied.goal_selection_strategy == sb3.goal_selection_strategy
    assert copied.infos.tolist() == sb3.infos.tolist()
    assert_same_draws(copied, sb3, sample(20))


def test_attributes_of_every_sort(tmp_path: Path) -> None:
    buffer = NOTED.ours(10, box((1, 20, 20), np.uint8), spaces.Discrete(4), "cpu", note="kept ☂")
    buffer.extra = {
        "number": 1.5,
        "not a number": float("nan"),
        "large": 10**30,
        7: [None, True, (1, "two"), [deque([1, 2, 3], maxlen=3)]],
        "scalar": np.float32(0.1),
        "bytes": bytes(range(256)),
        "dtype": np.dtype(np.int16),
        "type": np.uint8,
        "objects": np.array([[{"a": np.arange(3)}, None], ["text", (1,)]], object),
        "tensor": torch.arange(6).reshape(2, 3),
        "device": torch.device("cpu"),
        "space": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary([2, 3])]),
        "none": np.zeros((0, 5)),
    }
    copied = again(buffer, tmp_path / "buffer")
    assert copied.note == "kept ☂"
    got, wanted = copied.extra, buffer.extra
    assert list(got) == list(wanted)
    assert got[7] == wanted[7]
    assert got[7][3][0].maxlen == 3
    assert got["not a number"] != got["not a number"]
    assert type(got["scalar"]) is np.float32
    assert got["scalar"] == wanted["scalar"]
    assert torch.equal(got["tensor"], wanted["tensor"])
    assert got["objects"].shape == (2, 2)
    assert got["objects"][0, 0]["a"].tolist() == [0, 1, 2]
    assert_same(got["none"], wanted["none"])
    for name in ("number", "large", "bytes", "dtype", "type", "device", "space"):
        assert got[name] == wanted[name], name
        assert type(got[name]) is type(wanted[name]), name


@pytest.mark.parametrize("value", [object(), {1, 2}, threading.Lock(), {"deep": [lambda: 1]}, np.array([object()])])
def test_an_attribute_that_cannot_be_saved(value: Any, tmp_path: Path) -> None:
    buffer = NOTED.ours(10, box((1, 20, 20), np.uint8), spaces.Discrete(4), "cpu")
    buffer.extra = value
    with pytest.raises(TypeError, match=r"extra.* cannot be saved"):
        buffer.save(tmp_path / "buffer")
    assert os.listdir(tmp_path) == []
    del buffer.extra
    again(buffer, tmp_path / "buffer")


def test_the_class_has_to_be_the_same(tmp_path: Path) -> None:
    twin = TWINS["replay"]
    ours, _, _ = filled(twin, 5)
    ours.save(tmp_path / "buffer")
    with pytest.raises(TypeError, match="holds a CompressedReplayBuffer, not a CompressedDictReplayBuffer"):
        CompressedDictReplayBuffer.load(tmp_path / "buffer")
    with pytest.raises(TypeError, match="holds a CompressedReplayBuffer"):
        CompressedArray.load(tmp_path / "buffer")
    with pytest.raises(FileNotFoundError):
        CompressedReplayBuffer.load(tmp_path / "none")
    assert type(compressed_class(ReplayBuffer).load(tmp_path / "buffer")) is CompressedReplayBuffer


class Touch:
    """Unpickling it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    (tmp_path / "buffer").write_bytes(pickle.dumps(Touch(tmp_path / "trace")))
    with pytest.raises(DamagedFileError):
        CompressedReplayBuffer.load(tmp_path / "buffer")
    assert not (tmp_path / "trace").exists()


@settings(max_examples=25)
@given(
    name=st.sampled_from([twin.name for twin in ALL_REPLAY if twin.name != "noted"]),
    method=st.sampled_from(["auto", "delta", "delta/2", "zstd3", "none", "rle-jit"]),
    rows=st.integers(1, 20),
    turns=st.lists(
        st.tuples(st.integers(0, 15), st.sampled_from(["save", "other", "load", "copy", "pickle"])), max_size=12
    ),
)
def test_any_history(name: str, method: str, rows: int, turns: list[Any], tmp_path_factory: Any) -> None:
    """Added to, saved here and there, loaded, copied: what a file holds is what the buffer held when it was saved."""
    twin, path = TWINS[name], tmp_path_factory.mktemp("history")
    ours, sb3 = twin.make(twin.default_kind, rows, 2, compression_method=method)
    data = endless_steps(twin.default_kind, 2, end=0.3)
    kept = {}
    for n, what in turns:
        for _ in range(n):
            step = next(data)
            twin.add(ours, step)
            twin.add(sb3, step)
        if what in ("save", "other"):
            ours.save(path / what)
            kept[what] = copy.deepcopy(sb3)
        elif what == "load":
            ours.save(path / "loaded")
            ours = twin.ours.load(path / "loaded")
        else:
            ours = copy.deepcopy(ours) if what == "copy" else pickle.loads(pickle.dumps(ours))
        set_env(ours)
        assert_same_arrays(ours, sb3)
        for file, wanted in kept.items():
            assert_same_arrays(twin.ours.load(path / file), wanted)


@pytest.fixture
def small_blocks(monkeypatch: Any) -> None:
    """Arrays of a few rows have as many blocks as those of a million otherwise."""
    monkeypatch.setattr(files, "BLOCK", 1 << 10)
    monkeypatch.setattr(IdTable, "part", 7)


@pytest.mark.parametrize("method", ["auto", "delta", "delta/2", "zstd3", "none"])
@pytest.mark.parametrize("loaded_first", [True, False])
@pytest.mark.usefixtures("small_blocks")
def test_a_later_save_knows_what_has_changed(method: str, loaded_first: bool, tmp_path: Path) -> None:
    """Rows are added, and written here and there, by all doors; to two files, in turns."""
    twin, rng = TWINS["replay"], np.random.default_rng(0)
    ours, sb3 = twin.make(twin.default_kind, 300, 2, compression_method=method)
    data = endless_steps(twin.default_kind, 2, end=0.02)
    doors: list[Callable[[int], Any]] = [
        lambda row: row,
        lambda row: row - 300,
        lambda row: (row, 1),
        lambda row: slice(row, row + 5),
        lambda row: [row, (7 * row) % 300],
        lambda row: (row, 0, 0, 3),
    ]
    appended = 0
    for turn in range(60):
        for _ in range(int(rng.integers(0, 25 if turn > 15 else 60))):
            step = next(data)
            twin.add(ours, step)
            twin.add(sb3, step)
        if turn % 3 == 2:
            array = ("observations", "next_observations")[turn % 2]
            index = doors[int(rng.integers(len(doors)))](int(rng.integers(290)))
            value = np.asarray(getattr(sb3, array)[index])[..., ::-1].copy()
            getattr(ours, array)[index] = value
            getattr(sb3, array)[index] = value
            sb3.rewards[turn] = ours.rewards[turn] = turn
        path = tmp_path / str(int(rng.integers(2)))
        before = path.stat().st_ino if path.exists() else None
        ours.save(path)
        appended += path.stat().st_ino == before
        copied = twin.ours.load(path)
        assert_same_arrays(copied, sb3)
        ours = copied if loaded_first else ours
    assert appended > 5


@pytest.mark.usefixtures("small_blocks")
def test_a_later_save_knows_which_keys_have_changed(tmp_path: Path) -> None:
    """Scenes change faster than saves come: frames refer to new keys that the next frame may no longer choose."""
    rng, shape = np.random.default_rng(0), (1, 20, 20)
    given = {"compression_method": "delta", "compression_kwargs": {"keys": 1}, "frame_stack": 1}
    buffer = CompressedReplayBuffer(150, box(shape, np.uint8), spaces.Discrete(4), "cpu", **given)
    scene, made = np.zeros((1, *shape), np.uint8), set()
    for i in range(1200):
        if i % 30 == 0:
            scene = rng.integers(0, 4, (1, *shape), np.uint8)
        obs = scene.copy()
        obs[0, 0, i % 20, :3] = rng.integers(0, 256, 3)
        buffer.add(obs, scene, np.array([i % 4]), np.array([i]), np.zeros(1), [{}])
        if i % 97 == 0:
            buffer.save(tmp_path / "buffer")
            copied = CompressedReplayBuffer.load(tmp_path / "buffer")
            assert_same(np.asarray(copied.observations), np.asarray(buffer.observations))
            assert_same(np.asarray(copied.next_observations), np.asarray(buffer.next_observations))
            made.add(len(buffer._stores[None].frames.coder.keys))
    assert max(made) > 5


def game(i: int) -> Any:
    frame = np.zeros((1, 1, 40, 40), np.uint8)
    frame[0, 0, i % 37, : i % 39] = i % 251
    frame[0, 0, i // 37 % 40, 5:9] = i // 251 % 251
    return frame


def add_game(buffer: Any, i: int) -> None:
    buffer.add(game(i), game(i + 1), np.array([i % 4]), np.array([i]), np.zeros(1), [{}])


def check_games(buffer: Any) -> int:
    """Each row is one that was added, and they follow on each other; returns how many were added."""
    n = int(buffer.rewards.max()) + 1 if buffer.size() else 0
    last = np.arange(max(n - buffer.buffer_size, 0), n)
    rows = last % buffer.buffer_size
    assert buffer.size() == len(last)
    assert buffer.pos == n % buffer.buffer_size
    assert np.array_equal(buffer.rewards[rows, 0], last)
    assert np.array_equal(buffer.actions[rows, 0, 0], last % 4)
    if n:
        assert np.array_equal(buffer.observations[rows], np.stack([game(i) for i in last]))
        assert np.array_equal(buffer.next_observations[rows], np.stack([game(i + 1) for i in last]))
    return n


def games(rows: int = 300, **settings: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(rows, box((1, 40, 40), np.uint8), spaces.Discrete(4), "cpu", **settings)


@pytest.mark.parametrize("loaded_first", [True, False])
def test_a_later_save_is_small(tmp_path: Path, loaded_first: bool) -> None:
    """Payloads that are in the file already are not written again, nor when the buffer came from that file."""
    path = tmp_path / "buffer"
    buffer = CompressedReplayBuffer(
        3000, box((1, 40, 40), np.uint8), spaces.Discrete(4), "cpu", compression_method="none"
    )
    for i in range(3000):
        add_game(buffer, i)
    buffer.save(path)
    if loaded_first:
        buffer = CompressedReplayBuffer.load(path)
    first = path.stat()
    for i in range(3000, 3030):
        add_game(buffer, i)
    buffer.save(path)
    second = path.stat()
    assert second.st_ino == first.st_ino
    assert second.st_size < 1.25 * first.st_size
    assert check_games(CompressedReplayBuffer.load(path)) == 3030


@pytest.mark.parametrize("method", ["auto", "zstd3", "none"])
def test_one_thread_adds_while_others_save_and_pickle(method: str, tmp_path: Path) -> None:
    """What they write is one state of the buffer."""
    buffer = games(60, compression_method=method)
    for i in range(60):
        add_game(buffer, i)
    stop, errors = threading.Event(), []

    def write() -> None:
        i = 60
        while not stop.is_set():
            add_game(buffer, i)
            i += 1

    def draw() -> None:
        while not stop.is_set():
            sampled = buffer.sample(32)
            wanted = np.concatenate([game(int(i)) for i in sampled.rewards[:, 0]])
            assert np.array_equal(sampled.observations.numpy(), wanted)

    def guarded(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                stop.set()

        return threading.Thread(target=run)

    threads = [guarded(write), guarded(draw)]
    for thread in threads:
        thread.start()
    try:
        for i in range(12):
            buffer.save(tmp_path / "buffer")
            check_games(CompressedReplayBuffer.load(tmp_path / "buffer"))
            check_games(pickle.loads(pickle.dumps(buffer)) if i % 2 else copy.deepcopy(buffer))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Python changes between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def check_array(array: Any) -> None:
    """The rows hold the last frames that were written, one after another."""
    plain = np.asarray(array)
    numbers = plain[:, 0, :8].copy().view(np.int64)[:, 0]
    newest = int(numbers.max())
    wanted = np.arange(newest - len(plain) + 1, newest + 1)
    assert np.array_equal(np.roll(numbers, -(newest + 1) % len(plain)), wanted)
    assert all(np.array_equal(plain[i % len(plain)], numbered(int(i))) for i in wanted)


def numbered(i: int) -> Any:
    frame = game(i)[0, 0]
    frame[0, :8] = np.array([i]).view(np.uint8)
    return frame


@pytest.mark.parametrize("method", ["auto", "delta", "zstd3"])
@pytest.mark.usefixtures("impatient_threads")
def test_one_thread_writes_while_others_save_and_pickle_an_array(method: str, tmp_path: Path) -> None:
    """The same for a `CompressedArray` alone."""
    array = CompressedArray(30, np.uint8, (40, 40), compression_method=method)
    for i in range(30):
        array[i] = numbered(i)
    stop = threading.Event()

    def write() -> None:
        i = 30
        while not stop.is_set():
            array[i % 30] = numbered(i)
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(15):
            array.save(tmp_path / "array")
            check_array(CompressedArray.load(tmp_path / "array"))
            check_array(pickle.loads(pickle.dumps(array)))
            check_array(copy.deepcopy(array))
            check_array(copy.copy(array))
    finally:
        stop.set()
        writer.join()


def test_copies_of_one_array_stay_one(tmp_path: Path) -> None:
    """Also while other threads run, an array that is referred to twice is pickled once, and goes on."""
    array = CompressedArray(30, np.uint8, (40, 40), compression_method="delta")
    array[3] = numbered(3)
    wait = threading.Event()
    other = threading.Thread(target=wait.wait)
    other.start()
    try:
        for one, two in (pickle.loads(pickle.dumps([array, array])), copy.deepcopy([array, array])):
            assert one is two
            one[4] = numbered(4)
            assert np.array_equal(one[3:5], [numbered(3), numbered(4)])
            assert not array[4].any()
    finally:
        wait.set()
        other.join()


@pytest.mark.usefixtures("impatient_threads")
def test_two_threads_write_to_one_array() -> None:
    array = CompressedArray((40, 2), np.uint8, (40, 40), compression_method="delta")
    errors = []

    def write(first: int) -> None:
        try:
            for i in range(first, 400, 2):
                array[i % 40] = np.stack([numbered(i), numbered(i + 1)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for i in range(360, 400):
        assert np.array_equal(array[i % 40], [numbered(i), numbered(i + 1)])


@pytest.mark.usefixtures("impatient_threads")
@pytest.mark.parametrize("name", ["rollout", "dict-rollout", "maskable", "recurrent"])
def test_one_thread_reads_minibatches_while_another_saves(name: str, tmp_path: Path) -> None:
    """SB3 reshapes the arrays before the first minibatch, one after another: all of them are saved so, or none."""
    twin = TWINS[name]
    data = steps(twin.default_kind, 2, 10)
    ours, sb3 = twin.make(twin.default_kind, 10, 2)
    stop, errors = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                fill_rollout(twin, (ours,), data)
                for _ in range(2):
                    for _ in ours.get(7):
                        pass
        except Exception as error:
            errors.append(error)

    fill_rollout(twin, (sb3,), data)
    wanted = [value for batch in minibatches(20)(copy.deepcopy(sb3)) for value in batch]
    worker = threading.Thread(target=work)
    worker.start()
    full = 0
    try:
        while full < 10 and worker.is_alive():
            ours.save(tmp_path / "buffer")
            for copied in (twin.ours.load(tmp_path / "buffer"), pickle.loads(pickle.dumps(ours))):
                if copied.full and copied.advantages.any():
                    full += 1
                    got = [value for batch in minibatches(20)(copied) for value in batch]
                    assert len(got) == len(wanted)
    finally:
        stop.set()
        worker.join()
    assert not errors


def test_one_thread_adds_vectors_while_another_saves(tmp_path: Path) -> None:
    """Small observations are in SB3's own arrays; a row that is half written is not saved."""
    space = box((4,), np.float32)
    buffer = CompressedReplayBuffer(50, space, spaces.Discrete(4), "cpu")
    stop = threading.Event()

    def write() -> None:
        i = 0
        while not stop.is_set():
            one = np.full((1, 4), i, np.float32)
            buffer.add(one, one + 1, np.array([i % 4]), np.array([float(i)]), np.zeros(1), [{}])
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            buffer.save(tmp_path / "buffer")
            for copied in (CompressedReplayBuffer.load(tmp_path / "buffer"), pickle.loads(pickle.dumps(buffer))):
                rewards, size = copied.rewards[:, 0], copied.size()
                assert np.array_equal(copied.observations[:, 0, 0], rewards)
                assert np.array_equal(copied.next_observations[:size, 0, 3], rewards[:size] + 1)
                assert size in (0, 50) or rewards[size - 1] == size - 1
    finally:
        stop.set()
        writer.join()


def test_threads_that_save_to_one_path(tmp_path: Path) -> None:
    buffer, errors = games(60), []
    for i in range(70):
        add_game(buffer, i)

    def save() -> None:
        try:
            for _ in range(10):
                buffer.save(tmp_path / "buffer")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert check_games(CompressedReplayBuffer.load(tmp_path / "buffer")) == 70


@pytest.mark.parametrize("during", ["add", "save"])
def test_a_signal_comes_in_the_middle(during: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler saves: that is refused where the buffer is half changed or half saved, and does not wait for ever."""
    buffer, path, refused = games(60), tmp_path / "buffer", []
    for i in range(20):
        add_game(buffer, i)
    buffer.save(path)

    def handler(usual: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            with pytest.raises(RuntimeError, match="handler of a signal") as error:
                buffer.save(path)
            refused.append(error)
            return usual(*args, **kwargs)

        return step

    owner, name = (FrameStore, "hold") if during == "add" else (files, "write")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, handler(getattr(owner, name)))
        add_game(buffer, 20)
        buffer.save(path)
    assert refused
    assert check_games(CompressedReplayBuffer.load(path)) == 21
    buffer.save(path)  # as ever


def _add_and_save(buffer: Any, path: Path, first: int) -> None:
    for i in range(first, first + 5):
        add_game(buffer, i)
    buffer.save(path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_parent_and_child_save_to_the_same_path(tmp_path: Path, start_method: str) -> None:
    """In turns: each time the file holds all of the one who saved last."""
    if start_method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start_method} here")
    buffer, path = games(60), tmp_path / "buffer"
    for i in range(70):
        add_game(buffer, i)
    buffer.save(path)
    child = multiprocessing.get_context(start_method).Process(target=_add_and_save, args=(buffer, path, 70))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert check_games(CompressedReplayBuffer.load(path)) == 75
    add_game(buffer, 70)
    buffer.save(path)
    assert check_games(CompressedReplayBuffer.load(path)) == 71


@pytest.mark.parametrize("method", ["auto", "delta", "delta/2", "zstd3", "none"])
def test_compressed_arrays(method: str, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "array"
    plain = np.zeros((50, 2, 4, 18, 18), np.uint8)
    array = CompressedArray((50, 2), np.uint8, (4, 18, 18), compression_method=method, max_bytes=10_000_000)
    for step in steps(KINDS["stack"], 2, 60):
        row = int(rng.integers(50))
        plain[row] = array[row] = step.obs
        if row % 5 == 0:
            array.save(path)
            array = type(array).load(path)
            assert np.array_equal(array, plain)
    view = array.swapaxes(0, 1)
    view.save(path)
    assert np.array_equal(CompressedArray.load(path), plain.swapaxes(0, 1))
    with pytest.raises(TypeError, match="holds a CompressedArray"):
        CompressedReplayBuffer.load(path)


def test_a_file_stays_exact_when_the_plan_is_made_between_saves(tmp_path: Path) -> None:
    """`auto` stores everything anew after some steps, in another heap."""
    buffer, path = games(), tmp_path / "buffer"
    for i in range(120):
        add_game(buffer, i)
        if i % 3 == 0:
            buffer.save(path)
            assert check_games(CompressedReplayBuffer.load(path)) == i + 1


def test_numbers_of_numpy_as_settings(tmp_path: Path) -> None:
    settings = {"max_bytes": np.int64(10_000_000), "n_envs": np.int64(1), "frame_stack": np.int64(1)}
    buffer = games(np.int64(50), **settings)
    for i in range(60):
        add_game(buffer, i)
    assert check_games(again(buffer, tmp_path / "buffer")) == 60


@pytest.mark.skipif(os.name != "posix", reason="links and permissions of POSIX")
def test_links_and_permissions(tmp_path: Path) -> None:
    """As `open` does, a save follows a symbolic link; what nobody else might read stays so."""
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "buffer", tmp_path / "link"
    link.symlink_to(target)
    buffer = games(60)
    for i in range(5):
        add_game(buffer, i)
        buffer.save(link)
        assert link.is_symlink()
        assert check_games(CompressedReplayBuffer.load(target)) == i + 1
        target.chmod(0o600)
        if i % 2:
            buffer = copy.deepcopy(buffer)  # which writes all of the file
        buffer.save(target)
        assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "other") == ["buffer"]


def forged(path: Path, change: Any) -> None:
    """Write a file anew, with another document."""
    with files.reading(path) as reader:
        document = reader.document
        kept = {name: reader.array(name) for name in list(reader.arrays)}
    change(document)
    files.write(path, lambda writer: [writer.array(name, array) for name, array in kept.items()] and document)


def _large_space(document: Any) -> None:
    document["content"]["attributes"]["observation_space"]["Box"][1] = [1 << 10, 1 << 20, 40]


def _many_spaces(document: Any) -> None:
    box = {"Box": ["|u1", [1 << 24], {"number": ["|u1", "00"]}, {"number": ["|u1", "ff"]}]}
    document["content"]["attributes"]["observation_space"] = {"Dict": [[str(i), box] for i in range(50)]}


def _large_observations(document: Any) -> None:
    settings = document["stores"][0]["settings"]["dict"]
    next(pair for pair in settings if pair[0] == "obs_shape")[1] = {"tuple": [1, 1 << 20, 1 << 16]}


def _many_streams(document: Any) -> None:
    settings = document["stores"][0]["settings"]["dict"]
    next(pair for pair in settings if pair[0] == "streams")[1] = 1 << 29


def _large_setting(document: Any) -> None:
    document["stores"][0]["frames"]["codec"][1]["keys"] = 1 << 50


@pytest.mark.parametrize("change", [_large_space, _many_spaces, _large_observations, _many_streams, _large_setting])
def test_claims_without_bytes_are_refused(change: Any, tmp_path: Path) -> None:
    """Nothing is allocated for what a few bytes of the file only say."""
    buffer = games(60, compression_method="delta", frame_stack=1)
    for i in range(70):
        add_game(buffer, i)
    buffer.save(tmp_path / "buffer")
    forged(tmp_path / "buffer", lambda document: None)
    assert check_games(CompressedReplayBuffer.load(tmp_path / "buffer")) == 70
    forged(tmp_path / "buffer", change)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match="too large"):
            CompressedReplayBuffer.load(tmp_path / "buffer")
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()


def test_what_cannot_be_loaded_is_not_saved(tmp_path: Path) -> None:
    space = box((1, 1 << 15, 1 << 15), np.uint8)
    buffer = CompressedReplayBuffer(2, space, spaces.Discrete(4), "cpu", compression_method="none", frame_stack=1)
    with pytest.raises(ValueError, match="too large for a file"):
        buffer.save(tmp_path / "buffer")
    assert os.listdir(tmp_path) == []


def test_max_bytes_holds_after_loading(tmp_path: Path) -> None:
    space = box((1, 40, 40), np.uint8)
    buffer = CompressedReplayBuffer(
        1000, space, spaces.Discrete(4), "cpu", compression_method="none", max_bytes=150_000
    )
    added = _until_full(buffer, 0)
    copied = again(buffer, tmp_path / "buffer")
    assert added <= _until_full(copied, added) < 1000
    assert check_games(copied) < 1000


def _until_full(buffer: Any, first: int) -> int:
    for i in range(first, 1000):
        try:
            add_game(buffer, i)
        except MemoryError:
            return i
    return 1000


@pytest.mark.parametrize("name", sorted(json.loads((storing.STORED / "sums.json").read_text())))
def test_stored_files_load_forever(name: str, tmp_path: Path) -> None:
    """Files of every version of the format: see `storing.py`. Never write them anew: add others."""
    wanted = json.loads((storing.STORED / "sums.json").read_text())[name]
    saved = storing.CLASSES[wanted["class"]].load(storing.STORED / name)
    assert storing.described(saved) == wanted
    saved.save(tmp_path / "again")
    again = storing.CLASSES[wanted["class"]].load(tmp_path / "again")
    assert storing.described(again) == wanted


def test_every_stored_file_is_tested() -> None:
    known = json.loads((storing.STORED / "sums.json").read_text())
    assert {path.name for path in storing.STORED.iterdir()} == {*known, "sums.json"}
    assert {f"{name}{storing.SUFFIX}" for name in (*storing.MADE, *storing.GROWN)} <= known.keys()


@pytest.mark.parametrize(
    "name", ["replay-delta2.v1", "replay-palette-delta.v1", "replay-zstd-dictionary.v1", "replay-grown.v1", "nstep.v1"]
)
def test_stored_buffers_go_on(name: str, tmp_path: Path) -> None:
    """What is added to them is as exact as what they hold."""
    saved = (
        CompressedReplayBuffer.load(STORED / name) if "nstep" not in name else TWINS["nstep"].ours.load(STORED / name)
    )
    kept = {name: np.array(part) for name, part in storing.content(saved).items()}
    rng = np.random.default_rng(0)
    for _ in range(9):
        row = saved.pos
        obs, next_obs = rng.integers(0, 256, (2, *saved.observations.shape[1:]), np.uint8)
        reward = rng.normal(size=2).astype(np.float32)
        saved.add(obs, next_obs, np.array([[1], [2]]), reward, np.zeros(2), [{}, {}])
        kept["observations"][row], kept["next_observations"][row], kept["rewards"][row] = obs, next_obs, reward
    copied = again(saved, tmp_path / "buffer")
    for name in ("observations", "next_observations", "rewards"):
        assert_same(np.asarray(getattr(saved, name)), kept[name])
        assert_same(np.asarray(getattr(copied, name)), kept[name])
