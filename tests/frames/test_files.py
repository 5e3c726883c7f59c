"""The file format: what was written comes back or an error does, whatever happens to the file or to the writer."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.frames import files
from sb3_extra_buffers.frames.files import BLOCK, Checkpoint, DamagedFileError, Writer, checksum

repeatable = settings(max_examples=100)


def saved(path: Path, arrays: dict[str, Any], before: Checkpoint | None = None) -> Checkpoint:
    return files.write(path, lambda writer: [writer.array(name, array) for name, array in arrays.items()], before)


def loaded(path: Path) -> dict[str, Any]:
    with files.reading(path) as reader:
        return {name: reader.array(name) for name in reader.document}


def same(got: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return list(got) == list(wanted) and all(
        got[name].dtype == array.dtype and got[name].shape == array.shape and got[name].tobytes() == array.tobytes()
        for name, array in wanted.items()
    )


def noise(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n, np.uint8)


ARRAYS = {
    "nothing": np.zeros((0, 3), np.float32),
    "number": np.array(7.5),
    "floats": np.array([np.nan, -0.0, np.inf, 1e-320]),
    "flags": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "short": np.arange(9, dtype=np.int8).reshape(3, 3),
    "one block": noise(BLOCK),
    "blocks and a byte": noise(2 * BLOCK + 1),
    "transposed": np.arange(120_000).reshape(300, 400).T,
    "every other": np.arange(200_000)[::2],
    "backwards": np.arange(1000, dtype=np.uint16)[::-1],
    "fields": np.array([(1, 2.5), (3, 4.5)], [("a", np.uint8), ("b", np.float64)]),
}


def test_arrays_of_every_sort(tmp_path: Path) -> None:
    saved(tmp_path / "file", ARRAYS)
    assert same(loaded(tmp_path / "file"), ARRAYS)
    assert os.listdir(tmp_path) == ["file"]


def test_arrays_that_cannot_be_saved(tmp_path: Path) -> None:
    for array in (np.array([{}]), np.array(["text"]), np.array(["2020-01-01"], "M8[D]")):
        with pytest.raises(TypeError, match="only numbers"):
            saved(tmp_path / "file", {"odd": array})
    assert os.listdir(tmp_path) == []


def test_a_later_save_writes_what_has_changed(tmp_path: Path) -> None:
    path, array = tmp_path / "file", noise(40 * BLOCK)
    before = saved(path, {"array": array})
    first = path.stat()
    array[5 * BLOCK + 7] ^= 1
    before = saved(path, {"array": array}, before)
    second = path.stat()
    assert second.st_ino == first.st_ino
    assert BLOCK < second.st_size - first.st_size < BLOCK + 10_000
    assert same(loaded(path), {"array": array})
    grown = np.concatenate([array, noise(10, 1)])
    before = saved(path, {"array": grown}, before)
    assert path.stat().st_size - second.st_size < 10_000
    assert same(loaded(path), {"array": grown})
    saved(path, {"array": grown[: 3 * BLOCK]}, before)
    assert same(loaded(path), {"array": grown[: 3 * BLOCK]})


@pytest.mark.parametrize("then", [100, 200, 250, 1000])
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1100, 3000])
def test_what_is_said_not_to_have_changed(tmp_path: Path, size: int, then: int) -> None:
    """Those blocks are taken from the file, unless they are cut elsewhere now."""
    path, array = tmp_path / "file", noise(3000)

    def describe(block_bytes: int, length: int) -> Any:
        unchanged = np.zeros(100, np.bool_)
        unchanged[0] = True
        return lambda writer: [
            writer.array(
                "array",
                array[:length],
                block_bytes=block_bytes,
                changed=(unchanged[: -(-length // block_bytes)], block_bytes),
            )
        ]

    before = files.write(path, describe(100, 1000))
    array[7] ^= 1
    before = files.write(path, describe(then, size), before)
    assert same(loaded(path), {"array": array[:size]})
    files.write(path, describe(100, 1500), before)
    assert same(loaded(path), {"array": array[:1500]})


@repeatable
@given(
    lengths=st.lists(st.integers(0, 400), min_size=2, max_size=5),
    block_bytes=st.integers(1, 200),
    part_bytes=st.integers(1, 200),
    changes=st.lists(st.integers(0, 399), max_size=4),
)
def test_parts_that_are_cut_elsewhere_than_blocks(
    lengths: list[int], block_bytes: int, part_bytes: int, changes: list[int], tmp_path_factory: Any
) -> None:
    """A block is looked at if it has a byte of a part that may have changed."""
    path, array, before = tmp_path_factory.mktemp("parts") / "file", noise(400), None
    for turn, length in enumerate(lengths):
        parts = np.zeros(-(-400 // part_bytes), np.bool_)
        for at in changes if turn else []:
            array[at] ^= 1
            parts[at // part_bytes] = True
        told = (parts, part_bytes)
        before = files.write(
            path,
            lambda writer, length=length, told=told: [
                writer.array("array", array[:length], block_bytes=block_bytes, changed=told)
            ],
            before,
        )
        assert same(loaded(path), {"array": array[:length]})


def test_what_is_said_must_be_about_all_of_the_array(tmp_path: Path) -> None:
    def describe(writer: Writer) -> Any:
        return [writer.array("array", noise(100), changed=(np.zeros(9, np.bool_), 11))]

    before = saved(tmp_path / "file", {"array": noise(100)})
    with pytest.raises(ValueError, match="9 parts of 11 bytes"):
        files.write(tmp_path / "file", describe, before)


def test_a_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    path, before = tmp_path / "file", None
    for seed in range(40):
        array = noise(20 * BLOCK, seed)
        before = saved(path, {"array": array}, before)
        assert path.stat().st_size < 150 * BLOCK
        assert same(loaded(path), {"array": array})


@pytest.mark.parametrize("what", ["gone", "other", "published by another", "garbage", "restored"])
def test_a_file_that_is_not_the_one_we_know(tmp_path: Path, what: str) -> None:
    """Then all is written."""
    path, arrays = tmp_path / "file", {"array": noise(3 * BLOCK)}
    before = saved(path, arrays)
    kept = path.read_bytes()
    if what == "gone":
        path.unlink()
    elif what == "other":
        saved(path, {"array": noise(3 * BLOCK, 1)})
    elif what == "published by another":
        saved(path, {"array": noise(3 * BLOCK, 1)}, before)
    elif what == "garbage":
        path.write_bytes(b"garbage")
    else:
        before = saved(path, {"array": noise(3 * BLOCK, 2)}, before)
        path.write_bytes(kept)
    saved(path, arrays, before)
    assert same(loaded(path), arrays)


def test_what_a_killed_writer_left_behind(tmp_path: Path) -> None:
    path, arrays = tmp_path / "file", {"array": noise(3 * BLOCK)}
    (tmp_path / ".file.tmp").write_bytes(b"half of a file")
    before = saved(path, arrays)
    with path.open("ab") as file:
        file.write(b"blocks that were never published")
    assert same(loaded(path), arrays)
    arrays["array"][9] ^= 1
    saved(path, arrays, before)
    assert same(loaded(path), arrays)
    assert os.listdir(tmp_path) == ["file"]


class Stop(Exception):
    """Stands for anything that goes wrong."""


@pytest.mark.parametrize("later", [True, False])
def test_a_save_that_fails_changes_nothing(tmp_path: Path, later: bool) -> None:
    path, arrays = tmp_path / "file", {"array": noise(3 * BLOCK)}
    before = saved(path, arrays)
    kept = path.read_bytes()

    def fail(writer: Writer) -> Any:
        writer.array("array", noise(2 * BLOCK, 1))
        raise Stop

    with pytest.raises(Stop):
        files.write(path, fail, before if later else None)
    assert path.read_bytes() == kept
    assert os.listdir(tmp_path) == ["file"]
    arrays["array"][0] ^= 1
    saved(path, arrays, before)
    assert same(loaded(path), arrays)


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    path, arrays = tmp_path / "file", {"array": noise(BLOCK)}

    def again(writer: Writer) -> Any:
        with pytest.raises(OSError, match="another process is saving"):
            saved(path, arrays)
        return [writer.array(name, array) for name, array in arrays.items()]

    before = files.write(path, again)

    def later(writer: Writer) -> Any:
        with pytest.raises(OSError, match="another process is saving"):
            saved(path, arrays, before)
        return [writer.array(name, array) for name, array in arrays.items()]

    files.write(path, later, before)
    assert same(loaded(path), arrays)


def test_a_copy_that_went_another_way(tmp_path: Path) -> None:
    """Two files of the same name and number of states, with different ones: nothing is appended to the wrong one."""
    path, other, arrays = tmp_path / "file", tmp_path / "other", {"array": noise(3 * BLOCK)}
    before = saved(path, arrays)
    other.write_bytes(path.read_bytes())
    mine = saved(path, {"array": noise(3 * BLOCK, 1)}, before)
    saved(other, {"array": noise(3 * BLOCK, 2)}, before)
    other.replace(path)
    saved(path, {"array": noise(3 * BLOCK, 1)}, mine)
    assert same(loaded(path), {"array": noise(3 * BLOCK, 1)})


@pytest.mark.skipif(os.name != "posix", reason="file locks and folders of POSIX")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Network file systems: saving goes on without."""

    def refuse(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files._fcntl, "flock", refuse)
    path, arrays = tmp_path / "file", {"array": noise(3 * BLOCK)}
    before = saved(path, arrays)
    arrays["array"][9] ^= 1
    saved(path, arrays, before)
    assert same(loaded(path), arrays)


@pytest.mark.skipif(os.name != "posix", reason="file locks and folders of POSIX")
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Where the system cannot do that it is left out; a disk that fails is an error."""
    sync = os.fsync

    def limited(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr(os, "fsync", limited)
    path, arrays = tmp_path / "file", {"array": noise(3 * BLOCK)}
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)):
            saved(path, arrays)
    else:
        saved(path, arrays)
    assert same(loaded(path), arrays)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="symbolic links of POSIX")
def test_a_link_in_the_place_of_the_temporary_file(tmp_path: Path) -> None:
    """In a folder where others may write: what it points to is not touched."""
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".file.tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"\.file\.tmp"):
        saved(tmp_path / "file", {"array": noise(10)})
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_name_that_cannot_be_taken(tmp_path: Path) -> None:
    """The rename fails: nothing is left behind."""
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        saved(tmp_path / "file", {"array": noise(10)})
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "blocks",
    [
        [[2560, 10**18, ""]],
        [[-(10**18), 10**18 + 4000, ""], [10**18, -(10**18), ""]],
        [[2560, True, ""]],
        [[2560, 2.0, ""]],
        [[0, 2560, ""]],
        [[2560, -8, ""]],
    ],
)
def test_forged_blocks_are_refused_before_anything_is_allocated(blocks: list[Any], tmp_path: Path) -> None:
    """Also where sizes add up to what the file has."""
    path = tmp_path / "file"

    def describe(writer: Writer) -> Any:
        writer.array("array", noise(3000))
        total = sum(size for _, size, _ in blocks)
        writer.arrays["array"] |= {"shape": [int(total)], "blocks": blocks[:1]}
        writer.arrays["other"] = {"dtype": "|u1", "shape": [0], "blocks": blocks[1:]}
        return ["array"]

    files.write(path, describe)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError):
            loaded(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """In a file that was saved twice: the newest state or an error, never the one before."""
    path, arrays = tmp_path / "file", {"a": noise(300), "b": np.arange(40)}
    before = saved(path, arrays)
    arrays["a"][3] ^= 1
    saved(path, arrays, before)
    content = path.read_bytes()
    used = len(content)
    errors = 0
    for bit in range(0, 8 * used, 37):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert same(loaded(path), arrays), bit
        except ValueError:
            errors += 1
    assert errors > 50
    for size in range(0, used, 31):
        path.write_bytes(content[:size])
        with pytest.raises(DamagedFileError):
            loaded(path)


@pytest.mark.parametrize(
    "content", [b"", b"\x89sb3xb\r\n", b"\x80\x04}q\x00.", b"PK\x03\x04" + bytes(5000), bytes(10_000), b"\xff" * 3000]
)
def test_files_that_were_never_saved(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DamagedFileError, match="file is damaged or was not saved by this package"):
        loaded(tmp_path / "file")


def forged(path: Path, index: Any, *, at: int = 2560, size: int | None = None) -> None:
    """Write a file whose checksums are right and whose index is what somebody wants."""
    head = struct.pack("<8sI8s16s", b"\x89sb3xb\r\n", 1, sys.byteorder.encode(), bytes(16))
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    digest = bytes.fromhex(checksum(np.frombuffer(text, np.uint8)))
    place = struct.pack("<QQQ8s", 1, at, len(text) if size is None else size, digest)

    def signed(content: bytes) -> bytes:
        return content + bytes.fromhex(checksum(np.frombuffer(content, np.uint8)))

    path.write_bytes(signed(head).ljust(512, b"\0") + signed(place).ljust(2048, b"\0") + text)


def one_array(dtype: Any = "|u1", shape: Any = (4,), blocks: Any = None) -> dict[str, Any]:
    good = [2560, 4, checksum(np.frombuffer(b'{"do', np.uint8))]
    return {"document": ["a"], "arrays": {"a": {"dtype": dtype, "shape": shape, "blocks": blocks or [good]}}}


def test_a_forged_file_can_be_made(tmp_path: Path) -> None:
    forged(tmp_path / "file", one_array())
    assert loaded(tmp_path / "file")["a"].tobytes() == b'{"do'


HUGE = 10**18


@pytest.mark.parametrize(
    "forgery",
    [
        {"index": one_array(), "size": HUGE},
        {"index": one_array(), "size": 1 << 27},
        {"index": one_array(), "at": HUGE},
        {"index": one_array(), "at": 0},
        {"index": one_array(shape=[HUGE])},
        {"index": one_array(shape=[HUGE, HUGE])},
        {"index": one_array(shape=[-4])},
        {"index": one_array(shape=[4.0])},
        {"index": one_array(shape=[True, 4])},
        {"index": one_array(shape="4")},
        {"index": one_array(shape=[0], dtype=f"V{HUGE}")},
        {"index": one_array(blocks=[[2560, HUGE, "00" * 8]])},
        {"index": one_array(blocks=[[HUGE, 4, "00" * 8]])},
        {"index": one_array(blocks=[[-4, 4, "00" * 8]])},
        {"index": one_array(blocks=[[2560, -4, "00" * 8]])},
        {"index": one_array(blocks=[[2560, 4]])},
        {"index": one_array(blocks=[[2560, 4, None]])},
        {"index": one_array(blocks=[[2560.0, 4.0, "00" * 8]])},
        {"index": one_array(shape=[20_000], blocks=[[2560, 200, "00" * 8]] * 100)},
        {"index": one_array(dtype="O", shape=[])},
        {"index": one_array(dtype="|O8", shape=[])},
        {"index": one_array(dtype=[["a", "|O8"]], shape=[])},
        {"index": one_array(dtype="U1", shape=[1])},
        {"index": one_array(dtype="i4, (1000000000,)i8", shape=[1])},
        {"index": one_array(dtype=7, shape=[1])},
        {"index": {"document": ["b"], "arrays": {}}},
        {"index": {"document": ["a", "a"], "arrays": one_array()["arrays"]}},
        {"index": {"document": 5}},
        {"index": []},
        {"index": None},
        {"index": b"[" * 100_000},
        {"index": b'{"document": ' + b"1" * 10_000 + b"}"},
        {"index": b"\xff\xfe"},
    ],
)
def test_forged_files_are_refused(tmp_path: Path, forgery: dict[str, Any]) -> None:
    """Before anything is allocated for them."""
    forged(tmp_path / "file", **forgery)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError):
            loaded(tmp_path / "file")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_other_versions_and_machines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    other = "big" if sys.byteorder == "little" else "little"
    for version, order, message in ((2, sys.byteorder, "format version 2"), (1, other, "byte order")):
        saved(path, {"a": noise(9)})
        content = bytearray(path.read_bytes())
        struct.pack_into("<I8s", content, 8, version, order.encode())
        content[36:44] = bytes.fromhex(checksum(np.frombuffer(bytes(content[:36]), np.uint8)))
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            loaded(path)


@repeatable
@given(data=st.binary(max_size=70), flips=st.lists(st.integers(0, 559), min_size=1, max_size=3, unique=True))
def test_checksums_tell_changes(data: bytes, flips: list[int]) -> None:
    memory = np.frombuffer(data, np.uint8)
    changed = memory.copy()
    for flip in flips:
        if flip // 8 < len(data):
            changed[flip // 8] ^= 1 << flip % 8
    assert (checksum(memory) == checksum(changed)) == (memory.tobytes() == changed.tobytes())


def test_checksums_tell_lengths_and_orders() -> None:
    memory = noise(100_001)
    assert len({checksum(memory[:n]) for n in range(3000)}) == 3000
    assert len({checksum(np.zeros(n, np.uint8)) for n in range(3000)}) == 3000
    words = memory[:100_000].view(np.uint64).copy()
    seen = {checksum(words.view(np.uint8))}
    for change in (lambda: words[[3, 5000]], lambda: words[[5000, 3]] ^ np.uint64(1 << 63)):
        words[[3, 5000]] = change()[::-1]
        seen.add(checksum(words.view(np.uint8)))
    assert len(seen) == 3


@pytest.mark.parametrize("n", [0, 1, 63, 80_002])
def test_checksums_stay_what_they_are(n: int) -> None:
    """Old files are verified by them, whichever library computes them."""
    memory = noise(n)
    assert checksum(memory) == f"{zlib.crc32(memory):08x}{zlib.adler32(memory):08x}"
