"""What a codec is, and what a store keeps while it uses one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import parallel

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class CodecError(ValueError):
    """A payload that its codec did not write, or that was damaged since."""


@dataclass(frozen=True)
class Codec(ABC):
    """One way to turn the bytes of a frame into fewer bytes and back.

    A codec is a value: it holds its settings and nothing else. What it learns from frames (a dictionary, key frames)
    lives in the `Coder` that each store opens for itself.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[range, ...]] = ()

    @classmethod
    def from_level(cls, level: int | None, **settings: Any) -> Codec:
        """Return the codec for a level of the method string (None: the method's default).

        Raises:
            ImportError: a library it needs is missing; the message holds the pip command.
        """
        return cls(**settings) if level is None else cls(**{"level": level, **settings})

    @abstractmethod
    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame. It may be longer than the frame: the coder then keeps the frame itself."""

    @abstractmethod
    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of `payload` into `out`.

        Raises:
            CodecError: the payload does not decode to exactly `out.size` bytes.
        """

    def coder(self, frame_bytes: int) -> Coder:
        """Open the codec for frames of one size."""
        return Coder(self, frame_bytes)

    def adapted(self, **settings: Any) -> Codec:
        """Return the codec with these settings where it, or what stands behind it, has them."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        inner = {name: value.adapted(**settings) for name, value in own.items() if isinstance(value, Codec)}
        return replace(self, **inner, **{name: value for name, value in settings.items() if name in own})


class LearningCodec(Codec):
    """A codec that does its work in its coder. A frame alone is encoded and decoded by one that has learned nothing."""

    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame."""
        return self.coder(frame.size).encode(frame[None], np.zeros(1, np.int64)).data.tobytes()

    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of `payload` into `out`."""
        at, size, nothing = np.zeros(1, np.int64), np.array([payload.size]), np.zeros(1, np.int64)
        self.coder(out.size).decode(payload, at, size, nothing, out[None])


class Encoded(NamedTuple):
    """Payloads of a batch of frames: one after another in `data`, frame i in `lengths[i]` bytes."""

    data: Bytes
    lengths: Ints  # [n], frame_bytes where the frame is stored as it is
    references: Ints  # [n], what the payload was encoded against; 0 is nothing


class Coder:
    """Encodes and decodes batches of equally large frames for one store.

    A payload as long as the frame *is* the frame: codecs never make it larger. An empty payload against reference 0 is
    the frame of zeros, which every store has before anything is put into it.
    """

    payloads_tell = False
    """Whether frames are the same if, and only if, their payloads are, and encoding takes no longer than decoding.

    Then `encode` gives data that may be written to, and nothing has to be released if it is not stored."""

    def __init__(self, codec: Codec, frame_bytes: int) -> None:
        self.codec = codec
        self.frame_bytes = frame_bytes
        self.learning = True  # False: encode with what is known, because there is no room for more

    def of_today(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return the state that a file has as this version knows it; of what is left out, a new coder's is taken."""
        return saved

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames` [n, frame_bytes]; `streams` [n] says which env each one comes from."""
        payloads: list[bytes] = []
        for frame in frames:  # one library call per frame: these codecs have no batch interface
            payload = self.codec.encode(frame)
            payloads.append(payload if len(payload) < self.frame_bytes else frame.tobytes())
        return self._joined(payloads, np.zeros(len(frames), np.int64))

    @property
    def pixel_channels(self) -> int:
        """The channels of a pixel where `encode_pixels` takes less time than `encode`; else 0."""
        return 0

    def encode_pixels(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return what `encode` does, of frames that are channel by channel, but come pixel by pixel here."""
        raise NotImplementedError(f"{self.codec.name} takes frames as they are")

    def decode(self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, out: Bytes) -> None:
        """Write the frames whose payloads lie at `offsets` of `heap` into `out` [n, frame_bytes].

        Raises:
            CodecError: a payload is damaged.
        """
        rows, nowhere = np.arange(len(out), dtype=np.int64), np.full(len(out), -1, np.int64)
        self.decode_groups(heap, offsets, lengths, references, out, rows, nowhere, 1)

    def decode_groups(
        self,
        heap: Bytes,
        offsets: Ints,
        lengths: Ints,
        references: Ints,
        out: Bytes,
        rows: Ints,
        sources: Ints,
        group: int,
    ) -> None:
        """Decode frame i into `out[rows[i]]`, or copy it from row `sources[i]` where that is not -1.

        Such a row is that of an earlier frame of the same `group`, so many in a row, which is decoded itself.

        Raises:
            CodecError: a payload is damaged.
        """

        def work(start: int, stop: int) -> int:
            a, b = group * start, group * stop
            arrays = (offsets[a:b], lengths[a:b], references[a:b], rows[a:b], sources[a:b])
            bad = self.decode_part(heap, *arrays, out)
            return bad if bad < 0 else a + bad

        n_bytes, worth = self.effort(lengths, sources, out)
        worst = max(parallel.split(len(rows) // group, n_bytes, work, worth), default=-1)
        if worst >= 0:
            raise CodecError(f"{self.codec.name}: payload {worst} of {len(rows)} is damaged")

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode or copy as `decode_groups` does, in this thread.

        Returns:
            The first frame whose payload is damaged, or -1.

        Raises:
            CodecError: a payload is damaged, and there is more to say.
        """
        check_bounds(heap, offsets, lengths)
        where = zip(*(array.tolist() for array in (offsets, lengths, references, rows, sources)), strict=True)
        for start, length, reference, row, source in where:
            if source >= 0:
                out[row] = out[source]
            elif length == 0:
                out[row] = 0
            elif length == self.frame_bytes:
                out[row] = heap[start : start + length]
            else:
                self._decode_one(heap[start : start + length], reference, out[row])
        return -1

    def decode_new(self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, out: Bytes) -> int:
        """Decode frames into the rows of `out`, in this thread; returns as `decode_part` does."""
        rows, nowhere = np.arange(len(out), dtype=np.int64), np.full(len(out), -1, np.int64)
        return self.decode_part(heap, offsets, lengths, references, rows, nowhere, out)

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        """Return how many bytes there are to work on, and from how many on another thread pays: these never do."""
        return 0, 1

    @property
    def slowness(self) -> int:
        """How many times as long as an ordinary decoder it takes, where threads may help."""
        return 1

    def _decode_one(self, payload: Bytes, reference: int, out: Bytes) -> None:
        self.codec.decode(payload, out)

    def release(self, references: NDArray[Any]) -> None:
        """Say that frames encoded against these references are gone. Nothing to do unless the codec has references."""

    def rewritten(self, references: Iterable[NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
        """Return which rows of its arrays may have changed while frames with these references were encoded, by name.

        Rows that nothing refers to are left out: they are written before they are read.
        """
        return {}

    @property
    def nbytes(self) -> int:
        """Bytes kept to encode and decode: dictionaries, key frames."""
        return 0

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes by which `nbytes` may grow while encoding so many frames and learning from them."""
        return 0

    def missing_bytes(self, n_streams: int) -> int:
        """Bytes by which `nbytes` grows when a frame of one of so many streams is encoded, learning or not."""
        return 0

    @staticmethod
    def _joined(payloads: Sequence[bytes], references: Ints) -> Encoded:
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        return Encoded(np.frombuffer(b"".join(payloads), np.uint8), lengths, references)


class BatchCoder(Coder):
    """A coder whose kernel decodes many frames in a call, in threads where that pays."""

    worth = parallel.WORTH

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        return out.nbytes, self.worth

    @abstractmethod
    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode or copy. A row that is copied was just written: it is still near."""


def grown(array: NDArray[Any], more: int, value: int = 0) -> NDArray[Any]:
    """Return `array` with `more` entries of `value` at its end: a copy, unless that is none."""
    if more == 0:
        return array
    result = np.full((len(array) + more, *array.shape[1:]), value, array.dtype)
    result[: len(array)] = array
    return result


def array_bytes(owner: object) -> int:
    """Return the bytes of the arrays that are attributes of `owner`. Another thread may set new ones meanwhile."""
    values = list(vars(owner).values())
    return sum(value.nbytes for value in values if issubclass(type(value), np.ndarray))  # others pass for instances


def check_bounds(heap: Bytes, offsets: Ints, lengths: Ints) -> None:
    """Raise `CodecError` if a payload reaches outside the heap."""
    if len(offsets) and (offsets.min() < 0 or lengths.min() < 0 or (lengths > heap.size - offsets).any()):
        raise CodecError("a frame's payload lies outside the heap")


def check_settings(name: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise `ValueError` naming the settings that `name` does not have."""
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        known = ", ".join(allowed) if allowed else "none"
        raise ValueError(f"unknown settings for {name!r}: {', '.join(unknown)}; it has: {known}")
