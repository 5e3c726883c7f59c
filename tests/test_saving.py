"""`save` and `load`: the buffer that comes out is the one that went in, goes on like it, and is saved again cheaply."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import threading
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
    arrays,
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


@settings(derandomize=True, deadline=None, max_examples=25)
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


def sums(buffer: Any) -> dict[str, str]:
    """Return what identifies the content of each array of a buffer."""
    found = {}
    for name, value in arrays(buffer).items():
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            plain = np.asarray(part)
            content = repr(plain.tolist()).encode() if plain.dtype == object else plain.tobytes()
            found[f"{name} {key}".strip()] = f"{plain.dtype} {plain.shape} {zlib.crc32(content):08x}"
    return found


@pytest.mark.parametrize("path", sorted(STORED.glob("*.v*")), ids=lambda path: path.name)
def test_stored_files_load_forever(path: Path) -> None:
    """Files of every version of the format, and `sums` of what they hold. Never write them anew: add others."""
    buffer = TWINS[path.stem].ours.load(path)
    wanted = json.loads((STORED / "sums.json").read_text())[path.name]
    assert (buffer.pos, buffer.full) == tuple(wanted["ring"])
    assert sums(buffer) == wanted["sums"]
