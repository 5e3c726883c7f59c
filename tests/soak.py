"""Faults for as long as one likes: killed writers, damaged files, hostile payloads, threads, more data than memory.

    python tests/soak.py --out benchmarks/results/soak.json      # all, about an hour
    python tests/soak.py kills --n 200
    python tests/soak.py threads --seconds 1800

`test_faults.py` runs short versions. Each function returns what it found, and raises if anything was not exact.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.codecs import CODECS, Codec, get_codec
from sb3_extra_buffers.codecs.base import CodecError
from sb3_extra_buffers.compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    DamagedFileError,
)
from sb3_extra_buffers.frames import files
from sb3_extra_buffers.frames.observations import IdTable
from sb3_extra_buffers.recording import RecordBuffer

SHAPE = (1, 40, 40)
SPACE = spaces.Box(0, 255, SHAPE, np.uint8)


def game(i: int) -> Any:
    """Frame number i: no two of a few thousand in a row are equal."""
    frame = np.zeros((1, *SHAPE), np.uint8)
    frame[0, 0, i % 37, : i % 39] = i % 251
    frame[0, 0, i // 37 % 40, 5:9] = i // 251 % 251
    return frame


def transition(i: int) -> tuple[Any, ...]:
    return game(i), game(i + 1), np.array([i % 4]), np.array([i]), np.zeros(1), [{}]


def make(rows: int, **settings: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(rows, SPACE, spaces.Discrete(4), "cpu", **settings)


def check(buffer: Any) -> int:
    """Each row is one that was added, and they follow on each other; returns how many were added."""
    n = int(buffer.rewards.max()) + 1 if buffer.size() else 0
    last = np.arange(max(n - buffer.buffer_size, 0), n)
    rows = last % buffer.buffer_size
    assert (buffer.size(), buffer.pos) == (len(last), n % buffer.buffer_size)
    assert np.array_equal(buffer.rewards[rows, 0], last)
    assert np.array_equal(buffer.actions[rows, 0, 0], last % 4)
    if n:
        assert np.array_equal(buffer.observations[rows], np.stack([game(i) for i in last]))
        assert np.array_equal(buffer.next_observations[rows], np.stack([game(i + 1) for i in last]))
    return n


@contextmanager
def small_blocks() -> Iterator[None]:
    """Cut arrays of a few hundred rows into as many blocks as those of a million: later saves leave out most."""
    before = files.BLOCK, IdTable.part
    files.BLOCK, IdTable.part = 1 << 10, 7
    try:
        yield
    finally:
        files.BLOCK, IdTable.part = before


@small_blocks()
def kills(n: int, seed: int = 0) -> dict[str, Any]:
    """A process that adds and saves is killed, again and again; the next one goes on with what it finds."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp())
    path, states, lost = folder / "buffer", set(), 0
    make(500).save(path)
    for turn in range(n):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reader)
                _add_and_save(path, writer, random.Random(turn))
            finally:
                os._exit(1)
        os.close(writer)
        os.read(reader, 8)  # it has begun
        told = int.from_bytes(os.read(reader, 8), "little") if turn % 2 else 0  # it has saved
        time.sleep(rng.random() * rng.choice([0.02, 0.1]))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        while message := os.read(reader, 8):
            told = int.from_bytes(message, "little")
        os.close(reader)
        found = check(CompressedReplayBuffer.load(path))
        assert found >= told, f"{told} were published, the file has {found}"
        lost += found != told and told > 0
        states.add(found)
    left = sorted(set(os.listdir(folder)) - {"buffer", ".buffer.tmp"})
    assert not left, left
    shutil.rmtree(folder)
    return {"kills": n, "different states found": len(states), "killed between publishing and saying so": lost}


def _add_and_save(path: Path, writer: int, rng: random.Random) -> None:
    buffer = CompressedReplayBuffer.load(path)
    i = check(buffer)
    os.write(writer, bytes(8))
    while True:
        for _ in range(rng.randint(0, 30)):
            buffer.add(*transition(i))
            i += 1
        if rng.random() < 0.1:
            buffer = pickle.loads(pickle.dumps(buffer))  # which has to write all of the file
        buffer.save(path)
        os.write(writer, i.to_bytes(8, "little"))


@small_blocks()
def full_disks(n: int, seed: int = 0) -> dict[str, Any]:
    """The file may not grow beyond some size: an error, the file as it was, and later all is well."""
    rng, refused = random.Random(seed), 0
    folder = Path(tempfile.mkdtemp())
    path, buffer, i = folder / "buffer", make(500, compression_method="none"), 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    saved = 0
    buffer.save(path)
    for _ in range(n):
        for _ in range(rng.randint(1, 60)):
            buffer.add(*transition(i))
            i += 1
        if rng.random() < 0.2:
            buffer = pickle.loads(pickle.dumps(buffer))
        kept, size, message = path.read_bytes(), path.stat().st_size, ""
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randint(0, size + 200_000), before[1]))
        try:
            buffer.save(path)
            saved = i
        except OSError as error:
            message = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if saved != i:
            refused += 1
            assert "what was saved before is intact" in message
            assert path.read_bytes() == kept
            assert os.listdir(folder) == ["buffer"]
        assert check(CompressedReplayBuffer.load(path)) == saved
        assert check(buffer) == i
        if rng.random() < 0.5:
            buffer.save(path)
            saved = i
            assert check(CompressedReplayBuffer.load(path)) == saved
    shutil.rmtree(folder)
    return {"saves": n, "refused": refused}


@small_blocks()
def flips(n: int, seed: int = 0) -> dict[str, Any]:
    """One bit of a file is another, or its end is gone: an error, or exactly what was saved."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp())
    path, buffer, i = folder / "buffer", make(200), 0
    for count in (230, 9, 40):
        for _ in range(count):
            buffer.add(*transition(i))
            i += 1
        buffer.save(path)
    content = path.read_bytes()
    assert check(CompressedReplayBuffer.load(path)) == i
    tracemalloc.start()
    CompressedReplayBuffer.load(path)
    honest = tracemalloc.get_traced_memory()[1]
    found, most = {"refused": 0, "exact": 0}, 0
    for _ in range(n):
        damaged = bytearray(content)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(content)) :]
        else:
            # Half of them where the file says what it is and where things are.
            at = rng.randrange(len(content) if rng.random() < 0.5 else 2560)
            damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        try:
            loaded = CompressedReplayBuffer.load(path)
        except DamagedFileError:
            loaded = None
        most = max(most, tracemalloc.get_traced_memory()[1] - start)
        if loaded is not None:
            assert check(loaded) == i
        found["refused" if loaded is None else "exact"] += 1
    tracemalloc.stop()
    assert most < 2 * honest, (most, honest)
    shutil.rmtree(folder)
    return {"cases": n, **found, "file bytes": len(content), "most bytes": most, "bytes of an honest load": honest}


class Original(NamedTuple):
    """Something that was saved, to be forged: its document and arrays, how to load it, and how to use it."""

    document: Any
    arrays: dict[str, Any]
    load: Callable[[Path], Any]
    use: Callable[[Any, int], Any]


def _use_buffer(buffer: Any, i: int) -> None:
    if isinstance(buffer, CompressedDictReplayBuffer):
        obs, next_obs, *rest = transition(i)
        buffer.add(_keyed(obs, i), _keyed(next_obs, i + 1), *rest)
    else:
        buffer.add(*transition(i))
    buffer.sample(8)
    buffer.memory_usage()


def _use_array(array: Any, i: int) -> None:
    array[i % 60] = game(i)[0]
    np.asarray(array[i % 7 :: 7])


def _use_record(record: Any, i: int) -> None:
    record.add(game(i)[0, 0], i, i, done=i % 9 == 8)
    record[-8:]
    record.episodes()


def _keyed(frame: Any, i: int) -> dict[str, Any]:
    return {"image": frame, "colours": np.repeat(frame[:, 0, :12, :12, None], 3, axis=-1), "vector": np.full((1, 3), i)}


def _originals(folder: Path) -> Iterator[Original]:
    made: list[tuple[Any, Callable[[Any, int], Any]]] = []
    for method, settings in (
        ("delta", {}),
        ("delta/2", {}),
        ("delta/2", {"keys": 0}),
        ("zstd3", {"dictionary_bytes": 300}),
        ("none", {}),
        ("rle", {}),
        ("auto", {}),
    ):
        made.append((make(60, compression_method=method, compression_kwargs=settings), _use_buffer))
    keyed = spaces.Dict(
        image=SPACE, colours=spaces.Box(0, 255, (12, 12, 3), np.uint8), vector=spaces.Box(0, np.inf, (3,), np.float32)
    )
    for method, kind in (("zstd3", "palette"), ("delta", "palette"), ("lz4-block", "interleave")):
        extra = {"compression_method": method, "compression_kwargs": {"filter": kind}, "frame_stack": 1}
        coloured = {key: keyed[key] for key in ("colours", "vector")}
        made.append(
            (CompressedDictReplayBuffer(60, spaces.Dict(coloured), spaces.Discrete(4), "cpu", **extra), _use_buffer)
        )
    made.append((CompressedDictReplayBuffer(60, keyed, spaces.Discrete(4), "cpu"), _use_buffer))
    made.append((CompressedArray(60, np.uint8, SHAPE, compression_method="delta"), _use_array))
    made.append((RecordBuffer(SHAPE[1:], 1, 60, compression_method="delta"), _use_record))
    made.append((RecordBuffer(SHAPE[1:], 1, 60), _use_record))
    for number, (saved, use) in enumerate(made):
        for i in range(150):
            use(saved, i)
        saved.save(folder / f"original{number}")
        with files.reading(folder / f"original{number}") as reader:
            yield Original(
                reader.document, {name: reader.array(name) for name in list(reader.arrays)}, type(saved).load, use
            )


def forgeries(n: int, seed: int = 0) -> dict[str, Any]:
    """Files whose checksums are right and whose content was never saved so: exceptions only, also when used."""
    folder = Path(tempfile.mkdtemp())
    path, found = folder / "buffer", {"refused": 0, "loaded": 0, "of those, used without an error": 0}
    originals, turn, most = list(_originals(folder)), 0, 0
    while turn < n:  # a child for each hundred: if one dies, so do we
        reader_end, writer_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                results = [
                    _forge_and_use(path, originals[i % len(originals)], [seed, i]) for i in range(turn, turn + 100)
                ]
                grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
                os.write(writer_end, bytes(results) + grown.to_bytes(8, "little"))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writer_end)
        results = os.read(reader_end, 108)
        os.close(reader_end)
        assert os.waitpid(child, 0)[1] == 0, f"died among the forgeries from {turn} on"
        most = max(most, 1024 * int.from_bytes(results[100:], "little"))
        for result in results[:100]:
            found["refused"] += result == 0
            found["loaded"] += result > 0
            found["of those, used without an error"] += result == 2
        turn += 100
    assert most < 4 << 30, most  # of files that claim as much as they may
    shutil.rmtree(folder)
    return {"cases": turn, "kinds of files": len(originals), **found, "most bytes": most}


_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    3,
    255,
    65_536,
    2**31,
    2**63 - 1,
    -(2**63),
    2**64,
    1.5,
    "",
    "none",
    "zstd3",
    [],
    [1, 2],
    {},
)


def _forge_and_use(path: Path, original: Original, seed: list[int]) -> int:
    rng = np.random.default_rng(seed)
    document, arrays = json.loads(json.dumps(original.document)), dict(original.arrays)
    for _ in range(rng.integers(1, 3)):
        kind = rng.integers(3)
        name = list(arrays)[rng.integers(len(arrays))]
        array = arrays[name]
        if kind == 0:
            leaves = list(_leaves(document))
            holder, key = leaves[rng.integers(len(leaves))]
            holder[key] = _VALUES[rng.integers(len(_VALUES))]
        elif kind == 1 and array.size:
            array = array.copy()
            flat = array.reshape(-1).view(np.uint8)
            for _ in range(rng.integers(1, 5)):
                at = int(rng.integers(flat.size))
                if rng.random() < 0.5:
                    flat[at] = rng.integers(256)
                else:
                    flat[at - at % array.itemsize : at - at % array.itemsize + array.itemsize] = rng.choice(
                        [0, 127, 255]
                    )
            arrays[name] = array
        elif array.ndim:
            length = int(rng.integers(0, 2 * len(array) + 2))
            arrays[name] = np.resize(array, (length, *array.shape[1:])) if array.size else array.astype(np.float64)
    files.write(path, lambda writer: [writer.array(name, array) for name, array in arrays.items()] and document)
    try:
        loaded = original.load(path)
    except (DamagedFileError, TypeError, MemoryError):
        return 0
    result = 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are none
        for i in range(150, 190):
            try:
                original.use(loaded, i)
            except Exception:
                result = 1
        try:
            loaded.save(path)
        except Exception:
            result = 1
    return result


def _leaves(document: Any) -> Iterator[tuple[Any, Any]]:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield document, key
        if isinstance(value, dict | list):
            yield from _leaves(value)


def codecs() -> dict[str, Codec]:
    """Every decoder there is."""
    found = {method: get_codec(method) for method in (*CODECS, "delta/2")}
    found["rle of 16 bits"] = get_codec("rle", item_bytes=2, runs_type=np.uint16)
    found["rle-jit of 32 bits"] = get_codec("rle-jit", item_bytes=4, runs_type=np.uint8)
    found["delta/2 of rows"] = get_codec("delta/2", {"keys": 0}, row_bytes=20)
    found |= {f"near, rows of {n}": get_codec("near", row_bytes=n) for n in (20, 64, 100)}
    for inner in ("delta", "delta/2", "near", "zstd3", "lz4-block"):
        for kind in ("palette", "interleave"):
            found[f"{kind} {inner}"] = get_codec(inner, {"filter": kind}, channels=3, planar=True)
    return found


def fuzz(n: int, seed: int = 0, memory: int = 1 << 30) -> dict[str, Any]:
    """Every decoder is given random and changed payloads, and so much memory beyond what is used: only `CodecError`."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, limits[1]))
    try:
        found = {name: _fuzz(codec, n // len(codecs()) + 1, seed) for name, codec in codecs().items()}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return {
        "cases": sum(map(sum, found.values())),
        "decoded, refused": {name: list(two) for name, two in found.items()},
    }


def _fuzz(codec: Codec, n: int, seed: int) -> tuple[int, int]:
    rng = np.random.default_rng([seed, 7])
    size = 1200
    coder = codec.coder(size)
    frames = np.concatenate([np.concatenate([game(i).reshape(1, -1)[:, :size] for i in range(0, 9000, 75)])] * 2)
    frames[100:103] = rng.integers(0, 256, (3, size))
    encoded = coder.encode(frames, np.arange(len(frames)) % 3)
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    memory = np.full(size + 64, 0xA5, np.uint8)
    out = memory[32 : 32 + size][None]
    decoded = refused = 0
    for _ in range(n):
        which = int(rng.integers(len(frames)))
        length, reference = int(encoded.lengths[which]), int(encoded.references[which])
        payload = encoded.data[starts[which] : starts[which] + length].copy()
        kind = int(rng.integers(5))
        if kind == 0:
            payload = rng.integers(0, 256, rng.integers(0, 300), np.uint8)
        elif kind == 1 and length:
            payload[rng.integers(0, length, 3)] = rng.integers(0, 256, 3)
        elif kind == 2 and length:
            payload[rng.integers(length)] ^= 1 << rng.integers(8)
        elif kind == 3:
            payload = np.concatenate([payload[: rng.integers(length + 1)], rng.integers(0, 256, 4, np.uint8)])
        else:
            reference = int(rng.integers(-3, 300)) if rng.random() < 0.9 else int(rng.integers(-(2**62), 2**62))
            length = int(rng.integers(-5, 2 * size)) if rng.random() < 0.9 else int(rng.integers(-(2**62), 2**62))
        told = payload.size if kind < 4 else length
        at = 0 if rng.random() < 0.95 else int(rng.integers(-(2**62), 2**62))
        try:
            coder.decode(payload, np.array([at]), np.array([told]), np.array([reference]), out)
            decoded += 1
        except CodecError:
            refused += 1
    assert (memory[:32] == 0xA5).all()
    assert (memory[-32:] == 0xA5).all()
    check_after = np.empty((len(frames), size), np.uint8)
    coder.decode(encoded.data, starts, encoded.lengths, encoded.references, check_after)
    assert np.array_equal(check_after, frames)  # nothing that it knows was changed
    return decoded, refused


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@small_blocks()
def threads(seconds: float, rows: int = 2000, method: str = "auto") -> dict[str, Any]:
    """One thread adds, to SB3's buffer, too; others sample; one saves and loads, one pickles. All is compared."""
    folder = Path(tempfile.mkdtemp())
    ours = make(rows, compression_method=method)
    shadow = ReplayBuffer(rows, SPACE, spaces.Discrete(4), "cpu", handle_timeout_termination=True)
    both = threading.Lock()
    stop = threading.Event()
    errors: list[BaseException] = []
    done = dict.fromkeys(("adds", "samples", "saves", "pickles", "comparisons"), 0)
    for i in range(rows):
        ours.add(*transition(i))
        shadow.add(*transition(i))

    def add() -> None:
        i = rows + done["adds"]
        with both:
            ours.add(*transition(i))
            shadow.add(*transition(i))
        done["adds"] += 1
        time.sleep(0.001)

    def sample() -> None:
        batch = ours.sample(64)
        numbers = batch.rewards[:, 0].long().tolist()
        assert np.array_equal(batch.observations, np.concatenate([game(i) for i in numbers]))
        assert np.array_equal(batch.next_observations, np.concatenate([game(i + 1) for i in numbers]))
        done["samples"] += 1
        time.sleep(0.005)

    def save() -> None:
        ours.save(folder / "buffer")
        check(CompressedReplayBuffer.load(folder / "buffer"))
        done["saves"] += 1
        time.sleep(0.05)

    def copy() -> None:
        check(pickle.loads(pickle.dumps(ours)))
        done["pickles"] += 1
        time.sleep(0.2)

    def compare() -> None:
        with both:
            for name, wanted in vars(shadow).items():
                if isinstance(wanted, np.ndarray):
                    got = np.asarray(getattr(ours, name))
                    assert got.dtype == wanted.dtype, name
                    assert np.array_equal(got, wanted), name
            assert (ours.pos, ours.full) == (shadow.pos, shadow.full)
        done["comparisons"] += 1
        time.sleep(0.5)

    def repeatedly(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)
            stop.set()

    workers = [threading.Thread(target=repeatedly, args=(work,)) for work in (add, sample, sample, save, copy, compare)]
    for worker in workers:
        worker.start()
    sizes = []
    began = time.monotonic()
    while time.monotonic() - began < seconds and not stop.is_set():
        stop.wait(min(seconds / 20, 30))
        sizes.append(resident())
    stop.set()
    for worker in workers:
        worker.join()
    shutil.rmtree(folder)
    if errors:
        raise errors[0]
    compare()
    half = len(sizes) // 2
    first, second = max(sizes[1:half], default=0), max(sizes[half:], default=0)
    return {**done, "rss, first half": first, "rss, second half": second}


def spill(total: int, max_bytes: int = 200_000_000, seed: int = 0) -> dict[str, Any]:
    """So many bytes that cannot be compressed go through a buffer that keeps them in a file; samples are compared."""
    folder = Path(tempfile.mkdtemp())
    noise = np.random.default_rng(seed).integers(0, 256, 1 << 22, np.uint8)
    size = 84 * 84
    rows = total // size

    def frame(i: int) -> Any:
        start = i * 7919 % (noise.size - size)
        made = noise[start : start + size].copy()
        made[:4] = np.array([i], "<u4").view(np.uint8)
        return made.reshape(1, 1, 84, 84)

    space = spaces.Box(0, 255, (1, 84, 84), np.uint8)
    buffer = CompressedReplayBuffer(
        rows, space, spaces.Discrete(4), "cpu", max_bytes=max_bytes, spill_dir=folder, verify=True
    )
    warm = make(10)
    for i in range(30):
        warm.add(*transition(i))
        warm.sample(256)
    before = most = resident()
    samples = 0
    for i in range(rows + rows // 20):
        buffer.add(frame(i), frame(i + 1), np.array([0]), np.array([i]), np.zeros(1), [{}])
        if i % (rows // 200) == 99:
            most = max(most, resident())
            batch = buffer.sample(256)
            most = max(most, resident())
            numbers = batch.rewards[:, 0].long().tolist()
            assert np.array_equal(batch.observations, np.concatenate([frame(n) for n in numbers]))
            assert np.array_equal(batch.next_observations, np.concatenate([frame(n + 1) for n in numbers]))
            samples += len(numbers)
    spilled = buffer._stores[None].frames.heap.data.size
    owned = buffer.memory_usage().stored_bytes
    assert owned <= max_bytes
    shutil.rmtree(folder)
    return {
        "bytes added": (rows + rows // 20) * size,
        "bytes in the file": spilled,
        "transitions compared": samples,
        "max_bytes": max_bytes,
        "bytes the buffer owns": owned,
        "rss before": before,
        "most rss": most,
        "growth": most - before,
    }


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "kills": lambda options: kills(options.n or 200),
    "full_disks": lambda options: full_disks(options.n or 200),
    "flips": lambda options: flips(options.n or 2000),
    "forgeries": lambda options: forgeries(options.n or 20_000),
    "fuzz": lambda options: fuzz(options.n or 1_000_000),
    "spill": lambda options: spill(options.n or 5_000_000_000),
    "threads": lambda options: threads(options.seconds),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to run; all by default")
    parser.add_argument("--n", type=int, help="kills, damages, payloads")
    parser.add_argument("--seconds", type=float, default=1800, help="of threads")
    parser.add_argument("--out", type=Path, help="write what was found to this file, beside what it has of other parts")
    options = parser.parse_args()
    for part in options.parts or PARTS:
        start = time.monotonic()
        found = {**PARTS[part](options), "seconds": round(time.monotonic() - start)}
        print(f"{part}: {json.dumps(found)}", flush=True)
        if options.out is not None:
            results = json.loads(options.out.read_text()) if options.out.exists() else {}
            options.out.write_text(json.dumps({**results, part: found}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
