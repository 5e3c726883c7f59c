"""Record buffers: one face, circular, exact; in order of time; to files and videos."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageSequence

from sb3_extra_buffers.compressed import CompressedArray, DamagedFileError
from sb3_extra_buffers.recording import (
    BaseRecordBuffer,
    DummyRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    Steps,
)

STORED = Path(__file__).parent / "stored"
SIZE, RES, CHANNELS = 5, (6, 7), 3
KINDS = [RecordBuffer, FramelessRecordBuffer, DummyRecordBuffer]
METHODS = [None, "auto", "delta", "zstd3", "rle", "lz4-block/1", "gzip1", "none"]


def frame(number: int, channels: int = CHANNELS) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (*RES, channels), np.uint8)


def game(number: int, res: tuple[int, int] = (30, 40), channels: int = 3) -> np.ndarray:
    """A background with a moving block: 4 colours."""
    image = np.full((*res, channels), 40, np.uint8)
    image[::5] = 90
    x = number % (res[1] - 4)
    image[10:14, x : x + 4] = [250, 30, 10][:channels]
    return image


def filled(steps: int, kind: Any = RecordBuffer, **options: Any) -> Any:
    buffer = kind(RES, CHANNELS, SIZE, [np.uint8, np.float64, np.float32, np.float32], **options)
    for i in range(steps):
        buffer.add(frame(i), i / 3, i, (i, -i), done=i % 4 == 3)
    return buffer


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [0, 1, 4, 5, 6, 13])
def test_a_ring_of_everything(steps: int, method: Any) -> None:
    buffer = filled(steps, compression_method=method)
    assert len(buffer) == min(steps, SIZE)
    assert buffer.frames.shape == (SIZE, CHANNELS, *RES)
    assert buffer.frames.dtype == np.uint8
    for i in range(max(0, steps - SIZE), steps):
        row = i % SIZE
        assert np.array_equal(buffer.frames[row], frame(i).transpose(2, 0, 1))
        assert buffer.rewards[row] == i / 3
        assert buffer.actions[row] == i
        assert buffer.features[row].tolist() == [i, -i]
        assert buffer.dones[row] == (i % 4 == 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [0, 1, 4, 5, 6, 10, 13])
def test_reading_in_order(steps: int, method: Any) -> None:
    buffer = filled(steps, compression_method=method)
    everything = list(range(max(0, steps - SIZE), steps))
    for span in (slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(2, 2), slice(-100, 100)):
        wanted = everything[span]
        got = buffer[span]
        assert isinstance(got, Steps)
        assert got.frames.shape == (len(wanted), CHANNELS, *RES)
        assert type(got.frames) is np.ndarray
        assert all(np.array_equal(a, frame(i).transpose(2, 0, 1)) for a, i in zip(got.frames, wanted, strict=True))
        assert got.rewards.tolist() == [i / 3 for i in wanted]
        assert got.actions.tolist() == wanted
        assert got.features.tolist() == [[i, -i] for i in wanted]
        assert got.dones.tolist() == [i % 4 == 3 for i in wanted]


@pytest.mark.parametrize("index", [0, -1, (1, 2), None])
def test_reading_takes_slices_only(index: Any) -> None:
    with pytest.raises(TypeError, match="slice"):
        filled(3)[index]


@pytest.mark.parametrize("kind", [RecordBuffer, FramelessRecordBuffer])
@pytest.mark.parametrize(
    ("steps", "spans", "whole"),
    [
        (0, [], []),
        (3, [(0, 3)], []),
        (4, [(0, 4)], [(0, 4)]),
        (5, [(0, 4), (4, 5)], [(0, 4)]),
        (6, [(0, 3), (3, 5)], []),  # the first step is overwritten: its episode is no longer whole
        (8, [(0, 1), (1, 5)], [(1, 5)]),
        (9, [(0, 4), (4, 5)], [(0, 4)]),  # exactly one episode is overwritten
        (13, [(0, 4), (4, 5)], [(0, 4)]),
    ],
)
def test_episodes(kind: Any, steps: int, spans: list[Any], whole: list[Any]) -> None:
    buffer = filled(steps, kind)
    assert [(span.start, span.stop) for span in buffer.episodes()] == spans
    assert [(span.start, span.stop) for span in buffer.episodes(whole=True)] == whole
    for span in buffer.episodes():
        assert not buffer[span].dones[:-1].any()


def test_the_three_take_the_same_calls(tmp_path: Path) -> None:
    for kind in KINDS:
        buffer = kind(res=RES, ch_num=CHANNELS, size=SIZE, compression_method="zstd3")
        assert isinstance(buffer, BaseRecordBuffer)
        buffer.add(frame(0), 1.5, 2)
        buffer.add(frame(1), reward=0.5, action=3, features=(), done=True)
        n = 0 if kind is DummyRecordBuffer else 2
        assert len(buffer) == len(buffer[:].rewards) == n
        assert len(buffer.episodes()) == len(buffer.episodes(whole=True)) == n // 2
        assert hasattr(buffer, "frames") == (kind is RecordBuffer)
        assert (buffer[:].frames is not None) == (kind is RecordBuffer)
        assert buffer.export(tmp_path / "a.gif", slice(1, None), fps=10, scale=2) == (kind is RecordBuffer)
        assert (tmp_path / "a.gif").exists() == (kind is RecordBuffer)
        (tmp_path / "a.gif").unlink(missing_ok=True)
        buffer.save(tmp_path / "record")
        assert (tmp_path / "record").exists() == (kind is not DummyRecordBuffer)
        assert len(kind.load(tmp_path / "record")) == n
        (tmp_path / "record").unlink(missing_ok=True)
        assert buffer.memory_usage().raw_bytes == (2 * 6 * 7 * 3 if kind is RecordBuffer else 0)
        assert list(tmp_path.iterdir()) == []


def test_features_of_different_dtypes() -> None:
    kinds = [np.uint8, np.float32, np.int64, np.float64, np.bool_]
    buffer = FramelessRecordBuffer(RES, CHANNELS, SIZE, kinds)
    for i in range(7):
        buffer.add(None, 0, 0, (2**60 + i, 0.1, i % 2))
    assert buffer.features[0].tolist() == (2**60 + 5, 0.1, True)
    assert buffer[:].features.tolist() == [(2**60 + i, 0.1, bool(i % 2)) for i in range(2, 7)]


def test_a_grey_frame_may_leave_out_its_channel() -> None:
    buffer = RecordBuffer(RES, 1, SIZE)
    buffer.add(frame(0)[..., 0], 0, 0)
    assert np.array_equal(buffer.frames[0, 0], frame(0)[..., 0])


def test_values_as_a_vector_env_gives_them() -> None:
    buffer = FramelessRecordBuffer(RES, CHANNELS, SIZE)
    buffer.add(None, np.array([0.1], np.float32), np.array([3]), done=np.array(True))
    assert (buffer.rewards[0], buffer.actions[0], buffer.dones[0]) == (np.float32(0.1), 3, True)


@pytest.mark.parametrize("method", [None, "delta"])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"frame": np.zeros((7, 6, 3), np.uint8)}, ValueError),
        ({"frame": np.zeros((3, 6, 7), np.uint8)}, ValueError),
        ({"frame": np.zeros((6, 7), np.uint8)}, ValueError),
        ({"frame": np.full((6, 7, 3), 300)}, ValueError),
        ({"frame": np.full((6, 7, 3), 0.5)}, ValueError),
        ({"frame": np.full((6, 7, 3), "x")}, TypeError),
        ({"features": ()}, ValueError),
        ({"features": (1,)}, ValueError),
        ({"features": (1, 2, 3)}, ValueError),
        ({"features": ("x", 1)}, TypeError),
        ({"features": ([1, 2], 1)}, ValueError),
        ({"features": (1, 300)}, ValueError),
        ({"features": (1, 0.5)}, ValueError),
        ({"reward": "much"}, TypeError),
        ({"reward": [1.0, 2.0]}, ValueError),
        ({"action": "left"}, TypeError),
        ({"action": 0.5}, ValueError),
        ({"action": None}, TypeError),
    ],
)
def test_bad_input_records_nothing(bad: dict[str, Any], error: type[Exception], method: Any) -> None:
    """Also where the step would have overwritten another."""
    kinds = [np.uint8, np.float32, np.float32, np.uint8]
    buffer = RecordBuffer(RES, CHANNELS, 2, kinds, compression_method=method)
    for i in range(3):
        buffer.add(frame(i), i, i, (i, i), done=True)
    before = buffer[:]
    with pytest.raises(error):
        buffer.add(**{"frame": frame(9), "reward": 1.0, "action": 1, "features": (1, 2), **bad})
    assert len(buffer) == 2
    assert len(buffer.episodes(whole=True)) == 2
    assert all(np.array_equal(one, other) for one, other in zip(before, buffer[:], strict=True))


@pytest.mark.parametrize(
    "arguments",
    [{"size": 0}, {"size": -1}, {"ch_num": 0}, {"res": (0, 4)}, {"res": (4,)}, {"dtypes": [np.uint8]}],
)
@pytest.mark.parametrize("kind", [RecordBuffer, FramelessRecordBuffer])
def test_bad_arguments(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        kind(**{"res": RES, "ch_num": CHANNELS, "size": SIZE, **arguments})


def test_bad_dtypes_and_methods() -> None:
    with pytest.raises(ValueError, match="numbers"):
        RecordBuffer(RES, CHANNELS, SIZE, [np.uint8, object])
    with pytest.raises(ValueError, match="zst"):
        RecordBuffer(RES, CHANNELS, SIZE, compression_method="zst")
    with pytest.raises(TypeError, match="compresion"):
        RecordBuffer(RES, CHANNELS, SIZE, compresion_method="zstd")


def test_the_snippet_of_the_docs() -> None:
    buffer = RecordBuffer(res=(84, 84), ch_num=4, size=40_000)
    image = np.random.default_rng(0).integers(0, 256, (84, 84, 4), np.uint8)
    buffer.add(image, 1.0, 3)
    assert np.array_equal(buffer.frames[0], image.transpose(2, 0, 1))


def test_compressed_stacks_share_their_frames() -> None:
    images = [game(i, channels=1)[..., 0] for i in range(80)]
    buffer = RecordBuffer((30, 40), 4, 60, compression_method="auto")
    for i in range(76):
        buffer.add(np.stack(images[i : i + 4], axis=-1), 0, 0)
    usage = buffer.memory_usage()
    assert usage.raw_bytes == 60 * 4 * 30 * 40
    assert usage.frames == 240
    assert usage.unique_frames <= 64
    got = buffer[:].frames
    for i in range(60):
        assert np.array_equal(got[i], np.stack(images[i + 16 : i + 20]))


def test_memory_usage_of_plain_frames() -> None:
    usage = filled(3).memory_usage()
    assert (usage.method, usage.raw_bytes, usage.stored_bytes, usage.frames) == ("dense", 378, 378, 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [0, 3, 5, 8, 13])
@pytest.mark.parametrize("kind", [RecordBuffer, FramelessRecordBuffer])
def test_save_and_load(kind: Any, steps: int, method: Any, tmp_path: Path) -> None:
    buffer = filled(steps, kind, compression_method=method)
    path = tmp_path / "record"
    buffer.save(path)
    again = kind.load(str(path))
    assert list(tmp_path.iterdir()) == [path]
    assert type(again) is kind
    assert len(again) == len(buffer)
    assert again.episodes() == buffer.episodes()
    assert again.episodes(whole=True) == buffer.episodes(whole=True)
    for more in range(3):  # the ring goes on where it was
        for one, other in zip(again[:], buffer[:], strict=True):
            assert (one is None and other is None) or (one.dtype == other.dtype and np.array_equal(one, other))
        for each in (again, buffer):
            each.add(frame(100 + more), more, more, (more, more), done=True)


def test_save_and_load_many_frames_and_mixed_features(tmp_path: Path) -> None:
    """More frames than are held at a time."""
    buffer = RecordBuffer((30, 40), 3, 300, [np.uint8, np.float32, np.int8, np.float64], compression_method="delta")
    for i in range(450):
        buffer.add(game(i), i, i, (i % 100, i / 7))
    buffer.save(tmp_path / "a")
    got = RecordBuffer.load(tmp_path / "a")[:]
    for i, image in enumerate(got.frames):
        assert np.array_equal(image, game(150 + i).transpose(2, 0, 1))
    assert got.features.tolist() == [(i % 100, i / 7) for i in range(150, 450)]


def test_frames_may_be_left_in_the_file(tmp_path: Path) -> None:
    filled(8).save(tmp_path / "a")
    assert FramelessRecordBuffer.load(tmp_path / "a")[:].actions.tolist() == [3, 4, 5, 6, 7]
    filled(8, FramelessRecordBuffer).save(tmp_path / "b")
    with pytest.raises(TypeError, match="FramelessRecordBuffer, which has no frames"):
        RecordBuffer.load(tmp_path / "b")


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a"
    filled(8, compression_method="zstd3").save(path)
    data = path.read_bytes()
    for broken in (b"", b"no zip", data[:100], data[: len(data) // 2], data[:-30]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="damaged"):
            RecordBuffer.load(path)
    wanted = filled(8)[:]
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with suppress(ValueError):  # it is damaged; or that byte says nothing, such as a date
            got = RecordBuffer.load(path)[:]
            assert all(np.array_equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_a_file_without_pickles_is_all_that_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", frames=np.array([print], dtype=object))
    with pytest.raises(ValueError, match=r"other\.npz is damaged, or no such record"):
        RecordBuffer.load(tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError):
        RecordBuffer.load(tmp_path / "nothing")


@pytest.mark.parametrize("method", [None, "delta"])
def test_every_byte_of_a_record_is_checked(method: str | None, tmp_path: Path) -> None:
    """Our error, or exactly what was saved."""
    path = tmp_path / "a"
    filled(3, compression_method=method).save(path)
    buffer = RecordBuffer.load(path)
    for i in range(3, 8):
        buffer.add(frame(i), i / 3, i, (i, -i), done=i % 4 == 3)
    buffer.save(path)  # what has changed, to the end of the file
    data, wanted, refused = path.read_bytes(), filled(8)[:], 0
    for place in range(0, len(data), 23):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            got = RecordBuffer.load(path)[:]
        except DamagedFileError:
            refused += 1
        else:
            assert all(np.array_equal(one, other) for one, other in zip(got, wanted, strict=True))
    assert refused > 20
    for size in range(0, len(data), 301):
        path.write_bytes(data[:size])
        with pytest.raises(DamagedFileError):
            RecordBuffer.load(path)


@pytest.mark.parametrize("method", [None, "none"])
def test_a_large_record_is_saved_and_loaded_in_pieces(method: str | None, tmp_path: Path) -> None:
    """More than 64 MB of noise, with next to no memory besides."""
    noise = np.random.default_rng(0).integers(0, 256, (600, 800, 3), np.uint8)
    buffer = RecordBuffer((600, 800), 3, 60, compression_method=method)
    for i in range(60):
        buffer.add(np.roll(noise, i), i, i)
    tracemalloc.start()
    try:
        buffer.save(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
        buffer.save(tmp_path / "a")
        tracemalloc.reset_peak()
        loaded = RecordBuffer.load(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 1.2 * 60 * noise.size
    finally:
        tracemalloc.stop()
    for i in (0, 17, 59):
        assert np.array_equal(loaded[i : i + 1].frames[0], np.roll(noise, i).transpose(2, 0, 1))
    assert (tmp_path / "a").stat().st_size < 1.1 * 60 * noise.size


@pytest.mark.parametrize("method", [None, "delta"])
def test_a_later_save_writes_what_has_changed(method: str | None, tmp_path: Path) -> None:
    buffer = RecordBuffer((60, 80), 3, 400, compression_method=method)
    for i in range(300):
        buffer.add(game(i, (60, 80)), i, i)
    buffer.save(tmp_path / "a")
    first = (tmp_path / "a").stat()
    buffer.add(game(300, (60, 80)), 300, 300)
    buffer.save(tmp_path / "a")
    second = (tmp_path / "a").stat()
    assert first.st_ino == second.st_ino
    assert second.st_size - first.st_size < 600_000 < 300 * 60 * 80 * 3
    assert RecordBuffer.load(tmp_path / "a")[:].actions.tolist() == list(range(301))


@pytest.mark.parametrize("method", [None, "delta"])
def test_one_thread_adds_while_others_save_and_pickle(method: str | None, tmp_path: Path) -> None:
    """What they write, and what is read, is one state of the record."""
    buffer = RecordBuffer((30, 40), 3, 20, compression_method=method)
    for i in range(20):
        buffer.add(game(i), i, i, done=i % 3 == 2)
    stop = threading.Event()

    def write() -> None:
        i = 20
        while not stop.is_set():
            buffer.add(game(i), i, i, done=i % 3 == 2)
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            buffer.save(tmp_path / "a")
            loaded = RecordBuffer.load(tmp_path / "a")
            for each in (loaded, pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer), buffer):
                got = each[:]
                first = int(got.actions[0])
                assert got.actions.tolist() == got.rewards.tolist() == list(range(first, first + 20))
                assert got.dones.tolist() == [i % 3 == 2 for i in range(first, first + 20)]
                for i, image in enumerate(got.frames, first):
                    assert np.array_equal(image, game(i).transpose(2, 0, 1))
    finally:
        sys.setswitchinterval(before)
        stop.set()
        writer.join()


def test_records_and_buffers_are_told_apart(tmp_path: Path) -> None:
    filled(8).save(tmp_path / "record")
    CompressedArray(3, np.uint8, (20, 20)).save(tmp_path / "array")
    with pytest.raises(TypeError, match="holds a CompressedArray"):
        RecordBuffer.load(tmp_path / "array")
    with pytest.raises(TypeError, match="holds a RecordBuffer"):
        CompressedArray.load(tmp_path / "record")


@pytest.mark.parametrize("claim", ["header", "part"])
def test_an_old_file_that_claims_much_is_refused(claim: str, tmp_path: Path) -> None:
    """A zip of few bytes may hold very many zeros."""
    with zipfile.ZipFile(STORED / "record.npz") as old:
        parts = {name: old.read(name) for name in old.namelist()}
    name = "rewards.npy" if claim == "part" else "about.json"
    with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as bomb:
        for part, content in parts.items():
            bomb.writestr(part, content + bytes(100_000_000) if part == name else content)
    RecordBuffer.load(STORED / "record.npz")  # imports and compiles what it needs
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match="claims"):
            RecordBuffer.load(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_damaged_old_file_says_so(tmp_path: Path) -> None:
    data = (STORED / "record.npz").read_bytes()
    wanted = RecordBuffer.load(STORED / "record.npz")[:]
    for place in range(0, len(data), 7):
        (tmp_path / "a").write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with suppress(DamagedFileError):  # it is damaged; or that byte says nothing, such as a date
            got = RecordBuffer.load(tmp_path / "a")[:]
            assert all(np.array_equal(one, other) for one, other in zip(got, wanted, strict=True))
    for size in range(0, len(data), 50):
        (tmp_path / "a").write_bytes(data[:size])
        with pytest.raises(DamagedFileError):
            RecordBuffer.load(tmp_path / "a")


def test_saving_happens_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    filled(3).save(path)

    def full_disk(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        filled(5).save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert len(RecordBuffer.load(path)) == 3


def gif_frames(path: Path) -> list[np.ndarray]:
    with Image.open(path) as image:
        return [np.asarray(each.convert("RGB")) for each in ImageSequence.Iterator(image)]


def mp4_frames(path: Path) -> list[np.ndarray]:
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(ffmpeg, capture_output=True, check=True)
    width, height = map(int, re.search(rb"Video: h264.* (\d+)x(\d+)", done.stderr).groups())
    return list(np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3))


@pytest.mark.parametrize("method", [None, "delta"])
@pytest.mark.parametrize(
    ("span", "wanted"),
    [(slice(None), range(7, 47)), (slice(-3, None), range(44, 47)), (slice(30, 20, -1), range(37, 27, -1))],
)
def test_gif(span: slice, wanted: range, method: Any, tmp_path: Path) -> None:
    """After the wrap, with few colours: every pixel is exact."""
    buffer = RecordBuffer((30, 40), 3, 40, compression_method=method)
    for i in range(47):
        buffer.add(game(i), 0, 0)
    assert buffer.export(tmp_path / "a.gif", span) == len(wanted)
    got = gif_frames(tmp_path / "a.gif")
    assert len(got) == len(wanted)
    for image, i in zip(got, wanted, strict=True):
        assert np.array_equal(image, game(i))


@pytest.mark.parametrize(("height", "width"), [(30, 40), (31, 41), (84, 84), (17, 20), (18, 35)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_mp4(height: int, width: int, channels: int, tmp_path: Path) -> None:
    """Odd sizes get one more row or column; the picture is close, as H.264 is."""
    buffer = RecordBuffer((height, width), channels, 12)
    images = [game(i, (height, width), 3) for i in range(15)]
    for image in images:
        grey = np.repeat(image[..., :1], channels, axis=-1)
        buffer.add(image if channels == 3 else grey, 0, 0)
    assert buffer.export(tmp_path / "a.mp4", slice(2, None), fps=20, scale=1) == 10
    got = mp4_frames(tmp_path / "a.mp4")
    assert len(got) == 10
    for image, i in zip(got, range(5, 15), strict=True):
        assert image.shape == (height + height % 2, width + width % 2, 3)
        wanted = images[i] if channels == 3 else images[i][..., :1]
        difference = np.abs(image[:height, :width].astype(int) - wanted)
        assert difference.mean() < 12


@pytest.mark.parametrize("ending", [".gif", ".mp4"])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_equal_frames_are_not_merged(ending: str, n: int, tmp_path: Path) -> None:
    buffer = RecordBuffer((30, 40), 3, 10)
    for _ in range(n):
        buffer.add(game(3), 0, 0)
    path = tmp_path / f"a{ending}"
    assert buffer.export(path) == n
    assert len(gif_frames(path) if ending == ".gif" else mp4_frames(path)) == n
    assert list(tmp_path.iterdir()) == [path]


def test_export_of_an_episode_enlarged(tmp_path: Path) -> None:
    buffer = RecordBuffer((30, 40), 3, 20, compression_method="zstd3")
    for i in range(33):
        buffer.add(game(i), 0, 0, done=i % 8 == 7)
    episode = buffer.episodes(whole=True)[0]
    assert buffer.export(tmp_path / "a.gif", episode, fps=10, scale=3) == 8
    got = gif_frames(tmp_path / "a.gif")
    assert len(got) == 8
    for i, image in enumerate(got, 16):
        assert np.array_equal(image, game(i).repeat(3, axis=0).repeat(3, axis=1))


def test_gif_of_stacks_shows_the_newest_frame(tmp_path: Path) -> None:
    grey, rgb = RecordBuffer(RES, 4, SIZE), RecordBuffer(RES, 6, SIZE)
    for i in range(3):
        grey.add(frame(i, 4), 0, 0)
        rgb.add(frame(i, 6), 0, 0)
    grey.export(tmp_path / "grey.gif")
    rgb.export(tmp_path / "rgb.gif")
    for i, image in enumerate(gif_frames(tmp_path / "grey.gif")):
        assert np.array_equal(image, frame(i, 4)[..., 3:].repeat(3, axis=-1))
    for i, image in enumerate(gif_frames(tmp_path / "rgb.gif")):
        assert np.array_equal(image, frame(i, 6)[..., 3:])


def test_gif_of_more_than_256_colours_is_close(tmp_path: Path) -> None:
    buffer = RecordBuffer((40, 40), 3, 3)
    y, x = np.mgrid[:40, :40].astype(np.uint8)
    image = np.stack([x * 6, y * 6, (x + y) * 3], axis=-1)
    buffer.add(image, 0, 0)
    buffer.export(tmp_path / "a.gif")
    assert np.abs(gif_frames(tmp_path / "a.gif")[0].astype(int) - image).mean() < 10


def test_masks_of_bools_are_black_and_white(tmp_path: Path) -> None:
    buffer = RecordBuffer(RES, 1, SIZE, [np.bool_, np.float32])
    buffer.add(frame(0)[..., 0] > 99, 0, 0)
    buffer.export(tmp_path / "a.gif")
    assert np.array_equal(gif_frames(tmp_path / "a.gif")[0][..., 1] == 255, frame(0)[..., 0] > 99)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"path": "a.avi"}, "gif"),
        ({"path": "a"}, "gif"),
        ({"span": slice(2, 2)}, "no frames"),
        ({"fps": 0}, "fps"),
        ({"scale": 0}, "scale"),
    ],
)
def test_bad_exports(arguments: dict[str, Any], problem: str, tmp_path: Path) -> None:
    given = {"path": "a.gif", **arguments}
    with pytest.raises(ValueError, match=problem):
        filled(3).export(**{**given, "path": tmp_path / given["path"]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [".gif", ".mp4"])
def test_frames_that_are_no_pictures(ending: str, tmp_path: Path) -> None:
    buffer = RecordBuffer(RES, CHANNELS, SIZE, [np.float32, np.float32])
    buffer.add(frame(0), 0, 0)
    with pytest.raises(ValueError, match="uint8"):
        buffer.export(tmp_path / f"a{ending}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "ending"), [("PIL", ".gif"), ("imageio_ffmpeg", ".mp4")])
def test_export_without_its_library(module: str, ending: str, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
import numpy as np
from sb3_extra_buffers.recording import RecordBuffer
buffer = RecordBuffer((4, 4), 1, 2)
buffer.add(np.zeros((4, 4, 1), np.uint8), 0, 0)
try:
    buffer.export({str(tmp_path / "a") + ending!r})
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "sb3-extra-buffers[video]"' in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_recording_needs_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = sys.modules["stable_baselines3"] = None
import numpy as np
from sb3_extra_buffers.recording import RecordBuffer
buffer = RecordBuffer((9, 9), 3, 5, compression_method="rle")
for i in range(9):
    buffer.add(np.full((9, 9, 3), i, np.uint8), i, i)
assert buffer[:].frames[:, 0, 0, 0].tolist() == [4, 5, 6, 7, 8]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
