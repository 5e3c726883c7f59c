"""`spill_dir`: the same samples, from a file. Damage, full disks and forks are errors."""

from __future__ import annotations

import copy
import errno
import gc
import multiprocessing
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from kinds import box, steps
from twins import TWINS, Twin, assert_same_arrays, assert_same_draws, check, sample

from sb3_extra_buffers.compressed import CompressedReplayBuffer, DamagedFileError, StoreFullError
from sb3_extra_buffers.frames import spill
from sb3_extra_buffers.frames.heap import Budget

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not unmap pages on request")

METHODS = ["auto", "delta", "delta/2", "none", "zstd3", "rle-jit", "near"]


@pytest.mark.parametrize("hot", [0, 1 << 26])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["replay", "dict-replay", "her", "rollout"])
def test_samples_are_those_of_sb3(name: str, method: str, hot: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(spill, "HOT", hot)  # 0: whatever is read was unmapped before
    twin = TWINS[name]
    ours, sb3 = twin.make(twin.default_kind, 20, 2, compression_method=method, spill_dir=tmp_path, verify=True)
    check(twin, ours, sb3, steps(twin.default_kind, 2, 70))
    assert os.listdir(tmp_path) == []  # the file has no name: it goes with the process


def test_zeros_before_anything_is_written(tmp_path: Path) -> None:
    space, black = box((1, 20, 20), np.uint8), np.zeros((1, 1, 20, 20), np.uint8)
    buffer = CompressedReplayBuffer(5, space, spaces.Discrete(2), "cpu", spill_dir=tmp_path, verify=True)
    for _ in range(7):
        buffer.add(black, black, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        assert not buffer.sample(3).observations.any()


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "save"])
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["dict-replay"]], ids=str)
def test_copies_are_in_memory(twin: Twin, way: str, tmp_path: Path) -> None:
    folder = tmp_path / "spilled"
    folder.mkdir()
    ours, sb3 = twin.make(twin.default_kind, 20, 2, spill_dir=folder)
    data = steps(twin.default_kind, 2, 60)
    for step in data[:50]:
        twin.add(ours, step)
        twin.add(sb3, step)
    if way == "save":
        for _ in range(2):
            ours.save(tmp_path / "buffer")
        copied = twin.ours.load(tmp_path / "buffer")
    else:
        copied = copy.deepcopy(ours) if way == "deepcopy" else pickle.loads(pickle.dumps(ours))
    folder.rmdir()
    kept = copy.deepcopy(sb3)
    for step in data[50:]:
        twin.add(copied, step)
        twin.add(kept, step)
    assert_same_arrays(copied, kept)
    assert_same_arrays(ours, sb3)
    assert_same_draws(copied, kept, sample(20))


@pytest.mark.parametrize("method", METHODS)
def test_loaded_into_a_file(method: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(spill, "HOT", 0)
    twin = TWINS["replay"]
    ours, sb3 = twin.make(twin.default_kind, 20, 2, compression_method=method)
    for i, step in enumerate(steps(twin.default_kind, 2, 90)):
        twin.add(ours, step)
        twin.add(sb3, step)
        if i % 20 == 13:
            ours.save(tmp_path / "buffer")
            ours = twin.ours.load(tmp_path / "buffer", spill_dir=tmp_path, verify=True)
            assert_same_arrays(ours, sb3)
            assert_same_draws(ours, sb3, sample(20))


def game(i: int) -> Any:
    return np.random.default_rng(i).integers(0, 256, (1, 1, 40, 40), np.uint8)


def add(buffer: Any, i: int) -> None:
    buffer.add(game(i), game(i + 1), np.array([0]), np.array([i]), np.zeros(1), [{}])


def noisy(rows: int, folder: Path, **settings: Any) -> CompressedReplayBuffer:
    space = box((1, 40, 40), np.uint8)
    return CompressedReplayBuffer(
        rows, space, spaces.Discrete(4), "cpu", compression_method="none", spill_dir=folder, **settings
    )


@pytest.mark.parametrize("verify", [True, False])
def test_damage_in_the_file(verify: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """Where it is verified, it does not reach a sample."""
    monkeypatch.setattr(spill, "HOT", 0)
    buffer = noisy(100, tmp_path, verify=verify)
    for i in range(100):
        add(buffer, i)
    heap: Any = buffer.observations.store.frames.heap
    for row in range(0, 80, 7):
        at = 1600 * row + 13 * row
        before = os.pread(heap._file, 1, at)
        os.pwrite(heap._file, bytes([before[0] ^ 4]), at)
        if verify:
            with pytest.raises(DamagedFileError, match="came back damaged"):
                np.asarray(buffer.observations)
        else:
            assert not np.array_equal(buffer.observations[row], game(row))
        os.pwrite(heap._file, before, at)
        assert np.array_equal(buffer.observations[row], game(row))


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "save"])
def test_damage_does_not_spread(way: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What came back damaged is not written to a checkpoint, where its checksum would be right, nor to a copy."""
    monkeypatch.setattr(spill, "HOT", 0)
    buffer = noisy(100, tmp_path, verify=True)
    for i in range(60):
        add(buffer, i)
    path = tmp_path / "buffer"
    buffer.save(path)
    for i in range(60, 100):
        add(buffer, i)
    heap: Any = buffer.observations.store.frames.heap
    at = 1600 * 70 + 13
    before = os.pread(heap._file, 1, at)
    os.pwrite(heap._file, bytes([before[0] ^ 4]), at)
    kept = path.read_bytes()
    with pytest.raises(DamagedFileError, match="came back damaged"):
        _copied(buffer, way, path)
    assert path.read_bytes() == kept
    assert os.listdir(tmp_path) == ["buffer"]
    os.pwrite(heap._file, before, at)
    copied = _copied(buffer, way, path)
    assert np.array_equal(copied.observations[:, 0], np.concatenate([game(i) for i in range(100)]))


def _copied(buffer: Any, way: str, path: Path) -> Any:
    if way == "save":
        buffer.save(path)
        return type(buffer).load(path)
    return copy.deepcopy(buffer) if way == "deepcopy" else pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize("size", [1600, 4097, 12_345])
def test_a_segment_at_the_end_of_the_file(size: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Its checksum is of all of it, also after the file has grown."""
    monkeypatch.setattr(spill, "HOT", 0)
    monkeypatch.setattr(spill, "_STEP", 1)
    heap = spill.SpilledHeap(size, Budget(), spill.Spill(tmp_path, verify=True))
    rng, kept = np.random.default_rng(0), []
    for _ in range(200):
        payload = rng.integers(0, 256, rng.integers(1, size), np.uint8)
        kept.append((int(heap.append(payload, np.array([payload.size]))[0]), payload))
        for at, wanted in kept[-20:]:
            heap.check(np.array([at]))
            assert np.array_equal(heap.data[at : at + wanted.size], wanted)
    heap.look(0, heap.n_segments * heap.segment_bytes)


def test_files_are_closed(tmp_path: Path) -> None:
    """When a buffer goes, its file and the room on the disk go with it."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        buffer = noisy(50, tmp_path)
        for i in range(60):
            add(buffer, i)
    assert len(os.listdir("/proc/self/fd")) > before
    del buffer
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    with open("/proc/self/maps") as file:
        assert str(tmp_path) not in file.read()


def test_no_room_in_the_folder(tmp_path: Path, monkeypatch: Any) -> None:
    """`add` raises and changes nothing."""
    buffer, reserve = noisy(30_000, tmp_path, verify=True), os.posix_fallocate
    limit = 40 << 20

    def limited(file: int, offset: int, size: int) -> None:
        if offset + size > limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    added = _until_full(buffer, 0)
    assert 15_000 < added < 30_000
    assert buffer.size() == added
    assert np.array_equal(buffer.observations[added - 1], game(added - 1))
    limit = 80 << 20
    for i in range(added, added + 20):
        add(buffer, i)
        assert np.array_equal(
            buffer.next_observations[i - 10 : i + 1, 0], np.concatenate([game(n + 1) for n in range(i - 10, i + 1)])
        )


def _until_full(buffer: Any, first: int) -> int:
    for i in range(first, 30_000):
        try:
            add(buffer, i)
        except StoreFullError:
            return i
    return 30_000


def test_max_bytes_is_of_memory(tmp_path: Path) -> None:
    buffer = noisy(4000, tmp_path, max_bytes=1_000_000)
    for i in range(5000):
        add(buffer, i)
    usage = buffer.memory_usage()
    assert usage.stored_bytes < 1_000_000 < 1600 * 4000
    assert np.array_equal(buffer.observations[[7, 3000], 0], [game(4007)[0], game(3000)[0]])
    small = noisy(4000, tmp_path, max_bytes=100_000)
    assert _until_full(small, 0) < 4000
    assert small.memory_usage().stored_bytes <= 100_000


def _use(buffer: Any, reply: Any) -> None:
    for use in (lambda: buffer.sample(4), lambda: add(buffer, 60)):
        try:
            use()
        except RuntimeError as error:
            reply.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_use_the_file(tmp_path: Path) -> None:
    buffer = noisy(50, tmp_path)
    for i in range(60):
        add(buffer, i)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_use, args=(buffer, sender))
    child.start()
    for _ in range(2):
        assert receiver.poll(60)
        assert "belongs to the parent process" in receiver.recv()
    child.join(60)
    assert child.exitcode == 0
    assert np.array_equal(buffer.observations[9], game(59))
    add(buffer, 60)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="spill_dir is an existing folder"):
        noisy(10, tmp_path / "none")
