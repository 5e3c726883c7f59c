"""`zstd`: small, with a dictionary that it trains by itself on the first frames.

The binding is `zstandard`: of those on PyPI it alone has dictionaries (also training), contexts that are reused from
frame to frame, and payloads without magic number, size and dictionary id, which the store knows anyway.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints

_TRAINED_AFTER = (128, 2048)  # frames: early for a start, later for what episodes look like
_SAMPLE_BYTES = 1 << 23  # memory for frames to train on, at most
_WORTH = 0.95  # a dictionary is kept if the samples' payloads shrink at least to this
_LONG = 2048  # bytes of payloads that are longer to decode than it takes threads to pass the GIL on
_THREADED = 1 << 18  # bytes of them that are worth another thread


@dataclass(frozen=True)
class Zstd(Codec):
    """Zstandard. Negative levels are faster, positive ones smaller.

    Attributes:
        dictionary_bytes: size of the dictionary trained on the first frames; 0 for none.
    """

    name = "zstd"
    levels = (range(-100, 0), range(1, 23))
    level: int = -3
    dictionary_bytes: int = 16_384

    def __post_init__(self) -> None:
        optional.require("zstandard", self.name, "zstd")
        if self.dictionary_bytes != 0 and self.dictionary_bytes < 256:
            raise ValueError(f"dictionary_bytes is 0 for none, or at least 256, not {self.dictionary_bytes}")

    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame, without a dictionary."""
        return bytes(compressor(self.level, frame.size, b"").compress(frame))

    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of a payload without a dictionary into `out`."""
        decompress(decompressor(b""), payload, out)

    def coder(self, frame_bytes: int) -> ZstdCoder:
        return ZstdCoder(self, frame_bytes)


class ZstdCoder(Coder):
    """Owns the dictionaries that payloads refer to; reference 0 is none."""

    codec: Zstd

    def __init__(self, codec: Zstd, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.dictionaries = [b""]
        self.samples: list[bytes | bytearray | memoryview] = []
        self.seen = 0 if codec.dictionary_bytes else _TRAINED_AFTER[-1]
        self._contexts()

    def _contexts(self) -> None:
        context = compressor(self.codec.level, self.frame_bytes, self.dictionaries[-1])
        self._writing = len(self.dictionaries) - 1, context  # the dictionary and what compresses with it
        self._of_threads = threading.local()

    def _decompressors(self) -> list[Any]:
        """Return this thread's contexts, one for each dictionary: no two threads may use the same."""
        contexts: list[Any] = vars(self._of_threads).setdefault("contexts", [])
        for dictionary in self.dictionaries[len(contexts) :]:
            contexts.append(decompressor(dictionary))
        return contexts

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._contexts()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`, against the newest dictionary."""
        payloads: list[bytes] = []
        references = np.empty(len(frames), np.int64)
        for i, frame in enumerate(frames):  # few frames a call: the library's batch interface costs more than it saves
            references[i], context = self._writing
            payload = context.compress(frame)
            payloads.append(payload if len(payload) < self.frame_bytes else frame.tobytes())
            if self.learning and self.seen < _TRAINED_AFTER[-1]:
                self._learn(frame, len(payload))
        return self._joined(payloads, references)

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode or copy, frame by frame."""
        if len(references) and not 0 <= references.min() <= references.max() < len(self.dictionaries):
            raise CodecError("zstd: a frame refers to a dictionary that is not there")
        return super().decode_part(heap, offsets, lengths, references, rows, sources, out)

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        new = lengths[sources < 0]
        n_bytes = int(new.sum())  # zstd works without the GIL, so threads pay if payloads are long
        return n_bytes if n_bytes >= _LONG * len(new) else 0, _THREADED

    def _decode_one(self, payload: Bytes, reference: int, out: Bytes) -> None:
        decompress(self._decompressors()[reference], payload, out)

    def _learn(self, frame: Bytes, payload_bytes: int) -> None:
        """Keep some of the first frames, and train a dictionary on them when it is time."""
        wanted = self.seen < _TRAINED_AFTER[0] or self.seen % 4 == 0
        room = (len(self.samples) + 1) * self.frame_bytes <= _SAMPLE_BYTES
        if wanted and room and payload_bytes < self.frame_bytes // 2:  # noise has nothing to learn from
            self.samples.append(frame.tobytes())
        self.seen += 1
        if self.seen in _TRAINED_AFTER:
            self._train()
            self.samples = []

    def _train(self) -> None:
        """Train a dictionary on the samples, and use it from now on if it pays."""
        import zstandard

        try:
            trained = zstandard.train_dictionary(self.codec.dictionary_bytes, self.samples).as_bytes()
        except (zstandard.ZstdError, ValueError):  # too few samples, or too alike to learn from
            return
        context = compressor(self.codec.level, self.frame_bytes, trained)
        small = sum(len(context.compress(sample)) for sample in self.samples)
        plain = sum(len(self._writing[1].compress(sample)) for sample in self.samples)
        if small < _WORTH * plain:
            self.dictionaries = [*self.dictionaries, trained]  # nobody refers to it yet, should this be interrupted
            self._writing = len(self.dictionaries) - 1, context

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of the samples and the dictionary that may be added."""
        return n_frames * self.frame_bytes + self.codec.dictionary_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the dictionaries, and of the frames kept to train the next."""
        return sum(map(len, self.dictionaries)) + len(self.samples) * self.frame_bytes


def compressor(level: int, frame_bytes: int, dictionary: bytes) -> Any:
    """Return a context that writes bare payloads: no magic number, no size, no dictionary id, no checksum."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=frame_bytes,
        dict_size=len(dictionary),
        write_content_size=0,
        write_checksum=0,
        write_dict_id=0,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
    )
    data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=data)


def decompressor(dictionary: bytes) -> Any:
    """Return a context that reads what `compressor` writes."""
    import zstandard

    data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdDecompressor(dict_data=data, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


def decompress(context: Any, payload: Bytes, out: Bytes) -> None:
    """Decompress one payload into `out`."""
    import zstandard

    if payload.size and payload[0]:  # a header with a size: not ours, and the library would allocate what it says
        raise CodecError("zstd: the payload has a header of another kind")
    try:
        frame = context.decompress(payload, max_output_size=out.size, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise CodecError(f"zstd: {error}") from error
    if len(frame) != out.size:
        raise CodecError(f"zstd: the payload does not hold a frame of {out.size} bytes")
    out.data[:] = frame
