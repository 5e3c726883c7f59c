"""`inspect FILE`: what is in a saved file, a contact sheet of it, and a clear error for what is no such file."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from kinds import DICT_KINDS, KINDS, steps
from stable_baselines3.common.buffers import ReplayBuffer
from twins import ROLLOUT, TWINS, Twin, fill_rollout

from sb3_extra_buffers.cli import main, pictures
from sb3_extra_buffers.compressed import CompressedArray, CompressedReplayBuffer, compressed_class
from sb3_extra_buffers.frames import files
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer
from sb3_extra_buffers.recording import FramelessRecordBuffer, RecordBuffer

IMAGE = spaces.Box(0, 255, (1, 20, 24), np.uint8)
ACTIONS = spaces.Discrete(4)


class OwnBuffer(ReplayBuffer):
    """A class that `inspect` does not know, and must not import."""


def replay(path: Path, size: int = 12, n_steps: int = 12, cls: Any = CompressedReplayBuffer, **kwargs: Any) -> Any:
    """Two envs: the first ends an episode with step 3, 7, 11, ...; the reward of each step is 1."""
    buffer = cls(2 * size, IMAGE, ACTIONS, "cpu", 2, **kwargs)
    for t in range(n_steps):
        obs = np.zeros((2, *IMAGE.shape), np.uint8)
        obs[:, 0, :, t % 24] = 10 * (t % 24) + 5
        obs[:, 0, 0] = np.arange(24)  # many values: no mask
        buffer.add(obs, obs, np.zeros((2, 1)), np.ones(2), np.array([t % 4 == 3, False]), [{}, {}])
    buffer.save(path)
    return buffer


def read_png(path: Path) -> Any:
    """Return the picture `[height, width, 3]` of a PNG file without filters, checksums compared."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        parts[kind] = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + parts[kind]) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        at += 12 + size
    width, height, bits, colour = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert (bits, colour) == (8, 2)
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def inspected(path: Path, capsys: Any, *options: str) -> Any:
    assert main(["inspect", str(path), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_said_of_a_replay_buffer(tmp_path, capsys):
    path = tmp_path / "some.buffer"
    buffer = replay(path, compression_method="zstd3", frame_stack=1)
    found = inspected(path, capsys)
    usage = buffer.memory_usage()
    assert (found["class"], found["rows"], found["capacity"], found["envs"]) == ("CompressedReplayBuffer", 12, 12, 2)
    assert found["action_space"] == "Discrete(4)"
    assert found["file_bytes"] == path.stat().st_size
    assert (found["raw_bytes"], found["ratio"]) == (usage.raw_bytes, found["stored_bytes"] / usage.raw_bytes)
    (part,) = found["observations"]
    assert (part["shape"], part["dtype"], part["method"], part["stack"]) == ([1, 20, 24], "uint8", "zstd", 1)
    assert part["unique_frames"] == usage.unique_frames
    assert "Zstd(level=3" in part["codec"]
    assert "sb3-extra-buffers" in found["versions"]


def test_episodes_of_a_ring(tmp_path, capsys):
    """Not wrapped: all that ended. Wrapped: the oldest one may have lost its beginning, and is left out."""
    replay(tmp_path / "part", size=30, n_steps=14)
    assert inspected(tmp_path / "part", capsys)["episodes"] == [{"length": 4, "return": 4.0}] * 3
    replay(tmp_path / "ring", size=10, n_steps=14)  # steps 4 to 13: ends at 7, 11
    assert inspected(tmp_path / "ring", capsys)["episodes"] == [{"length": 4, "return": 4.0}]


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_every_class(twin: Twin, tmp_path, capsys):
    buffer, _ = twin.make(twin.default_kind, 8, 2)
    data = steps(twin.default_kind, 2, 8)
    if twin in ROLLOUT:
        fill_rollout(twin, [buffer], data)
        list(buffer.get(4))  # the arrays are flat from now on
    else:
        for step in data:
            twin.add(buffer, step)
    buffer.save(tmp_path / "file")
    found = inspected(tmp_path / "file", capsys, "--frames", str(tmp_path / "sheet.png"))
    assert (found["class"], found["rows"]) == (type(buffer).__name__, buffer.size())
    assert found["raw_bytes"] == buffer.memory_usage().raw_bytes
    assert found["episodes"] is not None
    assert read_png(tmp_path / "sheet.png").any()


def test_episodes_of_a_rollout(tmp_path, capsys):
    twin = TWINS["rollout"]
    buffer, _ = twin.make(KINDS["image"], 9, 2)
    fill_rollout(twin, [buffer], steps(KINDS["image"], 2, 9))
    buffer.episode_starts[:] = 0
    buffer.episode_starts[[0, 4, 7], 0] = 1  # two whole ones; of the third the end is not known
    buffer.episode_starts[[2, 5], 1] = 1  # one: the first began before the rollout
    buffer.save(tmp_path / "file")
    assert sorted(each["length"] for each in inspected(tmp_path / "file", capsys)["episodes"]) == [3, 3, 4]


def test_class_of_somebodys_own(tmp_path, capsys):
    replay(tmp_path / "own", cls=compressed_class(OwnBuffer))
    assert inspected(tmp_path / "own", capsys)["class"] == "CompressedOwnBuffer"


@pytest.mark.parametrize("method", ["delta", "none"])
def test_device_buffer(method, tmp_path, capsys):
    replay(tmp_path / "device", cls=GpuReplayBuffer, compression_method=method, buffer_device="cpu")
    found = inspected(tmp_path / "device", capsys, "--frames", str(tmp_path / "sheet.png"))
    assert found["class"] == "GpuReplayBuffer"


def test_array(tmp_path, capsys):
    array = CompressedArray((40, 3), np.uint8, (20, 20), compression_method="rle")
    array[...] = np.arange(40, dtype=np.uint8)[:, None, None, None]
    array.save(tmp_path / "array")
    found = inspected(tmp_path / "array", capsys, "--frames")
    assert (found["class"], found["rows"], found["envs"]) == ("CompressedArray", 40, 3)
    assert found["raw_bytes"] == array.nbytes
    assert found["frames"] == str(tmp_path / "array.png")
    assert read_png(tmp_path / "array.png").any()


@pytest.mark.parametrize("method", [None, "delta"])
def test_record(method, tmp_path, capsys):
    record = RecordBuffer(res=(20, 24), ch_num=3, size=10, compression_method=method)
    for t in range(14):
        record.add(np.full((20, 24, 3), 10 * t, np.uint8), 2.0, 0, done=t % 4 == 3)
    record.save(tmp_path / "record")
    found = inspected(tmp_path / "record", capsys, "--frames")
    assert (found["class"], found["rows"], found["capacity"]) == ("RecordBuffer", 10, 10)
    assert found["episodes"] == [{"length": 4, "return": 8.0}] * 2
    sheet = read_png(tmp_path / "record.png")
    assert sheet[0, 0].tolist() == [40, 40, 40]  # the oldest that is left comes first


def test_record_of_an_older_version(capsys):
    found = inspected(Path(__file__).parent / "stored" / "record.npz", capsys)
    assert found["class"] == "RecordBuffer"
    assert found["rows"] > 0


def test_record_without_frames(tmp_path, capsys):
    record = FramelessRecordBuffer(res=(20, 24), size=10)
    record.add(np.zeros((20, 24, 3), np.uint8), 1.0, 0)
    record.save(tmp_path / "record")
    assert inspected(tmp_path / "record", capsys)["observations"] == []
    assert main(["inspect", str(tmp_path / "record"), "--frames"]) == 2


def test_text(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    twin = TWINS["dict-replay"]
    buffer, _ = twin.make(DICT_KINDS["image+vector"], 20, 2)
    for step in steps(DICT_KINDS["image+vector"], 2, 20):
        twin.add(buffer, step)
    buffer.save(tmp_path / "keyed")
    assert main(["inspect", str(tmp_path / "keyed")]) == 0
    out = capsys.readouterr().out
    for word in ("CompressedDictReplayBuffer", "20 of 20, 2 envs", "image", "vector", "dense", "episodes", "ratio"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 60


def test_sheet_shows_old_and_new_envs_in_turn(tmp_path):
    buffer = CompressedReplayBuffer(80, IMAGE, ACTIONS, "cpu", 2)
    for t in range(50):  # a ring of 40: steps 10 to 49 are left
        obs = np.stack([np.full(IMAGE.shape, 4 * t, np.uint8), np.full(IMAGE.shape, 4 * t + 1, np.uint8)])
        buffer.add(obs, obs, np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}])
    buffer.save(tmp_path / "ring")
    assert main(["inspect", str(tmp_path / "ring"), "--frames"]) == 0
    sheet = read_png(tmp_path / "ring.png")
    tile = 24 * (168 // 24) + 4
    values = sheet[:: 20 * 7 + 4, ::tile, 0][:4, :8].reshape(-1)
    assert values[0] == 40  # step 10, env 0
    assert values[-1] == 4 * 49 + 1  # step 49, env 1
    assert (values % 4 == np.arange(32) % 2).all()
    assert (np.diff(values // 4) >= 1).all()


def grey(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("obs", "stack", "first", "wanted"),
    [
        (grey(2, 20, 24), 1, None, lambda o: o),
        (grey(2, 1, 20, 24), 1, None, lambda o: o[:, 0]),
        (grey(2, 20, 24, 1), 1, None, lambda o: o[..., 0]),
        (grey(2, 4, 20, 24), 4, True, lambda o: o[:, 3]),
        (grey(2, 20, 24, 4), 4, False, lambda o: o[..., 3]),
    ],
)
def test_grey_pictures(obs, stack, first, wanted):
    shown = pictures.as_pictures(obs, stack, first)
    assert shown.shape == (2, 20, 24, 3)
    assert (shown == wanted(obs)[..., None]).all()


@pytest.mark.parametrize(
    ("obs", "stack", "first", "wanted"),
    [
        (grey(2, 3, 20, 24), 1, None, lambda o: np.moveaxis(o, 1, -1)),
        (grey(2, 20, 24, 3), 1, None, lambda o: o),
        (grey(2, 12, 20, 24), 4, True, lambda o: np.moveaxis(o[:, 9:], 1, -1)),
        (grey(2, 20, 24, 12), 4, False, lambda o: o[..., 9:]),
    ],
)
def test_rgb_pictures(obs, stack, first, wanted):
    assert (pictures.as_pictures(obs, stack, first) == wanted(obs)).all()


def test_masks_have_a_colour_for_each_value():
    masks = np.zeros((3, 20, 24, 1), np.uint8)
    masks[:, 5:9], masks[:, 9:12], masks[:, 12:] = 1, 2, 255
    shown = pictures.as_pictures(masks)
    colours = {value: {tuple(pixel) for pixel in shown[masks[..., 0] == value].tolist()} for value in (0, 1, 2, 255)}
    assert colours[0] == {(0, 0, 0)}
    assert all(len(each) == 1 for each in colours.values())
    assert len(set.union(*colours.values())) == 4


def test_other_values_are_scaled():
    floats = np.linspace(-1, 3, 2 * 400, dtype=np.float32).reshape(2, 20, 20)
    floats[0, 0, :3] = np.nan, np.inf, -np.inf
    shown = pictures.as_pictures(floats)
    assert shown[0, 0, :3, 0].tolist() == [0, 255, 0]
    assert (shown[..., 0].min(), shown[..., 0].max()) == (0, 255)
    assert pictures.as_pictures(np.eye(20, dtype=np.bool_)[None]).max() == 255


@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 3, 4, 5, 6)])
def test_what_is_no_picture(shape):
    assert pictures.as_pictures(np.zeros(shape, np.uint8)) is None


def test_vectors_cannot_be_drawn(tmp_path, capsys):
    buffer = CompressedReplayBuffer(10, spaces.Box(-1, 1, (90,), np.float32), ACTIONS, "cpu")
    obs = np.zeros((1, 90), np.float32)
    buffer.add(obs, obs, np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])
    buffer.save(tmp_path / "vectors")
    assert main(["inspect", str(tmp_path / "vectors"), "--frames"]) == 2
    assert "picture" in capsys.readouterr().err
    assert not (tmp_path / "vectors.png").exists()


def test_empty_buffer(tmp_path, capsys):
    replay(tmp_path / "empty", n_steps=0)
    found = inspected(tmp_path / "empty", capsys)
    assert (found["rows"], found["raw_bytes"], found["episodes"]) == (0, 0, None)
    assert main(["inspect", str(tmp_path / "empty"), "--frames"]) == 2


class Bomb:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def foreign(path: Path, kind: str) -> None:
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(path.with_name("exploded"))))
    elif kind == "objects":
        with path.open("wb") as file:
            np.savez(file, observations=np.array([Bomb(path.with_name("exploded"))], object))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", "{}")
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes({"empty": b"", "text": b"hello\n" * 1000, "short": b"\x89sb3xb\r\n"}[kind])


@pytest.mark.parametrize("kind", ["pickle", "objects", "zip", "folder", "missing", "empty", "text", "short"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--frames"]])
def test_foreign_file(kind, options, tmp_path, capsys):
    foreign(tmp_path / "file", kind)
    assert main(["inspect", str(tmp_path / "file"), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert str(tmp_path / "file") in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "exploded").exists()
    assert not (tmp_path / "file.png").exists()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("damage", ["bit", "cut"])
@pytest.mark.parametrize("kind", ["buffer", "record"])
def test_damaged_file(kind, damage, share, tmp_path, capsys):
    path = tmp_path / "file"
    if kind == "buffer":
        replay(path, size=40, n_steps=40)
    else:
        record = RecordBuffer(res=(20, 24), ch_num=1, size=10)
        for t in range(10):
            record.add(np.full((20, 24, 1), t, np.uint8), 1.0, 0)
        record.save(path)
    data = bytearray(path.read_bytes())
    at = int(share * len(data))
    data[at] ^= 16
    path.write_bytes(data if damage == "bit" else data[:at])
    code = main(["inspect", str(path)])
    out, err = capsys.readouterr()
    if code == 0:  # a byte that nobody reads: a spare copy, or padding
        assert damage == "bit"
        assert "rows" in out
    else:
        assert code == 2
        assert "damaged" in err


def test_names_in_a_file_cannot_steer_the_terminal(tmp_path, capsys):
    space = spaces.Dict({"\x1b[2J": IMAGE, "b": IMAGE})
    from sb3_extra_buffers.compressed import CompressedDictReplayBuffer

    CompressedDictReplayBuffer(4, space, ACTIONS, "cpu").save(tmp_path / "file")
    assert main(["inspect", str(tmp_path / "file")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_frames_are_png(tmp_path, capsys):
    replay(tmp_path / "some")
    assert main(["inspect", str(tmp_path / "some"), "--frames", str(tmp_path / "sheet.jpg")]) == 2
    assert "PNG" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("pos", "many"), ("pos", 2**80), ("size", 3), ("buffer_size", 10**9), ("n_envs", None), ("obs_shape", 7)],
)
def test_forged_file(name, value, tmp_path, capsys):
    """Right checksums, and attributes that no buffer has."""
    path = tmp_path / "file"
    replay(path)
    with files.reading(path) as reader:
        document, arrays = reader.document, {each: reader.array(each) for each in list(reader.arrays)}
    document["content"]["attributes"] |= {name: value, "full": True}
    files.write(path, lambda writer: [writer.array(*each) for each in arrays.items()] and document)
    assert main(["inspect", str(path), "--frames"]) == 2
    said = capsys.readouterr().err
    assert "damaged" in said
    assert name != "buffer_size" or "1,000,000,000 rows" in said  # before anything so large is made
