"""Three record buffers with one face: all, all but frames, nothing. Calling code never changes between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

import sb3_extra_buffers
from sb3_extra_buffers.codecs import parallel
from sb3_extra_buffers.codecs.base import array_bytes
from sb3_extra_buffers.frames import checks, saving
from sb3_extra_buffers.frames.array import CompressedArray, FrameArray
from sb3_extra_buffers.frames.cast import exact_cast
from sb3_extra_buffers.frames.files import Reader
from sb3_extra_buffers.frames.finishing import finish
from sb3_extra_buffers.frames.lock import Lock
from sb3_extra_buffers.frames.observations import ObservationStore
from sb3_extra_buffers.frames.saving import Decoder, Encoder, WrongClassError
from sb3_extra_buffers.recording import npz, video

if TYPE_CHECKING:
    from typing_extensions import Self

    from sb3_extra_buffers.compressed.memory import MemoryUsage

_CHUNK = 128  # frames that are decompressed at a time
_ALL = slice(None)
_ARRAYS = ("rewards", "actions", "features", "dones")


class Steps(NamedTuple):
    """Recorded steps, oldest first.

    Attributes:
        frames: `[n, channels, height, width]`, or None where frames are not kept.
        rewards: `[n]`.
        actions: `[n]`.
        features: `[n, number of features]`, or `[n]` with a field for each where their dtypes differ.
        dones: `[n]`, whether the step ended its episode.
    """

    frames: NDArray[Any] | None
    rewards: NDArray[Any]
    actions: NDArray[np.int64]
    features: NDArray[Any]
    dones: NDArray[np.bool_]


class BaseRecordBuffer(ABC):
    """What the three have in common: `buffer[span]` reads steps in order, oldest first, whatever the ring has done."""

    @abstractmethod
    def add(self, frame: Any, reward: float, action: Any, features: Sequence[Any] = (), done: bool = False) -> None:
        """Record one step.

        Args:
            frame: `[height, width, channels]`.
            reward: reward of the step.
            action: discrete action of the step.
            features: one value for each feature dtype the buffer was made with.
            done: whether the step ended its episode.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return how many steps are kept."""

    @abstractmethod
    def __getitem__(self, span: slice) -> Steps:
        """Return steps in the order they came: `buffer[:]` all, `buffer[-100:]` the last hundred."""

    @abstractmethod
    def episodes(self, whole: bool = False) -> list[slice]:
        """Return the span of each episode, oldest first, to read or export: `buffer[buffer.episodes()[-1]]`.

        Args:
            whole: leave out a first one whose beginning is overwritten, and a last one that has not ended.
        """

    @abstractmethod
    def save(self, path: str | PathLike[str]) -> None:
        """Write what is recorded to a file, whole or not at all; an older file stays until the new one is complete."""

    @abstractmethod
    def export(self, path: str | PathLike[str], span: slice = _ALL, fps: float = 30, scale: int = 1) -> int:
        """Write the frames of `span` as a video.

        Frames of 3, 6, ... channels show the last three as RGB, others the last as grey: of a stack, the newest.

        Args:
            path: ends in `.gif` or `.mp4`.
            span: steps, oldest first: a slice, such as one of `episodes()`.
            fps: frames per second. GIF counts time in hundredths of a second, and 50 is its limit.
            scale: how many times as large to draw each pixel.

        Returns:
            How many frames it wrote; 0, and no file, where frames are not kept.

        Raises:
            ImportError: Pillow (GIF) or imageio-ffmpeg (MP4) is missing; it holds the pip command.
            ValueError: another ending, an empty span, frames that are no pictures.
        """

    @abstractmethod
    def memory_usage(self) -> MemoryUsage:
        """Return how much memory the frames take, and would take uncompressed. Prints as a table."""


class DummyRecordBuffer(BaseRecordBuffer):
    """Records nothing. Takes the arguments of the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take and forget all arguments."""

    def add(self, frame: Any, reward: float, action: Any, features: Sequence[Any] = (), done: bool = False) -> None:
        """Forget the step."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, span: slice) -> Steps:
        """Return no steps."""
        nothing = np.zeros(0)
        return Steps(None, nothing, nothing.astype(np.int64), nothing[:, None], nothing.astype(np.bool_))

    def episodes(self, whole: bool = False) -> list[slice]:
        """Return no episodes."""
        return []

    def save(self, path: str | PathLike[str]) -> None:
        """Write nothing."""

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read nothing."""
        return cls()

    def export(self, path: str | PathLike[str], span: slice = _ALL, fps: float = 30, scale: int = 1) -> int:
        """Write nothing."""
        return 0

    def memory_usage(self) -> MemoryUsage:
        """Return zeros."""
        return _usage(self, "none", 0, 0, 0)


class FramelessRecordBuffer(BaseRecordBuffer):
    """Records everything but frames; `add` takes them all the same.

    Args:
        res: height and width of a frame.
        ch_num: channels of a frame.
        size: steps to keep; later ones overwrite the oldest.
        dtypes: of frames, rewards, and each feature. None: uint8, float32, no features.
        compression_method: as of `RecordBuffer`.

    Attributes:
        rewards: `[size]`.
        actions: `[size]`.
        features: `[size, n]` of their common dtype, or `[size]` with a field for each where dtypes differ.
        dones: `[size]`, whether the step ended its episode.
    """

    def __init__(
        self,
        res: tuple[int, int] = (240, 320),
        ch_num: int = 3,
        size: int = 40_000,
        dtypes: Sequence[DTypeLike] | None = None,
        *,
        compression_method: str | None = None,
    ) -> None:
        if size < 1 or ch_num < 1 or len(res) != 2 or min(res) < 1:
            raise ValueError(f"res, ch_num and size are at least 1; got res={res}, ch_num={ch_num}, size={size}")
        kinds = [np.dtype(kind) for kind in (dtypes if dtypes is not None else (np.uint8, np.float32))]
        if len(kinds) < 2:
            raise ValueError(f"dtypes are those of frames, rewards and each feature; got {len(kinds)}")
        if not all(kind.kind in "biuf" for kind in kinds):
            raise ValueError(f"frames, rewards and features are numbers; got dtypes {', '.join(map(str, kinds))}")
        self.size = int(size)
        self.frame_shape = (int(res[0]), int(res[1]), int(ch_num))
        self.frame_dtype, reward, *self.feature_dtypes = kinds
        self.compression_method = compression_method
        self.rewards = np.zeros(size, reward)
        self.actions = np.zeros(size, np.int64)
        self.dones = np.zeros(size, np.bool_)
        if len(set(self.feature_dtypes)) > 1:
            self.features = np.zeros(size, [(f"f{i}", kind) for i, kind in enumerate(self.feature_dtypes)])
        else:
            kind = self.feature_dtypes[0] if self.feature_dtypes else np.dtype(np.float32)
            self.features = np.zeros((size, len(self.feature_dtypes)), kind)
        self._added = 0
        self._cut = False  # whether the oldest step is in the middle of an episode
        self._lock = Lock()
        self._allocate()

    def __len__(self) -> int:
        return min(self._added, self.size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.size} steps, frames {self.frame_shape} {self.frame_dtype})"

    def add(self, frame: Any, reward: float, action: Any, features: Sequence[Any] = (), done: bool = False) -> None:
        """Record one step; bad input raises and records nothing.

        Raises:
            ValueError: a frame of another shape, not one value for each feature, a value that a dtype cannot hold.
            TypeError: something that is no number.
        """
        image = self._checked(frame)
        if len(features) != len(self.feature_dtypes):
            raise ValueError(f"{len(features)} features where each step has {len(self.feature_dtypes)}")
        values = tuple(_number(value, kind) for value, kind in zip(features, self.feature_dtypes, strict=True))
        earned, acted, ended = _number(reward, self.rewards.dtype), _number(action, self.actions.dtype), bool(done)
        with self._lock:
            before, row = self._added, self._added % self.size
            cut = before >= self.size and not self.dones[row]

            def record() -> None:
                self._keep(row, image)
                self.rewards[row], self.actions[row], self.features[row], self.dones[row] = earned, acted, values, ended
                self._added, self._cut = before + 1, cut

            finish(record)

    def __getitem__(self, span: slice) -> Steps:
        """Return steps in the order they came: `buffer[:]` all, `buffer[-100:]` the last hundred."""
        with self._lock:
            rows = self._rows(span)
            frames = self._read(rows)
            return Steps(frames, self.rewards[rows], self.actions[rows], self.features[rows], self.dones[rows])

    def episodes(self, whole: bool = False) -> list[slice]:
        """Return the span of each episode, oldest first; see `BaseRecordBuffer.episodes`."""
        with self._lock:
            dones, cut = self.dones[self._rows(_ALL)], self._cut
        stops = [last + 1 for last in np.flatnonzero(dones).tolist()]
        if stops[-1:] != [len(dones)] and len(dones) and not whole:
            stops.append(len(dones))
        spans = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        return spans[1:] if whole and cut else spans

    def save(self, path: str | PathLike[str]) -> None:
        """Write what is recorded to a file, whole or not at all: frames as they are kept, compressed or not.

        A later save to the same path writes only what has changed. Another thread may add meanwhile.

        Raises:
            OSError: no room, no permission, or another process is saving to the file.
        """
        dense = array_bytes(self) * len(self) // self.size
        saving.save(path, self._lock, self._stores(), self._describe, saving.nothing, dense)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the buffer that was saved. Nothing in the file is executed, every byte is verified.

        Raises:
            DamagedFileError: the file is damaged, or was not saved by this package.
            TypeError: it is no record, or has no frames where this class keeps them.
        """
        if npz.is_npz(Path(path)):
            return npz.load(cls, Path(path))
        with saving.loading(path, saving.nothing) as (document, decoder, finish):
            content = document["content"]
            if "record" not in content:
                raise WrongClassError(f"{path} holds a {content['class']}: load it with that class")
            about = dict(content["record"])
            added, cut = checks.integer(about.pop("added")), about.pop("cut") is True
            buffer = cls(**{**about, "res": tuple(about["res"])})
            buffer._added, buffer._cut = added, cut
            for name in _ARRAYS:
                _read(decoder.reader, content["arrays"][name], getattr(buffer, name)[: len(buffer)])
            if not buffer._take_frames(decoder, document["stores"], content["frames"]):
                raise WrongClassError(f"{path} holds a {content['class']}, which has no frames")
            finish(buffer._lock)
        return buffer

    def __getstate__(self) -> dict[str, Any]:
        """Return one state of the buffer, for pickle and deepcopy: a copy where another thread might add meanwhile."""
        with self._lock:
            return deepcopy(vars(self)) if parallel.others_run() else dict(vars(self))

    def export(self, path: str | PathLike[str], span: slice = _ALL, fps: float = 30, scale: int = 1) -> int:
        """Write nothing: frames are not kept."""
        return 0

    def memory_usage(self) -> MemoryUsage:
        """Return zeros: frames are not kept."""
        return _usage(self, "none", 0, 0, 0)

    def _rows(self, span: slice) -> NDArray[np.int64]:
        """Return where the steps of `span` are in the arrays."""
        if not isinstance(span, slice):
            raise TypeError(f"a record is read by slices, such as buffer[:10] or buffer[-1:]; got {span!r}")
        return (self._added - len(self) + np.arange(len(self))[span]) % self.size

    def _describe(self, encoder: Encoder) -> dict[str, Any]:
        """Write the steps to a file, and return a document of them."""
        about = {
            "res": list(self.frame_shape[:2]),
            "ch_num": self.frame_shape[2],
            "size": self.size,
            "dtypes": [kind.str for kind in (self.frame_dtype, self.rewards.dtype, *self.feature_dtypes)],
            "compression_method": self.compression_method,
            "added": self._added,
            "cut": bool(self._cut),
        }
        arrays = {name: encoder.writer.array(name, getattr(self, name)[: len(self)]) for name in _ARRAYS}
        frames = self._describe_frames(encoder)
        return {
            "class": type(self).__qualname__,
            "versions": {"sb3-extra-buffers": sb3_extra_buffers.__version__},
            "record": about,
            "arrays": arrays,
            "frames": frames,
        }

    def _stores(self) -> list[ObservationStore]:
        """Return what keeps compressed frames, where frames are kept so."""
        return []

    def _describe_frames(self, encoder: Encoder) -> Any:
        """Write frames to a file, where they are kept, and return a document of them."""
        return None

    def _take_frames(self, decoder: Decoder, stores: list[Any], frames: Any) -> bool:
        """Read frames from a file, where they are kept; tells whether it has those that are needed."""
        return True

    def _allocate(self) -> None:
        """Make room for frames, where they are kept."""

    def _checked(self, frame: Any) -> NDArray[Any] | None:
        """Return the frame to keep, if any."""
        return None

    def _keep(self, row: int, image: NDArray[Any] | None) -> None:
        """Keep the frame, where frames are kept."""

    def _read(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return frames, where they are kept."""
        return None


class RecordBuffer(FramelessRecordBuffer):
    """Records everything.

    Args:
        res: height and width of a frame.
        ch_num: channels of a frame.
        size: steps to keep; later ones overwrite the oldest.
        dtypes: of frames, rewards, and each feature. None: uint8, float32, no features.
        compression_method: keep frames compressed, losslessly, by a method of the table in the docs, such as `"auto"`.
            None: in a plain array.

    Attributes:
        frames: `[size, channels, height, width]`; with a method a `CompressedArray`, which reads the same.
        rewards: `[size]`.
        actions: `[size]`.
        features: `[size, n]` of their common dtype, or `[size]` with a field for each where dtypes differ.
        dones: `[size]`, whether the step ended its episode.
    """

    frames: Any

    def export(self, path: str | PathLike[str], span: slice = _ALL, fps: float = 30, scale: int = 1) -> int:
        """Write the frames of `span` as a video; see `BaseRecordBuffer.export`."""
        rows = self._rows(span)
        frames = (frame for chunk in _chunks(rows) for frame in self.frames[chunk])
        return video.write(Path(path), frames, len(rows), fps, scale)

    def memory_usage(self) -> MemoryUsage:
        """Return how much memory the frames take, and would take uncompressed. Prints as a table."""
        raw = len(self) * int(np.prod(self.frame_shape)) * self.frame_dtype.itemsize
        if self.compression_method is None:
            return _usage(self, "dense", raw, len(self), len(self))
        store = self.frames.store
        stored = store.nbytes  # asked first: it lets go of frames that are overwritten
        method = store.codec.name if store.planned else f"{store.method} (undecided)"
        return _usage(self, method, raw, len(self) * store.layout.stack, store.frames.n_frames, stored)

    def _allocate(self) -> None:
        *res, channels = self.frame_shape
        if self.compression_method is None:
            self.frames = np.zeros((self.size, channels, *res), self.frame_dtype)
        else:
            method = self.compression_method
            self._guard(CompressedArray(self.size, self.frame_dtype, (channels, *res), compression_method=method))

    def _checked(self, frame: Any) -> NDArray[Any]:
        image = np.asarray(frame)
        if image.shape == self.frame_shape[:2] and self.frame_shape[2] == 1:
            image = image[..., None]
        if image.shape != self.frame_shape:
            raise ValueError(f"a frame is [height, width, channels] {self.frame_shape}, not {image.shape}")
        return exact_cast(image, self.frame_dtype)

    def _keep(self, row: int, image: NDArray[Any] | None) -> None:
        if image is not None:
            self.frames[row] = np.moveaxis(image, -1, 0)

    def _read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self.frames[rows])

    def _stores(self) -> list[ObservationStore]:
        return [] if self.compression_method is None else [self.frames.store]

    def _describe_frames(self, encoder: Encoder) -> Any:
        if self.compression_method is None:
            return {"array": encoder.writer.array("frames", self.frames[: len(self)])}
        return encoder.value(self.frames, "frames")

    def _take_frames(self, decoder: Decoder, stores: list[Any], frames: Any) -> bool:
        if frames is None:
            return False
        if self.compression_method is None:
            _read(decoder.reader, frames["array"], self.frames[: len(self)])
            return True
        (store,) = stores
        decoder.store(store, lambda *args, **settings: ObservationStore(*args, **settings))
        loaded, wanted = decoder.value(frames), self.frames
        if (loaded.shape, loaded.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(f"frames are {loaded.dtype}{loaded.shape}, not {wanted.dtype}{wanted.shape}")
        self._guard(loaded)
        return True

    def _guard(self, frames: FrameArray) -> None:
        """Keep compressed frames, under one lock with all else."""
        self.frames, self._lock = frames, frames.store.lock
        frames.store.alone = False


def _read(reader: Reader, name: str, out: NDArray[Any]) -> None:
    """Read an array from a file into `out`, which it has to fit."""

    def room(size: int) -> NDArray[np.uint8]:
        if size != out.nbytes:
            raise ValueError(f"{name} has {size} bytes, not {out.nbytes}")
        return out.reshape(-1).view(np.uint8)

    found = reader.array(name, room)
    if (found.shape, found.dtype) != (out.shape, out.dtype):
        raise ValueError(f"{name} is {found.dtype}{found.shape}, not {out.dtype}{out.shape}")


def _chunks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))


def _number(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `value` as one number of `dtype`, exactly where that is an integer."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"rewards, actions and features are numbers; got {value!r}")
    if array.size != 1:
        raise ValueError(f"rewards, actions and features are single numbers; got shape {array.shape}")
    try:
        return exact_cast(array.reshape(()), dtype)
    except ValueError:
        raise ValueError(
            f"{dtype} cannot hold {value!r} exactly: give that reward, action or feature a dtype"
        ) from None


def _usage(
    buffer: BaseRecordBuffer, method: str, raw: int, frames: int, unique: int, stored: int | None = None
) -> MemoryUsage:
    from sb3_extra_buffers.compressed.memory import MemoryUsage  # loads torch, which recording does not need

    return MemoryUsage(type(buffer).__name__, method, raw, raw if stored is None else stored, frames, unique)
