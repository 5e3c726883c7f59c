"""Filter `palette`: one byte for each pixel, the number of its colour, then any codec. Exact.

Many games draw with few colours: each store collects them as they come, up to 256 in a palette, and opens another one
when they do not fit. Colours are only ever added, so what was encoded stays good. A frame that has more than 256, or
finds no palette, is encoded as it is (see `interleave`).

The reference of a payload says which palette it needs, in its lowest byte (255: none), and above that what the inner
codec needs. Palette 0 begins with black: an empty payload is the frame of zeros.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit, parallel
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints, array_bytes, check_bounds
from sb3_extra_buffers.codecs.interleave import Interleave

Colours = NDArray[np.uint32]
Slots = NDArray[np.uint16]

_MOST = 16  # palettes
_NONE = 255  # in the place of a palette's number
_SLOTS = 4096  # of the table that finds a colour: mostly empty, so that the first look is nearly always enough
_HASH, _SHIFT = 0x9E3779B1, 20
_LITTLE = sys.byteorder == "little"


@dataclass(frozen=True)
class Palette(Codec):
    """Turns frames of pixels into frames of colour numbers for `inner`.

    Attributes:
        inner: what encodes them.
        channels: bytes of a pixel, 2 to 4. Frames that cannot be divided so are left as they are.
        planar: whether frames come channel by channel, or else pixel by pixel.
    """

    name = "palette"
    inner: Codec
    channels: int = 3
    planar: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.channels <= 4:
            raise ValueError(f"a palette is for pixels of 2 to 4 bytes, not {self.channels}")

    @property
    def without(self) -> Codec:
        """What encodes frames that have too many colours."""
        return Interleave(self.inner, self.channels, self.planar)

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
        data, frames = "uint8[::1]", "uint8[:,::1]"
        self._find = jit.choose(
            _find_kernel,
            find_reference,
            f"int64({data}, int64, boolean, uint32[::1], int64, uint16[::1], {data})",
        )
        self._paint = jit.choose(
            _paint_kernel, paint_reference, f"void({frames}, int64[::1], uint8[:,:,::1], boolean, {frames})"
        )
        self._slots = np.array([_slots(colours, int(n)) for colours, n in zip(self.colours, self.known, strict=True)])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of the frames' colour numbers, or of frames that have too many."""
        self.inner.learning = self.whole.learning = self.learning
        frames = jit.contiguous(frames)
        numbers = np.empty((len(frames), self.pixels), np.uint8)
        palettes = np.array([self._look(frame, row) for frame, row in zip(frames, numbers, strict=True)], np.int64)
        coloured = palettes != _NONE
        if coloured.all():
            encoded = self.inner.encode(numbers, streams)
        elif not coloured.any():
            encoded = self.whole.encode(frames, streams)
        else:
            one_by_one = [
                self.inner.encode(numbers[i : i + 1], streams[i : i + 1])
                if coloured[i]
                else self.whole.encode(frames[i : i + 1], streams[i : i + 1])
                for i in range(len(frames))
            ]
            encoded = Encoded(*(np.concatenate(parts) for parts in zip(*one_by_one, strict=True)))
        return encoded._replace(references=encoded.references << 8 | palettes)

    def decode(self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, out: Bytes) -> None:
        """Write the frames into `out`."""
        check_bounds(heap, offsets, lengths)
        palettes, inner = references & 255, references >> 8
        coloured = palettes != _NONE
        if np.any(palettes[coloured] >= len(self.colours)):
            raise CodecError("palette: a frame refers to a palette that is not there")
        if coloured.all():
            # The numbers are decoded into the front of `out`. From the back on, colours take their place.
            numbers = out.reshape(-1)[: len(out) * self.pixels].reshape(len(out), self.pixels)
            self.inner.decode(heap, offsets, lengths, inner, numbers)
            stop = len(out)
            while stop > 1:
                start = -(-stop // self.codec.channels)  # from there on, colours do not reach the numbers
                self._paint_all(numbers[start:stop], palettes[start:stop], out[start:stop])
                stop = start
            self._paint_all(numbers[:stop].copy(), palettes[:stop], out[:stop])
            return
        for these, coder in ((coloured, self.inner), (~coloured, self.whole)):
            part = np.empty((np.count_nonzero(these), coder.frame_bytes), np.uint8)
            coder.decode(heap, offsets[these], lengths[these], inner[these], part)
            if coder is self.whole:
                out[these] = part
            else:
                painted = np.empty((len(part), self.frame_bytes), np.uint8)
                self._paint_all(part, palettes[these], painted)
                out[these] = painted

    def release(self, references: Ints) -> None:
        """Tell the inner coders."""
        coloured = references & 255 != _NONE
        self.inner.release(references[coloured] >> 8)
        self.whole.release(references[~coloured] >> 8)

    @property
    def nbytes(self) -> int:
        """Bytes of the palettes, and of what the inner coders keep."""
        return array_bytes(self) + self.inner.nbytes + self.whole.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of palettes that may be added, and of what the inner coders may add."""
        palettes: int = min(n_frames, _MOST - len(self.colours)) * (self.colours[0].nbytes + self._slots[0].nbytes + 8)
        return palettes + self.inner.growth_bytes(n_frames) + self.whole.growth_bytes(n_frames)

    def missing_bytes(self, n_streams: int) -> int:
        """Bytes that the inner coders must add."""
        return self.inner.missing_bytes(n_streams) + self.whole.missing_bytes(n_streams)

    def _look(self, frame: Bytes, numbers: Bytes) -> int:
        """Write the colour numbers of a frame; returns its palette, or `_NONE`."""
        others = [palette for palette in range(len(self.colours)) if palette != self.current]
        for palette in (self.current, *others):
            if self._try(frame, palette, numbers):
                self.current = palette
                return palette
        if len(self.colours) < _MOST and self.learning:
            before = self.colours, self.known, self._slots
            self.colours = np.pad(self.colours, ((0, 1), (0, 0)))
            self.known, self._slots = np.pad(self.known, (0, 1)), np.pad(self._slots, ((0, 1), (0, 0)))
            palette = len(self.colours) - 1
            if self._try(frame, palette, numbers):
                self.current = palette
                return palette
            self.colours, self.known, self._slots = before
        return _NONE

    def _try(self, frame: Bytes, palette: int, numbers: Bytes) -> bool:
        colours, slots = self.colours[palette], self._slots[palette]
        known = self._find(
            frame, self.codec.channels, self.codec.planar, colours, int(self.known[palette]), slots, numbers
        )
        if known < 0:
            return False
        self.known[palette] = known
        return True

    def _paint_all(self, numbers: Bytes, palettes: Ints, out: Bytes) -> None:
        channels = self.codec.channels
        values = self.colours.astype("<u4").view(np.uint8).reshape(-1, 256, 4)[..., :channels]
        values = np.ascontiguousarray(values.transpose(0, 2, 1))  # [palettes, channels, 256]

        def work(a: int, b: int) -> int:
            self._paint(numbers[a:b], palettes[a:b], values, self.codec.planar, out[a:b])
            return 0

        parallel.split(len(out), out.nbytes, work)


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
    frame: Bytes, channels: int, planar: bool, colours: Colours, known: int, slots: Slots, numbers: Bytes
) -> int:
    pixels = numbers.size
    wanted = np.zeros(pixels, np.uint32)
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
                return -1
            colours[known] = colour
            known += 1
            slots[at] = known
        numbers[p] = slots[at] - 1
    return known


def find_reference(
    frame: Bytes, channels: int, planar: bool, colours: Colours, known: int, slots: Slots, numbers: Bytes
) -> int:
    """Write the number of each pixel's colour; new ones are added in the order they come.

    Returns how many are known now, or -1 if they are more than 256; `colours` is then as it was.
    """
    shape = (channels, -1) if planar else (-1, channels)
    pixels = frame.reshape(shape).T if planar else frame.reshape(shape)
    words = np.zeros((len(pixels), 4), np.uint8)
    words[:, :channels] = pixels
    different, first, number = np.unique(words.view("<u4")[:, 0], return_index=True, return_inverse=True)
    is_new = ~np.isin(different, colours[:known])
    if known + np.count_nonzero(is_new) > 256:
        return -1
    new = different[is_new][np.argsort(first[is_new])]
    colours[known : known + len(new)] = new
    known += len(new)
    order = np.argsort(colours[:known], kind="stable")
    found = order[np.searchsorted(colours[:known], different, sorter=order)].astype(np.uint8)
    numbers[:] = found[number.reshape(-1)]
    return known


def _paint_kernel(numbers: Bytes, palettes: Ints, values: Bytes, planar: bool, out: Bytes) -> None:
    n, pixels = numbers.shape
    channels = values.shape[1]
    colours, palette = np.zeros(256, np.uint64), -1
    quarter, odd = pixels // 4, np.uint64(0x000000FF000000FF)
    for i in range(n):
        row = numbers[i]
        if planar and channels == 3 and pixels % 4 == 0 and _LITTLE:  # four pixels at once: far fewer bytes to write
            if palettes[i] != palette:
                palette = palettes[i]
                for k in range(256):
                    colours[k] = 0
                    for c in range(3):
                        colours[k] |= np.uint64(values[palette, c, k]) << np.uint64(8 * c)
            planes = out[i].view(np.uint32)
            for p in range(quarter):
                at = np.uint64(4 * p)  # unsigned: no check for negatives
                one = colours[row[at]] | colours[row[at + np.uint64(1)]] << np.uint64(32)
                two = colours[row[at + np.uint64(2)]] | colours[row[at + np.uint64(3)]] << np.uint64(32)
                red = one & odd | (two & odd) << np.uint64(16)
                green = one >> np.uint64(8) & odd | (two >> np.uint64(8) & odd) << np.uint64(16)
                blue = one >> np.uint64(16) & odd | (two >> np.uint64(16) & odd) << np.uint64(16)
                planes[p] = (red | red >> np.uint64(24)) & np.uint64(0xFFFFFFFF)
                planes[quarter + p] = (green | green >> np.uint64(24)) & np.uint64(0xFFFFFFFF)
                planes[2 * quarter + p] = (blue | blue >> np.uint64(24)) & np.uint64(0xFFFFFFFF)
            continue
        for c in range(channels):
            value = values[palettes[i], c]
            if planar:
                plane = out[i, c * pixels : (c + 1) * pixels]
                for p in range(pixels):
                    plane[p] = value[row[p]]
            else:
                for p in range(pixels):
                    out[i, p * channels + c] = value[row[p]]


def paint_reference(numbers: Bytes, palettes: Ints, values: Bytes, planar: bool, out: Bytes) -> None:
    """Write the colours of `numbers` [n, pixels] into `out`; `values` are the palettes' [palettes, channels, 256]."""
    channels = values.shape[1]
    for row, palette, frame in zip(numbers, palettes, out, strict=True):
        painted = values[palette][:, row]  # [channels, pixels]
        frame.reshape((channels, -1) if planar else (-1, channels))[:] = painted if planar else painted.T
