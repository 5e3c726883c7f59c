"""Filter `palette`: one byte for each pixel, the number of its colour, then any codec. Exact.

Many games draw with few colours: each store collects them as they come, up to 256 in a palette, and opens another one
when they do not fit. Colours are only ever added, so what was encoded stays good. A frame that has more than 256, or
finds no palette, is encoded as it is (see `interleave`).

The reference of a payload says which palette it needs, in its lowest byte (255: none), and above that what the inner
codec needs. Palette 0 begins with black: an empty payload is the frame of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import finding, jit, painting, parallel
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints, array_bytes, check_bounds
from sb3_extra_buffers.codecs.interleave import Interleave
from sb3_extra_buffers.codecs.like import Like
from sb3_extra_buffers.codecs.near import Near
from sb3_extra_buffers.codecs.neighbours import Neighbours
from sb3_extra_buffers.codecs.ranks import Ranks
from sb3_extra_buffers.codecs.zstd import Zstd

Colours = NDArray[np.uint32]
Slots = NDArray[np.uint16]

_MOST = 16  # palettes
_NONE = 255  # in the place of a palette's number
_SLOTS = 4096  # of the table that finds a colour: mostly empty, so that the first look is nearly always enough
_HASH, _SHIFT = 0x9E3779B1, 20


@dataclass(frozen=True)
class Palette(Codec):
    """Turns frames of pixels into frames of colour numbers for `inner`.

    Attributes:
        inner: what encodes them.
        channels: bytes of a pixel, 2 to 4. Frames that cannot be divided so are left as they are.
        planar: whether frames come channel by channel, or else pixel by pixel.
    """

    name = "palette"
    sizes: ClassVar[range] = range(2, 5)
    inner: Codec
    channels: int = 3
    planar: bool = True

    def __post_init__(self) -> None:
        if type(self.channels) is not int or self.channels not in self.sizes:
            raise ValueError(f"a palette is for pixels of 2 to 4 bytes, not {self.channels}")

    @property
    def named(self) -> Codec:
        """The codec that it was put before."""
        codec = self.inner
        while isinstance(codec, (Like, Neighbours, Ranks)):
            codec = codec.inner
        return codec

    @property
    def without(self) -> Codec:
        """What encodes frames that have too many colours."""
        return Interleave(self.named, self.channels, self.planar)

    @classmethod
    def before(cls, inner: Codec, row_bytes: int = 1, **settings: Any) -> Palette:
        """Return the filter before a codec, with what makes colour numbers smaller for that.

        Args:
            inner: what encodes them.
            row_bytes: size of a row of the picture.
            **settings: `channels` and `planar`.
        """
        if isinstance(inner, Zstd):
            inner = Like(Neighbours(inner))
        elif isinstance(inner, Near):
            inner = Ranks(inner)
        return cls(inner, **settings).adapted(row_bytes=row_bytes)

    def adapted(self, **settings: Any) -> Palette:
        """Return the filter with these settings; what stands behind it has rows of one byte a pixel."""
        own = replace(self, **{name: settings[name] for name in ("channels", "planar") if name in settings})
        if "row_bytes" in settings and not own.planar:
            settings["row_bytes"] = max(settings["row_bytes"] // own.channels, 1)
        return replace(own, inner=self.inner.adapted(**settings))

    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame: alone it has no palette."""
        return self.without.encode(frame)

    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of a payload without a palette into `out`."""
        self.without.decode(payload, out)

    def coder(self, frame_bytes: int) -> Coder:
        if frame_bytes % self.channels:
            return self.without.coder(frame_bytes)
        return PaletteCoder(self, frame_bytes)


class PaletteCoder(Coder):
    """Owns the palettes and the inner codec's coders: for colour numbers, and for frames of too many colours."""

    codec: Palette

    def __init__(self, codec: Palette, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.pixels = frame_bytes // codec.channels
        self.inner = codec.inner.coder(self.pixels)
        self.whole = codec.without.coder(frame_bytes)
        self.colours = np.zeros((1, 256), np.uint32)
        self.known = np.ones(1, np.int64)  # colours in each palette
        self.current = 0
        self._compile()

    def _compile(self) -> None:
        data = "uint8[::1]"
        self._find = jit.choose(
            _find_kernel,
            find_reference,
            f"boolean({data}, int64, boolean, uint32[::1], int64[::1], uint16[::1], {data})",
        )
        self._find_known: Any = None
        if self.codec.channels == finding.CHANNELS and self.pixels >= finding.LEAST and jit.has_vectors():
            from sb3_extra_buffers.codecs import vectors

            known = f"boolean({data}, boolean, uint64[::1], {data}, {data})"
            self._find_known = jit.compiled(vectors.find_kernel, known)
        self._tables: dict[int, finding.Tables] = {}  # of some palettes
        self._paint, self._worth = painting.painting(self.codec.planar), painting.worth(self.codec.planar)
        self._slots = np.array([_slots(colours, int(n)) for colours, n in zip(self.colours, self.known, strict=True)])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    @property
    def pixel_channels(self) -> int:
        """Channels of a pixel, where frames come channel by channel."""
        return self.codec.channels if self.codec.planar else 0

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of the frames' colour numbers, or of frames that have too many."""
        return self._encode(frames, streams, self.codec.planar, self.whole.encode)

    def encode_pixels(self, frames: Bytes, streams: Ints) -> Encoded:
        return self._encode(frames, streams, False, self.whole.encode_pixels)

    def _encode(
        self, frames: Bytes, streams: Ints, planar: bool, encode_whole: Callable[[Bytes, Ints], Encoded]
    ) -> Encoded:
        self.inner.learning = self.whole.learning = self.learning
        frames = jit.contiguous(frames)
        numbers = np.empty((len(frames), self.pixels), np.uint8)
        looked = [self._look(frame, planar, row) for frame, row in zip(frames, numbers, strict=True)]
        palettes = np.array(looked, np.int64)
        coloured = palettes != _NONE
        if coloured.all():
            encoded = self.inner.encode(numbers, streams)
        elif not coloured.any():
            encoded = encode_whole(frames, streams)
        else:
            one_by_one = [
                self.inner.encode(numbers[i : i + 1], streams[i : i + 1])
                if coloured[i]
                else encode_whole(frames[i : i + 1], streams[i : i + 1])
                for i in range(len(frames))
            ]
            encoded = Encoded(*(np.concatenate(parts) for parts in zip(*one_by_one, strict=True)))
        return encoded._replace(references=encoded.references << 8 | palettes)

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
        """Decode the colour numbers and paint them, in threads where that pays."""
        self._decode(heap, offsets, lengths, references, out, rows, sources, parallel.split)

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode the colour numbers and paint them."""
        self._decode(heap, offsets, lengths, references, out, rows, sources, lambda n, n_bytes, do, worth: [do(0, n)])
        return -1

    def _decode(
        self,
        heap: Bytes,
        offsets: Ints,
        lengths: Ints,
        references: Ints,
        out: Bytes,
        rows: Ints,
        sources: Ints,
        split: Callable[..., list[int]],
    ) -> None:
        """Decode the colour numbers and paint them, `split` into parts. Those that are stored bare are only painted."""
        check_bounds(heap, offsets, lengths)
        palettes, inner, new = references & 255, references >> 8, sources < 0
        coloured = new & (palettes != _NONE)
        if palettes[coloured].max(initial=0) >= len(self.colours):
            raise CodecError("palette: a frame refers to a palette that is not there")
        bare, packed = coloured & (lengths == self.pixels), coloured & (lengths != self.pixels)

        def paint(data: Bytes, starts: Ints, which: Ints) -> None:
            channels, planar = self.codec.channels, self.codec.planar
            self._paint(data, starts, self.pixels, palettes[which], self.colours, channels, planar, rows[which], out)

        def paint_bare(which: Ints) -> int:
            paint(heap, offsets[which], which)
            return -1

        def paint_packed(which: Ints) -> int:
            numbers = np.empty((len(which), self.pixels), np.uint8)
            bad = self.inner.decode_new(heap, offsets[which], lengths[which], inner[which], numbers)
            paint(numbers.reshape(-1), self.pixels * np.arange(len(which), dtype=np.int64), which)
            return bad

        def decode_whole(which: Ints) -> int:
            where = (offsets[which], lengths[which], inner[which], rows[which], sources[which])
            return self.whole.decode_part(heap, *where, out)

        def all_of(mask: NDArray[np.bool_], do: Callable[[Ints], int]) -> None:
            which = mask.nonzero()[0]
            which = which[inner[which].argsort(kind="stable")]  # those that need the same go to the same thread
            if not which.size:
                return
            n_bytes, worth = self.effort(lengths[which], sources[which], out[: which.size])
            if max(split(len(which), n_bytes, lambda start, stop: do(which[start:stop]), worth)) >= 0:
                raise CodecError(f"palette: a payload of {len(which)} is damaged")

        all_of(bare, paint_bare)
        all_of(packed, paint_packed)
        all_of(new & ~coloured, decode_whole)
        if not new.all():
            out[rows[~new]] = out[sources[~new]]

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        """Return what there is to paint; nothing where a codec that threads do not help has to decode first."""
        packed = (lengths != self.pixels) & (sources < 0)
        if not packed.any():
            return out.nbytes, self._worth
        if not self.inner.effort(lengths[packed], sources[packed], out[:, : self.pixels])[0]:
            return 0, parallel.WORTH
        # Each piece has several calls, between which threads wait for the GIL.
        return out.nbytes, 4 * parallel.WORTH // self.inner.slowness

    def release(self, references: Ints) -> None:
        """Tell the inner coders."""
        coloured = references & 255 != _NONE
        self.inner.release(references[coloured] >> 8)
        self.whole.release(references[~coloured] >> 8)

    @property
    def nbytes(self) -> int:
        """Bytes of the palettes, and of what the inner coders keep."""
        return array_bytes(self) + finding.BYTES * len(self._tables) + self.inner.nbytes + self.whole.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of palettes that may be added, and of what the inner coders may add."""
        more = min(n_frames, _MOST - len(self.colours))
        palettes: int = more * (self.colours[0].nbytes + self._slots[0].nbytes + 8)
        if self._find_known is not None:
            palettes += finding.BYTES * (min(n_frames, len(self.colours) - len(self._tables)) + more)
        return palettes + self.inner.growth_bytes(n_frames) + self.whole.growth_bytes(n_frames)

    def missing_bytes(self, n_streams: int) -> int:
        """Bytes that the inner coders must add."""
        return self.inner.missing_bytes(n_streams) + self.whole.missing_bytes(n_streams)

    def _look(self, frame: Bytes, planar: bool, numbers: Bytes) -> int:
        """Write the colour numbers of a frame; returns its palette, or `_NONE`."""
        channels = self.codec.channels
        others = [palette for palette in range(len(self.colours)) if palette != self.current]
        for palette in (self.current, *others):
            count = self.known[palette : palette + 1]
            if palette in self._tables and self._find_known(frame, planar, *self._tables[palette][1:], numbers):
                self.current = palette
                return palette
            before = int(count[0])
            if self._find(frame, channels, planar, self.colours[palette], count, self._slots[palette], numbers):
                self.current = palette
                if before == count[0]:  # nothing new: there may be nothing new again
                    self._make_tables(palette)
                return palette
        if len(self.colours) < _MOST and self.learning:
            colours, count, slots = np.zeros(256, np.uint32), np.zeros(1, np.int64), np.zeros(_SLOTS, np.uint16)
            if self._find(frame, channels, planar, colours, count, slots, numbers):
                more = np.vstack([self.colours, colours]), np.append(self.known, count), np.vstack([self._slots, slots])
                # All of them. Nothing is called in between, where Ctrl-C could come.
                self.colours, self.known, self._slots = more
                self.current = len(self.colours) - 1
                return self.current
        return _NONE

    def _make_tables(self, palette: int) -> None:
        """Make what finds the colours of a palette faster, if that can be and there is none yet."""
        known, tables = int(self.known[palette]), self._tables.get(palette)
        if self._find_known is None or (tables is None and not self.learning):
            return
        if tables is None or tables.known < known:
            self._tables[palette] = finding.tables(self.colours[palette], known)


def _slots(colours: Colours, known: int) -> Slots:
    """Return the table that finds the first `known` colours: number + 1, 0 where it is empty."""
    slots = np.zeros(_SLOTS, np.uint16)
    for number, colour in enumerate(colours[:known].tolist()):
        at = (colour * _HASH & 0xFFFFFFFF) >> _SHIFT
        while slots[at]:
            at = (at + 1) % _SLOTS
        slots[at] = number + 1
    return slots


def _find_kernel(
    frame: Bytes, channels: int, planar: bool, colours: Colours, count: Ints, slots: Slots, numbers: Bytes
) -> bool:
    pixels, known = numbers.size, count[0]
    wanted = np.zeros(pixels, np.uint32)
    if not planar and channels == 3:  # in one pass: thrice as fast
        for p in range(pixels):
            at = np.uint64(3 * p)
            wanted[p] = frame[at] | np.uint32(frame[at + np.uint64(1)]) << np.uint32(8)
            wanted[p] |= np.uint32(frame[at + np.uint64(2)]) << np.uint32(16)
    else:
        for c in range(channels):
            shift = np.uint32(8 * c)
            values = frame[c * pixels : (c + 1) * pixels] if planar else frame[c::channels]
            for p in range(pixels):
                wanted[p] |= np.uint32(values[p]) << shift
    before = known
    for p in range(pixels):
        colour = wanted[p]
        at = np.uint64(np.uint32(colour * np.uint32(_HASH)) >> np.uint32(_SHIFT))  # unsigned: no check for negatives
        while slots[at] and colours[np.uint64(slots[at]) - np.uint64(1)] != colour:
            at = (at + np.uint64(1)) & np.uint64(_SLOTS - 1)
        if slots[at] == 0:
            if known == 256:
                for new in range(255, before - 1, -1):  # forget what was added, the last first
                    at = np.uint64(np.uint32(colours[new] * np.uint32(_HASH)) >> np.uint32(_SHIFT))
                    while slots[at] != new + 1:
                        at = (at + np.uint64(1)) & np.uint64(_SLOTS - 1)
                    slots[at] = 0
                    colours[new] = 0
                return False
            colours[known] = colour
            known += 1
            slots[at] = known
        numbers[p] = slots[at] - 1
    count[0] = known  # here, not in Python: Ctrl-C may come as soon as this is over
    return True


def find_reference(
    frame: Bytes, channels: int, planar: bool, colours: Colours, count: Ints, slots: Slots, numbers: Bytes
) -> bool:
    """Write the number of each pixel's colour; new ones are added in the order they come, and to the `count` of them.

    Returns False if they are more than 256; `colours` and `count` are then as they were.
    """
    known = int(count[0])
    shape = (channels, -1) if planar else (-1, channels)
    pixels = frame.reshape(shape).T if planar else frame.reshape(shape)
    words = np.zeros((len(pixels), 4), np.uint8)
    words[:, :channels] = pixels
    different, first, number = np.unique(words.view("<u4")[:, 0], return_index=True, return_inverse=True)
    is_new = ~np.isin(different, colours[:known])
    if known + np.count_nonzero(is_new) > 256:
        return False
    new = different[is_new][np.argsort(first[is_new])]
    colours[known : known + len(new)] = new
    known += len(new)
    order = np.argsort(colours[:known], kind="stable")
    found = order[np.searchsorted(colours[:known], different, sorter=order)].astype(np.uint8)
    numbers[:] = found[number.reshape(-1)]
    count[0] = known
    return True
