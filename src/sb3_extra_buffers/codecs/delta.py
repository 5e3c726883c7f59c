"""`delta`: a frame is a key frame and the few words in which it differs. Decodes at memory speed.

Format of a payload of n changed 4-byte words (little-endian):

    positions   uint16[n]   which word of the frame (uint32 where a frame has more than 65,536 words)
    words       uint32[n]   what it is now

n follows from the payload's length. Decoding copies the key and patches n words: no bit loops, no entropy stage, and
frames and words are independent of each other, on a CPU as on a GPU.

Keys are backgrounds. Each stream (env) votes per byte for the value it sees most: a counter goes up when the frame
agrees with the background, down when it does not, and below zero the frame's byte takes over. Moving sprites lose the
vote, so a key has no ghosts of them. A stream's background becomes a key once it has saved, against the best key there
is, as many bytes as a key costs. Each frame then chooses the best of the last `keys` keys of all streams: a new episode
looks like an old one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit, parallel
from sb3_extra_buffers.codecs.base import BatchCoder, Bytes, Codec, Encoded, Ints, LearningCodec, array_bytes, grown

Words = NDArray[np.uint32]

_VOTES = 16  # a background byte survives this many frames that disagree with it, at most
_WORD = 4


@dataclass(frozen=True)
class Delta(LearningCodec):
    """Key frame plus changed words.

    Attributes:
        keys: how many recent key frames each frame may choose from.
    """

    name = "delta"
    levels = (range(1, 3),)
    level: ClassVar[int] = 1
    keys: int = 8

    def __post_init__(self) -> None:
        if self.keys < 1:
            raise ValueError(f"delta needs at least 1 key, not keys={self.keys}")

    @classmethod
    def from_level(cls, level: int | None, **settings: Any) -> Codec:
        """Return the codec. Its level 2 is another one: see `spans`."""
        return cls(**settings)

    def coder(self, frame_bytes: int) -> DeltaCoder:
        return DeltaCoder(self, frame_bytes)


class DeltaCoder(BatchCoder):
    """Owns the key frames that payloads refer to, and each stream's background."""

    codec: Delta
    worth = 3 * parallel.WORTH  # hardly more than copying

    def __init__(self, codec: Delta, frame_bytes: int) -> None:
        super().__init__(codec, frame_bytes)
        self.n_words = -(-frame_bytes // _WORD)
        self.position_bytes = 2 if self.n_words <= 1 << 16 else 4
        self.keys = np.zeros((1, self.n_words), np.uint32)  # key 0 is all zeros and never goes
        self.uses = np.full(1, 2, np.int64)  # frames and candidate lists that refer to a key; 0 has one more, to stay
        self.candidates = np.zeros(1, np.int64)
        self.last_used = np.zeros(1, np.int64)  # when each candidate was chosen last
        self.clock = np.zeros(1, np.int64)
        self.backgrounds = np.zeros((0, self.n_words), np.uint32)
        self.votes = np.zeros((0, self.n_words * _WORD), np.int8)
        self.savings = np.zeros(0, np.int64)
        self._compile()

    def _compile(self) -> None:
        words, ints, data = "uint32[:,::1]", "int64[::1]", "uint8[::1]"
        self._encode = jit.choose(
            encode_kernel,
            encode_reference,
            f"boolean({words}, {ints}, int64, int64, {words}, {ints}, {ints}, {ints}, {ints}, {words}, int8[:,::1],"
            f" {ints}, boolean, {data}, {ints}, {ints}, {ints})",
        )
        self._release = jit.choose(_release_kernel, release_reference, f"void({ints}, {ints})")
        self._decode = jit.choose(
            decode_kernel,
            decode_reference,
            *(
                f"int64({heap}, {ints}, {ints}, {ints}, {ints}, {ints}, uint8[:,::1], int64, uint8[:,::1])"
                for heap in (data, "Array(uint8, 1, 'C', readonly=True)")
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def encode(self, frames: Bytes, streams: Ints) -> Encoded:
        """Return the payloads of `frames`, each against the best recent key; new keys may be made on the way."""
        n = len(frames)
        words, streams = self._as_words(frames), np.ascontiguousarray(streams, np.int64)
        data = np.empty(n * self.frame_bytes, np.uint8)
        lengths, references, done = np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(2, np.int64)
        while not self._encode(words, streams, *self.state, data, lengths, references, done):
            self.make_room(int(streams.max()) + 1)
        return Encoded(data[: done[1]], lengths, references)

    @property
    def state(self) -> tuple[Any, ...]:
        """What the kernel reads and changes."""
        return (
            self.frame_bytes,
            self.position_bytes,
            self.keys,
            self.uses,
            self.candidates,
            self.last_used,
            self.clock,
            self.backgrounds,
            self.votes,
            self.savings,
            self.learning,
        )

    def decode_part(
        self, heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, rows: Ints, sources: Ints, out: Bytes
    ) -> int:
        """Copy the key, patch the words."""
        frames = (offsets, lengths, references, rows, sources)
        bad: int = self._decode(heap, *frames, self.keys.view(np.uint8), self.position_bytes, out)
        return bad

    def release(self, references: NDArray[Any]) -> None:
        """Let go of the keys of frames that are gone; unused keys are overwritten by later ones."""
        self._release(references.astype(np.int64, copy=False), self.uses)

    def rewritten(self, references: Iterable[NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
        """Return the keys of these frames, and those that the next may choose; others that are in use have stayed."""
        keys = np.zeros(len(self.keys), np.bool_)
        keys[self.candidates] = True
        for some in references:
            keys[some[some < len(keys)]] = True
        return {"keys": keys}

    @property
    def nbytes(self) -> int:
        """Bytes of keys, backgrounds and votes."""
        return array_bytes(self)

    def growth_bytes(self, n_frames: int) -> int:
        """Bytes of the keys that may be added."""
        return (n_frames + 1 + len(self.keys) // 16) * (self.n_words * _WORD + 8)

    def missing_bytes(self, n_streams: int) -> int:
        """Bytes of the backgrounds and votes of streams that are new, and of the list of candidates."""
        streams, candidates = n_streams - len(self.backgrounds), self.codec.keys - len(self.candidates)
        return max(streams, 0) * (2 * self.n_words * _WORD + 8) + max(candidates, 0) * 16

    def _as_words(self, frames: Bytes) -> Words:
        if self.frame_bytes % _WORD == 0:
            return jit.contiguous(frames).view(np.uint32)
        padded = np.zeros((len(frames), self.n_words * _WORD), np.uint8)
        padded[:, : self.frame_bytes] = frames
        return padded.view(np.uint32)

    def make_room(self, n_streams: int) -> None:
        """Grow the arrays so that each stream has a background and there is room for another key."""
        keys = 1 + len(self.keys) // 16 if self.uses.all() and self.learning else 0
        streams = max(n_streams - len(self.backgrounds), 0)
        candidates = max(self.codec.keys - len(self.candidates), 0)
        of_keys = [grown(array, keys) for array in (self.keys, self.uses)]
        of_streams = [grown(array, streams) for array in (self.backgrounds, self.votes, self.savings)]
        chosen, last_used = grown(self.candidates, candidates), grown(self.last_used, candidates, -1)
        # All of them, or none if there is no memory. Nothing is called in between, where Ctrl-C could come.
        self.keys, self.uses = of_keys
        self.backgrounds, self.votes, self.savings = of_streams
        self.candidates, self.last_used = chosen, last_used


def encode_kernel(
    frames: Words,
    streams: Ints,
    frame_bytes: int,
    position_bytes: int,
    keys: Words,
    uses: Ints,
    candidates: Ints,
    last_used: Ints,
    clock: Ints,
    backgrounds: Words,
    votes: NDArray[np.int8],
    savings: Ints,
    learning: bool,
    data: Bytes,
    lengths: Ints,
    references: Ints,
    done: Ints,
) -> bool:
    """Do as `encode_reference`."""
    n_words = frames.shape[1]
    entry = position_bytes + 4
    whole = n_words - n_words % 8
    where = np.empty(n_words, np.uint32)
    end = done[1]
    for i in range(done[0], frames.shape[0]):
        done[0], done[1] = i, end
        stream = streams[i]
        if stream >= len(backgrounds):
            return False
        frame = frames[i]
        background = backgrounds[stream]
        clock[0] += 1
        best = 0
        changed = n_words + 1
        for c in range(candidates.size):
            if last_used[c] < 0:
                continue
            key = keys[candidates[c]]
            differ = np.uint32(0)  # as wide as the words: so the compiler makes shorter vector code of it
            for w in range(n_words):
                differ = np.uint32(differ + np.uint32(frame[w] != key[w]))
            if np.int64(differ) < changed:
                changed = np.int64(differ)
                best = c
        differ = np.uint32(0)
        for w in range(n_words):
            differ = np.uint32(differ + np.uint32(frame[w] != background[w]))
        different = np.int64(differ)
        if different < changed:
            saved = (changed - different) * entry
            if savings[stream] + saved > frame_bytes and learning:
                free = -1
                for k in range(uses.size):
                    if uses[k] == 0:
                        free = k
                        break
                if free < 0:
                    clock[0] -= 1
                    return False
                best = 0
                for c in range(candidates.size):
                    if last_used[c] < last_used[best]:
                        best = c
                if last_used[best] >= 0:
                    uses[candidates[best]] -= 1
                keys[free] = background
                uses[free] = 1
                candidates[best] = free
                changed = different
                savings[:] = 0
            else:
                savings[stream] += saved
        last_used[best] = clock[0]
        raw = frame.view(np.uint8)
        if changed * entry >= frame_bytes:
            whole_frame = data[end : end + frame_bytes]
            for b in range(frame_bytes):
                whole_frame[b] = raw[b]
            lengths[i] = frame_bytes
            references[i] = 0
        else:
            key = keys[candidates[best]]
            found = np.uint64(0)  # indices that are unsigned are not checked for counting from the end
            for base in range(0, whole, 8):
                differs = np.uint32(0)
                for w in range(8):
                    differs = np.uint32(differs | np.uint32(frame[base + w] ^ key[base + w]))
                if differs != 0:
                    for w in range(base, base + 8):
                        where[found] = w  # overwritten unless the word has changed: no branch to mispredict
                        found += np.uint64(frame[w] != key[w])
            for w in range(whole, n_words):
                where[found] = w
                found += np.uint64(frame[w] != key[w])
            word = end + changed * position_bytes
            positions, words = data[end:word], data[word : word + 4 * changed]
            if position_bytes == 2:
                for j in range(changed):
                    w, at = where[j], np.uint64(2 * j)
                    positions[at] = np.uint8(w & np.uint32(255))
                    positions[at + np.uint64(1)] = np.uint8(w >> np.uint32(8))
            else:
                for j in range(changed):
                    for b in range(4):
                        positions[4 * j + b] = (where[j] >> np.uint32(8 * b)) & np.uint32(255)
            for j in range(changed):
                value, at = frame[where[j]], np.uint64(4 * j)
                words[at] = np.uint8(value & np.uint32(255))
                words[at + np.uint64(1)] = np.uint8((value >> np.uint32(8)) & np.uint32(255))
                words[at + np.uint64(2)] = np.uint8((value >> np.uint32(16)) & np.uint32(255))
                words[at + np.uint64(3)] = np.uint8(value >> np.uint32(24))
            lengths[i] = changed * entry
            references[i] = candidates[best]
        uses[references[i]] += 1
        end += lengths[i]
        seen = background.view(np.uint8)
        vote = votes[stream]
        for b in range(raw.size):  # int8 throughout: so the compiler makes vector code of it
            up = np.int8(min(vote[b] + np.int8(1), np.int8(_VOTES)))
            count = up if raw[b] == seen[b] else np.int8(vote[b] - np.int8(1))
            seen[b] = raw[b] if count < np.int8(0) else seen[b]
            vote[b] = np.int8(1) if count < np.int8(0) else count
    done[0], done[1] = len(frames), end
    return True


def encode_reference(
    frames: Words,
    streams: Ints,
    frame_bytes: int,
    position_bytes: int,
    keys: Words,
    uses: Ints,
    candidates: Ints,
    last_used: Ints,
    clock: Ints,
    backgrounds: Words,
    votes: NDArray[np.int8],
    savings: Ints,
    learning: bool,
    data: Bytes,
    lengths: Ints,
    references: Ints,
    done: Ints,
) -> bool:
    """Encode `frames` as the kernel does, in NumPy: same payloads, same keys, same state afterwards.

    `done` counts the frames and bytes that are done. Returns False if there is no room: for the next frame to become a
    key, or for its stream.
    """
    entry = position_bytes + _WORD
    for i in range(done[0], len(frames)):  # each frame's keys depend on the last's
        frame, stream, end = frames[i], streams[i], done[1]
        if stream >= len(backgrounds):
            return False
        background = backgrounds[stream]
        clock[0] += 1
        open_ = np.flatnonzero(last_used >= 0)
        counts = np.count_nonzero(keys[candidates[open_]] != frame, axis=1)
        best, changed = int(open_[counts.argmin()]), int(counts.min())
        different = int(np.count_nonzero(frame != background))
        if different < changed:
            saved = (changed - different) * entry
            if savings[stream] + saved > frame_bytes and learning:
                if uses.all():
                    clock[0] -= 1
                    return False
                free, best = int(np.flatnonzero(uses == 0)[0]), int(last_used.argmin())
                if last_used[best] >= 0:
                    uses[candidates[best]] -= 1
                keys[free], uses[free], candidates[best] = background, 1, free
                changed = different
                savings[:] = 0
            else:
                savings[stream] += saved
        last_used[best] = clock[0]
        raw = frame.view(np.uint8)
        if changed * entry >= frame_bytes:
            payload, references[i] = raw[:frame_bytes], 0
        else:
            references[i] = candidates[best]
            where = np.flatnonzero(frame != keys[references[i]])
            position = where.astype(f"<u{position_bytes}")
            payload = np.concatenate([position.view(np.uint8), frame[where].view(np.uint8)])
        lengths[i] = payload.size
        data[end : end + payload.size] = payload
        uses[references[i]] += 1
        done += (1, payload.size)
        seen, vote = background.view(np.uint8), votes[stream]
        count = np.where(raw == seen, np.minimum(vote + 1, _VOTES), vote - 1)
        seen[count < 0] = raw[count < 0]
        vote[:] = np.where(count < 0, 1, count)
    return True


def _release_kernel(references: Ints, uses: Ints) -> None:
    for i in range(references.size):
        uses[references[i]] -= 1


def release_reference(references: Ints, uses: Ints) -> None:
    """Count the keys down; one may be there several times."""
    np.subtract.at(uses, references, 1)


def decode_kernel(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    references: Ints,
    rows: Ints,
    sources: Ints,
    keys: Bytes,
    position_bytes: int,
    out: Bytes,
) -> int:
    """Do as `decode_reference`."""
    frame_bytes = out.shape[1]
    n_words = (frame_bytes + 3) // 4
    whole = frame_bytes // 4
    entry = position_bytes + 4
    by_words = frame_bytes % 4 == 0 and position_bytes == 2  # the usual case
    for i in range(rows.size):
        start, length, row = offsets[i], lengths[i], out[rows[i]]
        if sources[i] >= 0:
            source = out[sources[i]]
            for b in range(frame_bytes):
                row[b] = source[b]
            continue
        if start < 0 or length < 0 or length > frame_bytes or start > heap.size - length:
            return i
        if length == frame_bytes:
            whole_frame = heap[start : start + frame_bytes]
            for b in range(frame_bytes):
                row[b] = whole_frame[b]
            continue
        reference = references[i]
        if reference < 0 or reference >= keys.shape[0] or length % entry != 0:
            return i
        key = keys[reference]
        for b in range(frame_bytes):
            row[b] = key[b]
        n = length // entry
        if by_words:
            payload, words = heap[start : start + length], row.view(np.uint32)
            for j in range(n):
                # Unsigned indices, which are not checked for counting from the end; each load becomes a single one.
                at = np.uint64(2 * n + 4 * j)
                which = np.uint64(payload[2 * j]) | np.uint64(payload[2 * j + 1]) << np.uint64(8)
                low = np.uint32(payload[at]) | np.uint32(payload[at + np.uint64(1)]) << np.uint32(8)
                high = np.uint32(payload[at + np.uint64(2)]) | np.uint32(payload[at + np.uint64(3)]) << np.uint32(8)
                if which >= np.uint64(whole):
                    return i
                words[which] = low | high << np.uint32(16)
            continue
        word = start + n * position_bytes
        for j in range(n):
            position = start + j * position_bytes
            w = np.int64(heap[position]) | np.int64(heap[position + 1]) << 8
            if position_bytes == 4:
                w |= np.int64(heap[position + 2]) << 16 | np.int64(heap[position + 3]) << 24
            if w < whole:
                b0, b1, b2, b3 = heap[word], heap[word + 1], heap[word + 2], heap[word + 3]
                row[4 * w] = b0
                row[4 * w + 1] = b1
                row[4 * w + 2] = b2
                row[4 * w + 3] = b3
            elif w < n_words:
                for b in range(frame_bytes - 4 * w):
                    row[4 * w + b] = heap[word + b]
            else:
                return i
            word += 4
    return -1


def decode_reference(
    heap: Bytes,
    offsets: Ints,
    lengths: Ints,
    references: Ints,
    rows: Ints,
    sources: Ints,
    keys: Bytes,
    position_bytes: int,
    out: Bytes,
) -> int:
    """Decode or copy into `out[rows]` as the kernel does, in NumPy. Returns the first damaged payload, or -1."""
    new = np.flatnonzero(sources < 0)
    frames = np.empty((len(new), out.shape[1]), np.uint8)
    bad = _decode_new(heap, offsets[new], lengths[new], references[new], keys, position_bytes, frames)
    out[rows[new]] = frames
    out[rows[sources >= 0]] = out[sources[sources >= 0]]
    return bad if bad < 0 else int(new[bad])


def _decode_new(
    heap: Bytes, offsets: Ints, lengths: Ints, references: Ints, keys: Bytes, position_bytes: int, out: Bytes
) -> int:
    frame_bytes = out.shape[1]
    entry = position_bytes + _WORD
    raw = lengths == frame_bytes
    outside = (offsets < 0) | (lengths < 0) | (lengths > frame_bytes) | (offsets > heap.size - lengths)
    strange = ~raw & ((references < 0) | (references >= len(keys)) | (lengths % entry != 0))
    if np.any(outside | strange):
        return int(np.flatnonzero(outside | strange)[0])
    out[raw] = heap[offsets[raw, None] + np.arange(frame_bytes)]
    rows = np.flatnonzero(~raw)
    frames = keys[references[rows]].view(np.uint32)  # [rows, n_words], padded
    n = lengths[rows] // entry
    row = np.repeat(np.arange(len(rows)), n)
    nth = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    at = offsets[rows][row] + nth * position_bytes
    position = heap[at[:, None] + np.arange(position_bytes)].view(f"<u{position_bytes}")[:, 0].astype(np.int64)
    if np.any(position >= frames.shape[1]):
        return int(rows[row[np.flatnonzero(position >= frames.shape[1])[0]]])
    at = offsets[rows][row] + n[row] * position_bytes + nth * _WORD
    frames[row, position] = heap[at[:, None] + np.arange(_WORD)].view(np.uint32)[:, 0]
    out[rows] = frames.view(np.uint8)[:, :frame_bytes]
    return -1
