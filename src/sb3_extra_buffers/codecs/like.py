"""Before another codec, of pictures with one byte a pixel: views that come back. Exact.

Where a player only turns or only steps aside, a picture is often like one of hundreds of frames ago, of any env. A few
bytes of each frame, its marks, are remembered. A frame with the marks of a view that was there before becomes a key:
its payload goes from the store to the coder, and of the frames that are like it only what differs is told. So a key
costs no more than the frame did, and a view that never comes back costs its marks.

The lowest bit of a payload's reference says whether it is told by a key (1), whose number is above that, or by the
inner codec (0), which needs what is above that. An empty payload is the key. Any other that is told by a key is

    blocks  one bit for each 64 bytes: 1 if any differs
    groups  for each of those one bit for each 8 bytes: 1 if any differs
    masks   for each of those one bit for each byte: 1 if it differs
    values  of those

Bits are filled from the lowest of each byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit, optional
from sb3_extra_buffers.codecs.base import Bytes, Codec, CodecError, Coder, Encoded, Ints, array_bytes, grown

MARKS = 32
"""Bytes of a frame by which it is found again."""

MOST = 2048
"""Views that are remembered: those that were seen last."""

PARTS = 32
"""Rows of memory that a key takes at most."""

MOST_KEYS = 1 << 23
"""References have 32 bits, with those that a palette adds."""

LATELY = 64
"""Payloads of the inner codec that count as lately."""

NOT_YET, COMING = -1, -2
"""What a view has in the place of a key: none, or one whose payload is being written."""

_SMALLEST = 512  # bytes of frames below which there is little to save
_AT_ONCE = MOST // 8  # frames: so few that none of their views is forgotten before all are done
_STEP = 64  # views by which there is room for more
_BLOCK = 64


@dataclass(frozen=True)
class Like(Codec):
    """Tells frames that are like earlier ones by what differs; `inner` gets all others.

    Attributes:
        inner: what encodes them.
    """

    name = "like"
    inner: Codec

    def encode(self, frame: Bytes) -> bytes:
        """Return the payload of one frame: alone it is like no other."""
        return self.inner.encode(frame)

    def decode(self, payload: Bytes, out: Bytes) -> None:
        """Write the frame of a payload of the inner codec into `out`."""
        self.inner.decode(payload, out)

    def coder(self, frame_bytes: int) -> Coder:
        return LikeCoder(self, frame_bytes) if _SMALLEST <= frame_bytes < 1 << 29 else self.inner.coder(frame_bytes)


class LikeCoder(Coder):
    """Owns the views, the keys, and the inner codec's coder.

    Attributes:
        marks: of each view, `[MARKS, n_views]`.
        keys: of each view its key, or `NOT_YET`, or `COMING`.
        last_used: when each view was seen last; -1: there is none.
        saved: bytes that a key would have saved.
        clock: frames so far.
        uses: frames, and views, that refer to a key.
        sizes: bytes of the keys' payloads; 0: there is no such key.
        references: of these payloads, for the inner coder.
        parts: in which rows each payload lies, `[n_keys, PARTS]`.
        rows: of memory.
        usual: `LATELY` times the bytes that the inner coder takes for a frame.
    """

    codec: Like

    def __init__(self, codec: Like, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.inner = codec.inner.coder(frame_bytes)
        self.marks = np.zeros((MARKS, 0), np.uint8)
        self.keys = np.zeros(0, np.int64)
        self.last_used = np.zeros(0, np.int64)
        self.saved = np.zeros(0, np.int64)
        self.clock = np.zeros(1, np.int64)
        self.uses = np.zeros(0, np.int64)
        self.sizes = np.zeros(0, np.int64)
        self.references = np.zeros(0, np.int64)
        self.parts = np.zeros((0, PARTS), np.uint32)
        self.rows = np.zeros((0, -(-frame_bytes // PARTS)), np.uint8)
        self.usual = 0
        self._compile()

    def _compile(self) -> None:
        ints, data, frames = "int64[::1]", "uint8[::1]", "uint8[:,::1]"
        self._look = jit.choose(
            _look_kernel,
            look_reference,
            f"int64({frames}, {ints}, {ints}, {frames}, {ints}, {ints}, {ints}, {ints}, {ints}, int64, boolean, {ints},"
            f" {ints})",
        )
        self._tell = jit.choose(
            _encode_kernel, encode_reference, f"int64({frames}, {ints}, {frames}, {ints}, int64, {data}, {ints})"
        )
        self._patch = jit.choose(
            _decode_kernel,
            decode_reference,
            *(
                f"int64({heap}, {ints}, {ints}, {ints}, {ints}, {frames}, {frames})"
                for heap in (data, "Array(uint8, 1, 'C', readonly=True)")
            ),
        )
        self._has_kernels = optional.has_numba()  # without, it would take too long to try; what is there can be read
        self._places, self._expected = places(self.frame_bytes), expected(self.frame_bytes)
        self.keys = np.maximum(self.keys, NOT_YET)  # none is coming where `encode` was interrupted
        free = np.ones(len(self.rows), np.bool_)
        free[rows_of(self.parts, self.sizes, self.rows.shape[1])] = False
        self._free_keys, self._free_rows = (self.sizes == 0).nonzero()[0], free.nonzero()[0]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`: what differs from keys, or what the inner coder makes of them."""
        self.inner.learning = self.learning
        if not self._has_kernels or not len(frames):
            return self._behind(frames, streams)
        frames, start, parts = jit.contiguous(frames), 0, []
        while start < len(frames):
            parts.append(self._some(frames[start : start + _AT_ONCE], streams[start : start + _AT_ONCE]))
            start += len(parts[-1].lengths)
        return parts[0] if len(parts) == 1 else Encoded(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _some(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of some frames, of the first at least: up to one that is like one that becomes a key."""
        if self.learning:
            self._remember_more(len(frames))
        chosen, coming = np.full((2, len(frames)), -1, np.int64)
        try:
            n = self._look(
                *(frames, self._places, self._expected, self.marks, self.keys, self.last_used, self.saved, self.clock),
                *(self.uses, self.usual // LATELY, self.learning, chosen, coming),
            )
            if chosen.max() < 0 and coming.max() < 0:
                return self._behind(frames[:n], streams[:n])
            return self._by_keys(frames[:n], streams[:n], chosen[:n], coming[:n])
        except BaseException:  # also of Ctrl-C
            self.keys[self.keys == COMING] = NOT_YET
            np.subtract.at(self.uses, chosen[chosen >= 0], 1)
            raise

    def _behind(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return what the inner coder makes of frames."""
        encoded = self.inner.encode(frames, streams)
        n = len(frames)
        if n:
            mean = int(encoded.lengths.sum()) // n
            self.usual += min(n, LATELY) * (mean - self.usual // LATELY) if self.usual else LATELY * mean
        return encoded._replace(references=encoded.references << 1)

    def _by_keys(self, frames: Bytes, streams: Ints, chosen: Ints, coming: Ints) -> Encoded:
        """Return the payloads of frames of which some have `chosen` keys, or become those of the views `coming`."""
        which = (chosen >= 0).nonzero()[0]
        numbers, nth = np.unique(chosen[which], return_inverse=True)
        most = min(self.usual // LATELY * 7 // 8, self.frame_bytes - 1)  # clearly less, since both have to be decoded
        told, sizes = np.empty(len(which) * most, np.uint8), np.empty(len(which), np.int64)
        if which.size:
            keys = np.empty((len(numbers), self.frame_bytes), np.uint8)
            self._decode_keys(numbers, np.arange(len(numbers)), keys)
            self._tell(frames, which, keys, nth, most, told, sizes)
        lengths, references = np.empty(len(frames), np.int64), np.empty(len(frames), np.int64)
        lengths[which], references[which] = sizes, chosen[which] << 1 | 1
        others = chosen < 0
        others[which[sizes < 0]] = True
        encoded = self._behind(frames[others], streams[others])
        lengths[others], references[others] = encoded.lengths, encoded.references
        starts, pieces = [0, 0], []
        for i, (length, is_other) in enumerate(zip(lengths.tolist(), others.tolist(), strict=True)):
            start = starts[is_other]
            starts[is_other] += length
            piece = (encoded.data if is_other else told)[start : start + length]
            if coming[i] >= 0 and length and len(self.sizes) < MOST_KEYS:
                references[i], lengths[i] = self._keep(piece, int(references[i]) >> 1, int(coming[i])) << 1 | 1, 0
            else:
                pieces.append(piece)
        self.keys[self.keys == COMING] = NOT_YET  # of empty payloads, which are no keys, and of too many
        unlike = chosen[others & (chosen >= 0)]
        chosen[others] = -1  # first: interrupted, they stay counted
        np.subtract.at(self.uses, unlike, 1)
        return Encoded(np.concatenate([encoded.data[:0], *pieces]), lengths, references)

    def _keep(self, payload: Bytes, reference: int, view: int) -> int:
        """Make a key of a payload of the inner coder, for a view and the frame; returns its number."""
        n = -(-len(payload) // self.rows.shape[1])
        if not self._free_keys.size or len(self._free_rows) < n:
            self._make_room(n)
        filled = np.zeros((n, self.rows.shape[1]), np.uint8)
        filled.reshape(-1)[: len(payload)] = payload
        key, rows = int(self._free_keys[0]), self._free_rows[:n]
        self._free_keys, self._free_rows = self._free_keys[1:], self._free_rows[n:]
        self.rows[rows] = filled
        self.parts[key, :n] = rows
        self.references[key] = reference
        self.uses[key] = 2
        self.sizes[key] = len(payload)
        self.keys[view] = key
        return key

    def _make_room(self, n_rows: int) -> None:
        """Take back the keys of which all frames are gone; then make sure that there is one more, of so many rows."""
        views = (self.keys >= 0).nonzero()[0]
        views = views[self.uses[self.keys[views]] == 1]  # a key is a frame's payload: there are not more than frames
        lonely = self.keys[views]
        self.keys[views] = NOT_YET
        self.uses[lonely] = 0
        gone = ((self.uses == 0) & (self.sizes > 0)).nonzero()[0]
        rows = rows_of(self.parts[gone], self.sizes[gone], self.rows.shape[1])
        free_keys = np.sort(np.concatenate([self._free_keys, gone]))  # so one that was pickled goes on alike
        free_rows = np.sort(np.concatenate([self._free_rows, rows]))
        self.sizes[gone] = 0  # first: interrupted, the inner coder has more than it needs
        self.inner.release(self.references[gone])
        self._free_keys, self._free_rows = free_keys, free_rows
        more_keys = 0 if free_keys.size else 1 + len(self.sizes) // 16
        missing = max(n_rows - free_rows.size, 0)
        more_rows = missing and missing + len(self.rows) // 16
        of_keys = [grown(array, more_keys) for array in (self.uses, self.sizes, self.references, self.parts)]
        memory = grown(self.rows, more_rows)
        free_keys = np.append(free_keys, np.arange(len(self.sizes), len(self.sizes) + more_keys))
        free_rows = np.append(free_rows, np.arange(len(self.rows), len(memory)))
        # All of them, or none if there is no memory. Nothing is called in between, where Ctrl-C could come.
        self.uses, self.sizes, self.references, self.parts = of_keys
        self.rows, self._free_keys, self._free_rows = memory, free_keys, free_rows

    def _remember_more(self, n: int) -> None:
        """Make room for the views of `n` more frames, as long as there are not too many."""
        free = int(np.count_nonzero(self.last_used < 0)) if len(self.keys) < MOST else n
        if free >= n:
            return
        more = min(max(n - free, _STEP), MOST - len(self.keys))
        marks = np.zeros((MARKS, len(self.keys) + more), np.uint8)
        marks[:, : len(self.keys)] = self.marks
        keys, last_used, saved = (
            grown(self.keys, more, NOT_YET),
            grown(self.last_used, more, -1),
            grown(self.saved, more),
        )
        self.marks, self.keys, self.last_used, self.saved = marks, keys, last_used, saved

    def _decode_keys(self, numbers: Ints, rows: Ints, out: Bytes) -> None:
        """Write the frames that are keys into `out[rows]`."""
        sizes, width = self.sizes[numbers], self.rows.shape[1]
        n = -(-int(sizes.max(initial=0)) // width)
        heap = self.rows[self.parts[numbers, :n]].reshape(-1)
        offsets, nowhere = n * width * np.arange(len(numbers), dtype=np.int64), np.full(len(numbers), -1, np.int64)
        where = offsets, sizes, self.references[numbers], rows, nowhere
        if (sizes == 0).any() or self.inner.decode_part(heap, *where, out) >= 0:
            raise CodecError("like: a key is not there, or damaged")

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Decode frames of the inner codec, patch those that are like keys, or copy."""
        new, by_key = sources < 0, references & 1 == 1
        which = (new & ~by_key).nonzero()[0]
        if which.size:
            where = offsets[which], lengths[which], references[which] >> 1, rows[which], sources[which]
            bad = self.inner.decode_part(heap, *where, out)
            if bad >= 0:
                return int(which[bad])
        which = (new & by_key).nonzero()[0]
        if which.size:
            which = which[references[which].argsort(kind="stable")]
            numbers = references[which] >> 1
            if numbers[0] < 0 or numbers[-1] >= len(self.sizes):
                raise CodecError("like: a frame refers to a key that is not there")
            # Each key goes where the first of its frames will be, which is therefore the last to be patched.
            is_first = np.append(True, numbers[1:] != numbers[:-1])
            firsts = rows[which[is_first]]
            self._decode_keys(numbers[is_first], firsts, out)
            keys = firsts[is_first.cumsum() - 1]
            if len(firsts) < len(which):
                order = is_first.argsort(kind="stable")
                which, keys = which[order], keys[order]
            bad = self._patch(heap, offsets[which], lengths[which], keys, rows[which], out, out)
            if bad >= 0:
                return int(which[bad])
        if not new.all():
            out[rows[~new]] = out[sources[~new]]
        return -1

    def effort(self, lengths: Ints, sources: Ints, out: Bytes) -> tuple[int, int]:
        """Keys have to be decoded as other frames."""
        return self.inner.effort(lengths, sources, out)

    @property
    def slowness(self) -> int:
        """Keys have to be decoded as other frames."""
        return self.inner.slowness

    def release(self, references: NDArray[Any]) -> None:
        """Let go of the keys of frames that are gone; the memory of unused ones is used again."""
        by_key = references & 1 == 1
        np.subtract.at(self.uses, references[by_key].astype(np.int64) >> 1, 1)
        self.inner.release(references[~by_key] >> 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the views and the keys, and of what the inner coder keeps."""
        return array_bytes(self) + self.inner.nbytes

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of the views and keys that may be added, and of what the inner coder may add."""
        views = min(n_frames + _STEP, MOST - len(self.keys)) * (MARKS + 3 * 8)
        keys = (n_frames + 1 + (n_frames + len(self.sizes)) // 16) * (3 * 8 + self.parts.itemsize * PARTS + 8)
        rows = (n_frames * PARTS + (n_frames * PARTS + len(self.rows)) // 16) * (self.rows.shape[1] + 8)
        return views + keys + rows + self.inner.growth_bytes(n_frames)

    def missing_bytes(self, n_streams: int) -> int:
        """Bytes that the inner coder must add."""
        return self.inner.missing_bytes(n_streams)


def places(frame_bytes: int) -> Ints:
    """Return where in a frame its marks are: everywhere, but not below each other in columns."""
    spread = np.arange(MARKS, dtype=np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)
    return (spread * np.uint64(frame_bytes) >> np.uint64(32)).astype(np.int64)


def expected(frame_bytes: int) -> Ints:
    """Return how many bytes to expect what differs to take, by how many marks do: with masks 7 / 5 of the bytes."""
    return frame_bytes // (8 * _BLOCK) + 7 * frame_bytes * np.arange(MARKS + 1, dtype=np.int64) // (5 * MARKS)


def rows_of(parts: NDArray[np.uint32], sizes: Ints, width: int) -> Ints:
    """Return in which rows of this width payloads of these sizes lie."""
    taken = np.arange(parts.shape[1]) < -(-sizes[:, None] // width)
    return parts[taken].astype(np.int64)


def _look_kernel(
    frames: Bytes,
    places: Ints,
    expected: Ints,
    marks: Bytes,
    keys: Ints,
    last_used: Ints,
    saved: Ints,
    clock: Ints,
    uses: Ints,
    usual: int,
    learning: bool,
    chosen: Ints,
    coming: Ints,
) -> int:
    n_views, n_marks = keys.size, places.size
    differ = np.empty(n_views, np.uint8)
    for i in range(frames.shape[0]):
        frame = frames[i]
        differ[:] = 0
        for k in range(n_marks):
            mark, of_views = frame[places[k]], marks[k]
            for v in range(n_views):
                differ[v] += np.uint8(of_views[v] != mark)
        near, view = n_marks + 1, -1
        near_key, key_view = n_marks + 1, -1
        for v in range(n_views):
            n = int(differ[v])
            if n < near_key and last_used[v] >= 0:
                if n < near:
                    near, view = n, v
                if keys[v] >= 0:
                    near_key, key_view = n, v
        by_key = int(expected[near_key]) if key_view >= 0 else usual
        is_like = by_key < usual
        by_key = min(by_key, usual)
        comes_back = view >= 0 and keys[view] < 0 and 10 * expected[near] < 7 * by_key
        if comes_back and keys[view] == COMING and i > 0:
            return i
        clock[0] += 1
        if learning and comes_back:
            for k in range(n_marks):
                marks[k, view] = frame[places[k]]
            last_used[view] = clock[0]
            saved[view] += by_key - expected[near]
            if 2 * saved[view] > usual:
                keys[view] = COMING
                coming[i] = view
                continue
        if is_like:
            chosen[i] = keys[key_view]
            uses[keys[key_view]] += 1
            last_used[key_view] = clock[0]
        if learning and not comes_back and 5 * by_key >= usual and n_views > 0:
            oldest = 0
            for v in range(n_views):
                if last_used[v] < last_used[oldest]:
                    oldest = v
            if keys[oldest] >= 0:
                uses[keys[oldest]] -= 1
            for k in range(n_marks):
                marks[k, oldest] = frame[places[k]]
            keys[oldest], last_used[oldest], saved[oldest] = NOT_YET, clock[0], 0
    return len(frames)


def look_reference(
    frames: Bytes,
    places: Ints,
    expected: Ints,
    marks: Bytes,
    keys: Ints,
    last_used: Ints,
    saved: Ints,
    clock: Ints,
    uses: Ints,
    usual: int,
    learning: bool,
    chosen: Ints,
    coming: Ints,
) -> int:
    """Find for each frame the key that it is likely to be like, or whether it should become one.

    Returns how many frames that was done for: all before the first that is likely to be like one that becomes a key.

    Args:
        frames: `[n, frame_bytes]`.
        places: where their marks are.
        expected: see `expected`.
        marks: with all to `uses` as in `LikeCoder`. New views replace those that were seen least recently.
        keys: of views.
        last_used: of views.
        saved: of views.
        clock: frames so far.
        uses: of keys. They are counted for frames that choose them.
        usual: bytes that the inner coder takes for a frame.
        learning: whether views may be replaced, and get keys.
        chosen: the keys go there; -1, as it is at first, where there is none.
        coming: the views that are `COMING` go there, likewise.
    """
    for i, frame in enumerate(frames):
        here = frame[places]
        differ = np.count_nonzero(marks != here[:, None], axis=0)
        differ[last_used < 0] = len(places) + 1
        of_keys = np.where(keys >= 0, differ, len(places) + 1)
        nearest = differ.min(initial=len(places) + 1)
        by_key = usual
        if of_keys.min(initial=len(places) + 1) <= len(places):
            by_key = int(min(usual, expected[of_keys.min()]))
        view = differ.argmin() if keys.size else -1
        comes_back = bool(nearest < of_keys.min(initial=len(places) + 1) and 10 * expected[nearest] < 7 * by_key)
        if comes_back and keys[view] == COMING and i > 0:
            return i
        clock += 1
        if learning and comes_back:
            marks[:, view], last_used[view] = here, clock[0]
            saved[view] += by_key - expected[nearest]
            if 2 * saved[view] > usual:
                keys[view], coming[i] = COMING, view
                continue
        if by_key < usual:
            view = of_keys.argmin()
            chosen[i] = keys[view]
            uses[keys[view]] += 1
            last_used[view] = clock[0]
        if learning and not comes_back and 5 * by_key >= usual and keys.size:
            oldest = last_used.argmin()
            if keys[oldest] >= 0:
                uses[keys[oldest]] -= 1
            marks[:, oldest] = here
            keys[oldest], last_used[oldest], saved[oldest] = NOT_YET, clock[0], 0
    return len(frames)


def _encode_kernel(frames: Bytes, which: Ints, keys: Bytes, nth: Ints, most: int, data: Bytes, lengths: Ints) -> int:
    frame_bytes = frames.shape[1]
    n_blocks = (frame_bytes + 63) // 64
    whole = frame_bytes // 64
    head = np.empty((n_blocks + 7) // 8, np.uint8)
    groups, masks = np.empty(n_blocks, np.uint8), np.empty(8 * n_blocks, np.uint8)
    values = np.empty(frame_bytes + 1, np.uint8)
    end = 0
    for i in range(which.size):
        frame, key = frames[which[i]], keys[nth[i]]
        head[:] = 0
        n_groups = n_masks = n_values = np.uint64(0)
        for block in range(n_blocks):
            start = 64 * block
            stop = min(start + 64, frame_bytes)
            differs = np.uint8(0)
            if block < whole:
                for p in range(start, start + 64):
                    differs |= frame[p] ^ key[p]
            else:
                for p in range(start, stop):
                    differs |= frame[p] ^ key[p]
            if differs == 0:
                continue
            head[block >> 3] |= np.uint8(1 << (block & 7))
            group = np.uint8(0)
            for g in range(8):
                mask = np.uint8(0)
                for p in range(start + 8 * g, min(start + 8 * g + 8, stop)):
                    is_new = frame[p] != key[p]
                    values[n_values] = frame[p]  # overwritten unless it differs: no branch to mispredict
                    n_values += np.uint64(is_new)
                    mask |= np.uint8(is_new) << np.uint8(p & 7)
                masks[n_masks] = mask
                n_masks += np.uint64(mask != 0)
                group |= np.uint8(mask != 0) << np.uint8(g)
            groups[n_groups] = group
            n_groups += np.uint64(1)
        lengths[i] = 0
        if n_values == np.uint64(0):
            continue
        length = head.size + np.int64(n_groups + n_masks + n_values)
        if length > most:
            lengths[i] = -1
            continue
        lengths[i] = length
        for part, n in (
            (head, np.int64(head.size)),
            (groups, np.int64(n_groups)),
            (masks, np.int64(n_masks)),
            (values, np.int64(n_values)),
        ):
            target = data[end : end + n]
            for b in range(n):
                target[b] = part[b]
            end += int(n)
    return end


def encode_reference(frames: Bytes, which: Ints, keys: Bytes, nth: Ints, most: int, data: Bytes, lengths: Ints) -> int:
    """Write the payloads of frames that are like keys, one after another; returns their size.

    Args:
        frames: `[n, frame_bytes]`.
        which: of them, `[m]`.
        keys: `[n_keys, frame_bytes]`.
        nth: the key of each, `[m]`.
        most: longer payloads are left out.
        data: the payloads go there, `[m * most or more]`.
        lengths: their sizes go there, `[m]`; -1 of those left out.
    """
    end = 0
    for i, (frame, key) in enumerate(zip(frames[which], keys[nth], strict=True)):
        differs = np.append(frame != key, np.zeros(-frame.size % _BLOCK, np.bool_)).reshape(-1, 8, 8)
        groups: Any = differs.any(axis=2)
        blocks: Any = groups.any(axis=1)
        head, masks = np.packbits(blocks, bitorder="little"), np.packbits(differs, axis=2, bitorder="little")
        rest = np.packbits(groups[blocks], axis=1, bitorder="little").reshape(-1), masks[groups].reshape(-1)
        payload = np.concatenate([head, *rest, frame[frame != key]]) if blocks.any() else frame[:0]
        lengths[i] = payload.size if payload.size <= most else -1
        if payload.size <= most:
            data[end : end + payload.size] = payload
            end += payload.size
    return end


def _decode_kernel(heap: Bytes, offsets: Ints, lengths: Ints, nth: Ints, rows: Ints, keys: Bytes, out: Bytes) -> int:
    frame_bytes = out.shape[1]
    n_blocks = (frame_bytes + 63) // 64
    n_head = (n_blocks + 7) // 8
    payload = np.zeros(frame_bytes + 1, np.uint8)
    for i in range(rows.size):
        start, length, row, key = offsets[i], lengths[i], out[rows[i]], keys[nth[i]]
        if start < 0 or length < 0 or length > frame_bytes or start > heap.size - length:
            return i
        for b in range(frame_bytes):
            row[b] = key[b]
        if length == 0:
            continue
        # How many there are of everything, and that the payload ends where it should, before anything is looked at.
        source = heap[start : start + length]
        for b in range(length):
            payload[b] = source[b]
        begin, end = 0, n_head
        for _ in range(3):
            if end > length:
                return i
            ones: Any = 0
            for b in range(begin, end):
                bits = payload[b]
                bits = np.uint8(bits - (bits >> np.uint8(1) & np.uint8(0x55)))
                bits = np.uint8((bits & np.uint8(0x33)) + (bits >> np.uint8(2) & np.uint8(0x33)))
                ones += np.int64((bits + (bits >> np.uint8(4))) & np.uint8(15))
            begin, end = end, end + ones
        if end != length:
            return i
        group_at = np.uint64(n_head)
        mask_at = group_at
        for b in range(n_head):
            bits = np.int64(payload[b])
            while bits:
                mask_at += np.uint64(bits & 1)
                bits >>= 1
        value_at = np.uint64(begin)
        for b in range(n_head):
            blocks = np.int64(payload[b])
            place = 512 * b
            while blocks:
                if blocks & 1:
                    groups, at = np.int64(payload[group_at]), place
                    group_at += np.uint64(1)
                    while groups:
                        if groups & 1:
                            mask = payload[mask_at]
                            mask_at += np.uint64(1)
                            if at + 8 <= frame_bytes:
                                eight = row[at : at + 8]
                                for p in range(8):  # nothing is asked: what comes next cannot be foreseen
                                    bit = mask >> np.uint8(p) & np.uint8(1)
                                    all_or_none = np.uint8(np.uint8(0) - bit)
                                    eight[p] = (payload[value_at] & all_or_none) | (eight[p] & ~all_or_none)
                                    value_at += np.uint64(bit)
                            else:
                                for p in range(8):
                                    if mask >> np.uint8(p) & np.uint8(1):
                                        if at + p >= frame_bytes:
                                            return i
                                        row[at + p] = payload[value_at]
                                        value_at += np.uint64(1)
                        groups >>= 1
                        at += 8
                blocks >>= 1
                place += 64
    return -1


def decode_reference(heap: Bytes, offsets: Ints, lengths: Ints, nth: Ints, rows: Ints, keys: Bytes, out: Bytes) -> int:
    """Write the frames of payloads into `out[rows]`; returns the first payload that is damaged, or -1.

    Args:
        heap: where the payloads lie.
        offsets: of each.
        lengths: of each.
        nth: of each, its key.
        rows: of `out`.
        keys: `[n_keys, frame_bytes]`; may be `out`.
        out: `[n, frame_bytes]`.
    """
    frame_bytes = out.shape[1]
    n_head = -(-frame_bytes // (8 * _BLOCK))
    for i, (start, length, row) in enumerate(zip(offsets.tolist(), lengths.tolist(), rows.tolist(), strict=True)):
        if start < 0 or not 0 <= length <= frame_bytes or start > heap.size - length:
            return i
        out[row] = keys[nth[i]]
        if length == 0:
            continue
        at, bits = 0, np.ones(n_head, np.bool_)  # which bytes of the part there are
        for _ in range(3):
            n = int(np.count_nonzero(bits))
            if at + n > length:
                return i
            part = np.zeros(bits.size, np.uint8)
            part[bits] = heap[start + at : start + at + n]
            at, bits = at + n, np.unpackbits(part, bitorder="little") == 1
        if at + np.count_nonzero(bits) != length or bits[frame_bytes:].any():
            return i
        out[row, bits[:frame_bytes]] = heap[start + at : start + length]
    return -1
