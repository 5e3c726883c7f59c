"""What is in a saved file: a buffer of any class, a `CompressedArray`, or a record. Nothing in it is executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from sb3_extra_buffers import compressed, gpu_buffers, recording
from sb3_extra_buffers.cli import pictures
from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.compressed import CompressedArray, CompressedObservations, MemoryUsage, saving
from sb3_extra_buffers.compressed.memory import described_space
from sb3_extra_buffers.frames import files
from sb3_extra_buffers.recording import npz

_ON_A_SHEET = 32
_PICKLE = b"\x80"


class Part(NamedTuple):
    """Observations of one key.

    Attributes:
        name: the key; nothing where there is one kind of observations only.
        space: what they are, in a few words.
        codec: the codec with its settings, or `dense`.
        array: `[rows, envs, *obs_shape]` or `[rows, *obs_shape]`.
        obs_shape: shape of one.
        stack: frames in one.
        channels_first: whether the frames lie along the first axis; None: not known.
    """

    name: str
    space: str
    codec: str
    array: Any
    obs_shape: tuple[int, ...]
    stack: int = 1
    channels_first: bool | None = None


@dataclass(frozen=True)
class Saved:
    """What a file holds.

    Attributes:
        kind: class of what was saved.
        rows: how many rows are filled; `order` says where they are, oldest first.
        capacity: how many there may be.
        envs: how many envs wrote; 0 where that is not known.
        usage: bytes and frames.
        parts: observations by key.
        versions: of the packages that wrote it, where the file says so.
        actions: the action space, in a few words.
        episodes: length and return of each episode that is whole, oldest first; None where the file does not say.
    """

    kind: str
    order: NDArray[np.int64]
    capacity: int
    envs: int
    usage: MemoryUsage
    parts: Sequence[Part]
    versions: dict[str, str] = field(default_factory=dict)
    actions: str | None = None
    episodes: list[tuple[int, float]] | None = None

    @property
    def rows(self) -> int:
        """How many rows are filled."""
        return len(self.order)


def read(path: Path) -> Saved:
    """Return what is in a file, after all of it was read and compared with its checksums.

    Raises:
        ValueError: it is damaged, or something else.
        OSError: it cannot be read.
        ImportError: the library of its compression method is missing; it holds the pip command.
    """
    with path.open("rb") as file:
        start = file.read(1)
    if start == _PICKLE:
        raise ValueError(
            f"{path} is a pickle, and loading one executes what it says. If you trust it, load it with "
            "model.load_replay_buffer, and save it with buffer.save"
        )
    with _nonsense(path):
        return _of_record(path, npz.has_frames(path), {}) if npz.is_npz(path) else _read_buffer(path)


@contextmanager
def _nonsense(path: Path) -> Iterator[None]:
    """Say that a file is damaged where its values are of another kind, or larger, than such a buffer has them."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{path} is damaged or was not saved by this package: {error}") from error


def _read_buffer(path: Path) -> Saved:
    with files.reading(path) as reader:
        content = reader.document["content"]
        kind = str(content["class"])
    if kind == "CompressedArray":
        return _of_array(CompressedArray.load(path))
    versions = {str(k): str(v) for k, v in content["versions"].items()}
    if "record" in content:
        return _of_record(path, content["frames"] is not None, versions)
    buffer = saving.load(_class_of(kind, "next_observations" in content["observations"]), path)
    return _of_buffer(buffer, kind, versions)


def _class_of(kind: str, replays: bool) -> type[Any]:
    """Return the class of this package that is named so, or one like it: a class of somebody's own is not imported."""
    modules: list[Any] = [compressed, gpu_buffers]
    if optional.has("sb3_contrib"):
        from sb3_extra_buffers.compressed import contrib

        modules.append(contrib)
    known = {name: getattr(module, name) for module in modules for name in module.__all__}
    found = known.get(kind)
    if isinstance(found, type) and issubclass(found, CompressedObservations):
        return found
    return type(kind, (CompressedObservations, ReplayBuffer if replays else RolloutBuffer), {})


def _of_buffer(buffer: Any, kind: str, versions: dict[str, str]) -> Saved:
    rows, arrays = buffer.size(), buffer.observations
    held = min(map(len, arrays.values())) if isinstance(arrays, dict) else len(arrays)
    if rows > held:
        raise IndexError(f"{rows:,} rows are said to be filled, and there are {held:,}")
    order = (np.arange(rows) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    return Saved(
        kind=kind,
        order=order,
        capacity=buffer.buffer_size,
        envs=buffer.n_envs,
        usage=buffer.memory_usage(),
        parts=list(_parts(buffer)),
        versions=versions,
        actions=described_space(buffer.action_space),
        episodes=_episodes(buffer, order),
    )


def _parts(buffer: Any) -> Iterator[Part]:
    space, arrays = buffer.observation_space, buffer.observations
    keyed = isinstance(arrays, dict)
    for key, part in space.spaces.items() if keyed else [(None, space)]:
        array, store = arrays[key] if keyed else arrays, buffer._stores.get(key)
        shape = tuple(buffer.obs_shape[key] if keyed else buffer.obs_shape)
        name = "" if key is None else str(key)
        if store is None:
            yield Part(name, described_space(part), "dense", array, shape)
        else:
            yield Part(name, described_space(part), str(store.codec), array, shape, *_stacked(store))


def _stacked(store: Any) -> tuple[int, bool | None]:
    return store.layout.stack, store.layout.axis == 0 if store.layout.stack > 1 else None


def _episodes(buffer: Any, order: NDArray[np.int64]) -> list[tuple[int, float]] | None:
    """Return the episodes that the arrays of SB3's buffer show: replay buffers say where they end, others begin."""
    attributes = vars(buffer)
    if not len(order) or "rewards" not in attributes:
        return None
    rewards = attributes["rewards"][order]
    if "dones" in attributes:
        ends = attributes["dones"][order] > 0
        cut = np.full(buffer.n_envs, buffer.full)  # the oldest row of a ring that has wrapped is in the middle of one
    elif "episode_starts" in attributes:
        starts = attributes["episode_starts"] > 0
        if starts.shape != attributes["rewards"].shape:  # sb3-contrib's, once read: env by env
            starts = starts.reshape(buffer.n_envs, -1).T
        starts = starts[order]
        ends, cut = np.roll(starts, -1, axis=0), ~starts[0]
        ends[-1] = False  # not known
    else:
        return None
    found = []
    for env in range(buffer.n_envs):
        stops = np.flatnonzero(ends[:, env]) + 1
        spans = list(zip([0, *stops.tolist()], stops.tolist(), strict=False))[int(cut[env]) :]
        found += [(stop, stop - start, float(rewards[start:stop, env].sum(dtype=np.float64))) for start, stop in spans]
    return [(length, earned) for _, length, earned in sorted(found)]


def _of_array(array: Any) -> Saved:
    store = array.store
    leading = array.shape[: array.ndim - len(store.obs_shape)]
    n = prod(leading)
    usage = MemoryUsage(
        name="CompressedArray",
        method=store.codec.name,
        raw_bytes=array.nbytes,
        stored_bytes=store.nbytes,
        frames=n * store.layout.stack,
        unique_frames=store.frames.n_frames,
    )
    part = Part("", f"{array.shape} {array.dtype}", str(store.codec), array, store.obs_shape, *_stacked(store))
    envs = prod(leading[1:])
    return Saved("CompressedArray", np.arange(leading[0]), leading[0], envs, usage, [part])


def _of_record(path: Path, framed: bool, versions: dict[str, str]) -> Saved:
    kind = recording.RecordBuffer if framed else recording.FramelessRecordBuffer
    buffer = kind.load(path)
    order = buffer._rows(slice(None))
    rewards = buffer.rewards[order].astype(np.float64)
    parts = []
    if isinstance(buffer, recording.RecordBuffer):
        codec = buffer.compression_method or "dense"
        shape = tuple(buffer.frames.shape[1:])
        parts = [Part("", f"frames {shape} {buffer.frame_dtype}", codec, buffer.frames, shape, 1, True)]
    return Saved(
        kind=kind.__name__,
        order=order,
        capacity=buffer.size,
        envs=1,
        usage=buffer.memory_usage(),
        parts=parts,
        versions=versions,
        episodes=[(span.stop - span.start, float(rewards[span].sum())) for span in buffer.episodes(whole=True)],
    )


def contact_sheet(saved: Saved, path: Path) -> pictures.Image:
    """Return a picture of observations spread over what was read, oldest first; one panel for each key.

    Raises:
        ValueError: there is nothing to show.
    """
    with _nonsense(path):
        panels = [panel for part in saved.parts if (panel := _panel(part, saved.order)) is not None]
    if not panels:
        raise ValueError("there are no frames to draw: " + ("no observation is a picture" if saved.rows else "no rows"))
    return pictures.sheet(panels)


def _panel(part: Part, order: NDArray[np.int64]) -> pictures.Image | None:
    if not len(order) or len(part.obs_shape) not in (2, 3):
        return None
    leading = part.array.shape[: len(part.array.shape) - len(part.obs_shape)]
    streams = prod(leading[1:])
    if leading[0] > len(order) and len(leading) == 1:  # a rollout that was read: env by env
        order, streams = np.arange(leading[0]), 1
    n = min(_ON_A_SHEET, len(order) * streams)
    if len(order) < n:
        rows, envs = np.divmod(np.linspace(0, len(order) * streams - 1, n).astype(np.int64), streams)
    else:
        rows, envs = np.linspace(0, len(order) - 1, n).astype(np.int64), np.arange(n) % streams
    index = (order[rows], *np.unravel_index(envs, leading[1:])) if len(leading) > 1 else (order[rows],)
    return pictures.as_pictures(np.asarray(part.array[index]), part.stack, part.channels_first)
