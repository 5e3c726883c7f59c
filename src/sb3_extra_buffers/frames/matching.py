"""Find frames that are stored already: by comparing, first with what the same env wrote last, then through an index.

Three steps over a batch of observations, each a kernel beside its NumPy reference:

    overlap   most observations are the env's last one, or that shifted by a frame: their frames have ids already.
              The other frames are copied out, one after another: the candidates.
    look_up   candidates that are zero, equal to each other, or (by hash) perhaps stored lately.
    finish    puts ids in the place of candidates and counts references, up and down; ids without any are dead.

While a batch is being stored, `-1 - j` stands for the id that candidate j will have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Bytes, Ints

Words = NDArray[np.uint64]
Counts = NDArray[np.uint32]

INDEX = 256
"""Entries of the index of frames stored lately: the top byte of the hash, which every byte of a frame moves.

Later frames take the place of earlier ones, so no old frame is kept alive by it."""


def hash_weights(n_words: int) -> Words:
    """Return the fixed odd multipliers of the hash: sum of word times multiplier, modulo 2**64."""
    state = np.random.default_rng(n_words)  # a generator of its own: SB3's global one must not move
    return state.integers(0, 2**64, n_words, np.uint64) | np.uint64(1)


def overlap() -> Callable[..., int]:
    """Return the step for frames that lie one after another, as 8-byte words `[n, stack, words]`."""
    words, ints, codes = "uint64[:,:,::1]", "int64[::1]", "int64[:,::1]"
    signature = f"int64({words}, {ints}, {words}, {codes}, {codes}, uint64[:,::1], {ints}, int64)"
    return jit.choose(_overlap_kernel, overlap_reference, signature)


def overlap_interleaved() -> Callable[..., int]:
    """Return the step for stacks of 4 byte frames whose pixels lie side by side, as 4-byte words `[n, pixels]`."""
    words, ints, codes = "uint32[:,::1]", "int64[::1]", "int64[:,::1]"
    signature = f"int64({words}, {ints}, {words}, {codes}, {codes}, uint8[:,::1], {ints}, int64)"
    return jit.choose(_overlap_interleaved_kernel, _overlap_interleaved_reference, signature)


def look_up() -> Callable[..., int]:
    """Return the step that looks candidates up."""
    words, ints = "uint64[::1]", "int64[::1]"
    signature = f"int64(uint64[:,::1], {words}, {words}, {ints}, {ints}, {ints})"
    return jit.choose(_look_up_kernel, look_up_reference, signature)


def finish() -> Callable[..., int]:
    """Return the step that makes ids of codes and counts references."""
    ints, ids = "int64[::1]", "uint32[::1]"
    signature = f"int64({ints}, {ints}, {ints}, {ints}, {ints}, {ints}, {ids}, {ints}, {ids})"
    return jit.choose(_finish_kernel, finish_reference, signature)


def _overlap_kernel(
    frames: Words,
    streams: Ints,
    recent: Words,
    recent_codes: Ints,
    codes: Ints,
    candidates: Words,
    sources: Ints,
    k: int,
) -> int:
    n, stack, n_words = frames.shape
    for i in range(n):
        if streams[i] < 0 or streams[i] >= len(recent):
            return -1
    whole = n_words - n_words % 64
    for i in range(n):
        stream = streams[i]
        known = 0  # how many frames have codes: all, all but the newest, or none
        for shift in range(2):
            known = stack - shift
            for s in range(known):
                frame, other = frames[i, s], recent[stream, s + shift]
                # Inner loops of fixed length and one type: so the compiler makes vector code of them.
                for w in range(0, whole, 64):
                    difference = np.uint64(0)
                    for v in range(64):
                        difference |= frame[w + v] ^ other[w + v]
                    if difference != 0:
                        known = 0
                        break
                for w in range(whole, n_words):
                    if frame[w] != other[w]:
                        known = 0
                if known == 0:
                    break
            if known > 0:
                for s in range(known):
                    codes[i, s] = recent_codes[stream, s + shift]
                break
        for s in range(known, stack):
            frame = frames[i, s]
            same = False
            for t in range(s - 1, -1, -1):  # frames may come back: a sprite that flickers
                other = frames[i, t]
                same = True
                for w in range(n_words):
                    if frame[w] != other[w]:
                        same = False
                        break
                if same:
                    codes[i, s] = codes[i, t]
                    break
            if not same:
                for w in range(n_words):
                    candidates[k, w] = frame[w]
                sources[k] = stream
                codes[i, s] = -1 - k
                k += 1
        if known < stack:
            for s in range(stack):
                for w in range(n_words):
                    recent[stream, s, w] = frames[i, s, w]
                recent_codes[stream, s] = codes[i, s]
    return k


def _overlap_interleaved_kernel(
    frames: NDArray[np.uint32],
    streams: Ints,
    recent: NDArray[np.uint32],
    recent_codes: Ints,
    codes: Ints,
    candidates: Bytes,
    sources: Ints,
    k: int,
) -> int:
    n, n_pixels = frames.shape
    for i in range(n):
        if streams[i] < 0 or streams[i] >= len(recent):
            return -1
    stack = 4
    whole = n_pixels - n_pixels % 256
    eight, newest = np.uint32(8), np.uint32(24)
    for i in range(n):
        stream = streams[i]
        frame, last = frames[i], recent[stream]
        # Inner loops of fixed length and one type: so the compiler makes vector code of them.
        known = 4
        for p in range(0, whole, 256):
            difference = np.uint32(0)
            for q in range(p, p + 256):
                difference = np.uint32(difference | np.uint32(frame[q] ^ last[q]))
            if difference != 0:
                known = 0
                break
        for q in range(whole, n_pixels):
            if frame[q] != last[q]:
                known = 0
        if known == 0:
            known = 3
            for p in range(0, whole, 256):
                difference = np.uint32(0)
                for q in range(p, p + 256):
                    moved = np.uint32(frame[q] ^ np.uint32(last[q] >> eight))
                    difference = np.uint32(difference | np.uint32(moved & np.uint32(0xFFFFFF)))
                if difference != 0:
                    known = 0
                    break
            for q in range(whole, n_pixels):
                if (frame[q] ^ (last[q] >> eight)) & np.uint32(0xFFFFFF) != 0:
                    known = 0
        for s in range(known):
            codes[i, s] = recent_codes[stream, s + stack - known]
        for s in range(known, stack):
            bits = np.uint32(8 * s)
            same = False
            for t in range(s - 1, -1, -1):  # frames may come back: a sprite that flickers
                apart = np.uint32(8 * (s - t))
                pair = np.uint32(0xFF) << np.uint32(8 * t)
                same = True
                for q in range(n_pixels):
                    if ((frame[q] >> apart) ^ frame[q]) & pair != 0:
                        same = False
                        break
                if same:
                    codes[i, s] = codes[i, t]
                    break
            if same:
                continue
            if s == 3:
                for q in range(n_pixels):
                    candidates[k, q] = np.uint8(np.uint32(frame[q] >> newest))
            else:
                for q in range(n_pixels):
                    candidates[k, q] = np.uint8(frame[q] >> bits)
            sources[k] = stream
            codes[i, s] = -1 - k
            k += 1
        if known < stack:
            for q in range(n_pixels):
                last[q] = frame[q]
            for s in range(stack):
                recent_codes[stream, s] = codes[i, s]
    return k


def overlap_reference(
    frames: NDArray[Any],
    streams: Ints,
    recent: NDArray[Any],
    recent_codes: Ints,
    codes: Ints,
    candidates: NDArray[Any],
    sources: Ints,
    k: int,
) -> int:
    """Do as the kernels do, in NumPy, for frames `[n, stack, ...]` of any layout.

    Fills `codes` [n, stack], and from `k` on `candidates` and the streams they come from; returns the next k, or -1 and
    does nothing if `recent` has no room for a stream.
    """
    if len(streams) and not 0 <= streams.min() <= streams.max() < len(recent):
        return -1
    stack = frames.shape[1]
    for i, stream in enumerate(streams.tolist()):  # an observation is compared with the one before it
        last, known = recent[stream], 0
        if np.array_equal(frames[i], last):
            known, codes[i] = stack, recent_codes[stream]
        elif stack > 1 and np.array_equal(frames[i, :-1], last[1:]):
            known, codes[i, :-1] = stack - 1, recent_codes[stream, 1:]
        for s in range(known, stack):
            again = [t for t in range(s - 1, -1, -1) if np.array_equal(frames[i, s], frames[i, t])]
            if again:
                codes[i, s] = codes[i, again[0]]
            else:
                candidates[k, : frames.shape[2]] = frames[i, s]
                sources[k] = stream
                codes[i, s] = -1 - k
                k += 1
        recent[stream] = frames[i]
        recent_codes[stream] = codes[i]
    return k


def _overlap_interleaved_reference(
    frames: NDArray[np.uint32],
    streams: Ints,
    recent: NDArray[np.uint32],
    recent_codes: Ints,
    codes: Ints,
    candidates: Bytes,
    sources: Ints,
    k: int,
) -> int:
    def planes(words: NDArray[np.uint32]) -> Bytes:
        return words.view(np.uint8).reshape(*words.shape, 4).transpose(0, 2, 1)

    return overlap_reference(planes(frames), streams, planes(recent), recent_codes, codes, candidates, sources, k)


def _look_up_kernel(
    candidates: Words, weights: Words, index_hashes: Words, index_codes: Ints, same_as: Ints, hints: Ints
) -> int:
    n_words = candidates.shape[1]
    known = 0
    for j in range(candidates.shape[0]):
        total = np.uint64(0)
        content = np.uint64(0)
        for v in range(n_words):
            total += candidates[j, v] * weights[v]
            content |= candidates[j, v]
        same_as[j] = j
        hints[j] = -1
        if content == 0:
            same_as[j] = -1
            known += 1
            continue
        entry = np.int64(total >> np.uint64(56))
        if index_hashes[entry] == total:
            if index_codes[entry] > 0:
                hints[j] = index_codes[entry]
                known += 1
            elif index_codes[entry] < 0:
                earlier = -1 - index_codes[entry]
                same = True
                for v in range(n_words):
                    if candidates[j, v] != candidates[earlier, v]:
                        same = False
                        break
                if same:
                    same_as[j] = earlier
                    known += 1
                    continue
        index_hashes[entry] = total
        index_codes[entry] = -1 - j
    return known


def look_up_reference(
    candidates: Words, weights: Words, index_hashes: Words, index_codes: Ints, same_as: Ints, hints: Ints
) -> int:
    """Look up as the kernel does, in NumPy.

    `same_as[j]` is -1 for a frame of zeros, an earlier candidate with the same bytes, or j; `hints[j]` is an id whose
    frame has the same hash, or -1. Returns how many candidates are, or perhaps are, known.
    """
    totals = (candidates * weights).sum(axis=1, dtype=np.uint64)
    same_as[:], hints[:] = np.arange(len(candidates)), -1
    for j, total in enumerate(totals):  # each candidate may be equal to an earlier one
        entry = int(total >> np.uint64(56))
        if not candidates[j].any():
            same_as[j] = -1
            continue
        if index_hashes[entry] == total:
            if index_codes[entry] > 0:
                hints[j] = index_codes[entry]
            elif index_codes[entry] < 0 and np.array_equal(candidates[j], candidates[-1 - index_codes[entry]]):
                same_as[j] = -1 - index_codes[entry]
                continue
        index_hashes[entry], index_codes[entry] = total, -1 - j
    return int(np.count_nonzero((same_as != np.arange(len(candidates))) | (hints > 0)))


def _finish_kernel(
    codes: Ints,
    ids: Ints,
    recent_before: Ints,
    recent_codes: Ints,
    index_codes: Ints,
    down: Ints,
    counts: Counts,
    dead: Ints,
    result: Counts,
) -> int:
    for i in range(index_codes.size):
        if index_codes[i] < 0:
            index_codes[i] = ids[-1 - index_codes[i]]
    for i in range(codes.size):
        code = codes[i] if codes[i] >= 0 else ids[-1 - codes[i]]
        counts[code] += np.uint32(1)
        result[i] = code
    for i in range(recent_codes.size):
        if recent_codes[i] < 0:
            recent_codes[i] = ids[-1 - recent_codes[i]]
        counts[recent_codes[i]] += np.uint32(1)
    n = 0
    for i in range(recent_before.size + down.size):
        gone = recent_before[i] if i < recent_before.size else down[i - recent_before.size]
        counts[gone] -= np.uint32(1)
        if counts[gone] == 0 and gone != 0:
            dead[n] = gone
            n += 1
    counts[0] = 1  # the frame of zeros is not counted
    return n


def finish_reference(
    codes: Ints,
    ids: Ints,
    recent_before: Ints,
    recent_codes: Ints,
    index_codes: Ints,
    down: Ints,
    counts: Counts,
    dead: Ints,
    result: Counts,
) -> int:
    """Finish as the kernel does, in NumPy: writes `result`, counts, fills `dead` and returns how many those are.

    Counted up are `codes` and `recent_codes`; down, `recent_before` and `down`.
    """
    for array in (codes, recent_codes, index_codes):
        array[array < 0] = ids[-1 - array[array < 0]]
    result[:] = codes
    gone = np.concatenate([recent_before, down])
    np.add.at(counts, codes, 1)
    np.add.at(counts, recent_codes, 1)
    np.subtract.at(counts, gone, 1)
    counts[0] = 1
    died = np.unique(gone[counts[gone] == 0])
    dead[: len(died)] = died
    return len(died)
