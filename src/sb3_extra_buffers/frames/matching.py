"""Find frames that are stored already: compared with what the same env wrote last, then through a small index.

`match` gives each frame a code: an id that holds the same bytes, or `-1 - k` for the k-th frame to store. An entry of
the index is a hint that the store confirms by comparing the frames; equal hashes alone never make frames equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Ints

Words = NDArray[np.uint64]

INDEX = 256
"""Entries of the index of frames stored lately. Later ones take their place, so no old frame is kept alive by it."""


def hash_weights(n_words: int) -> Words:
    """Return the fixed odd multipliers of the hash: sum of word times multiplier, modulo 2**64."""
    state = np.random.default_rng(n_words)  # a generator of its own: SB3's global one must not move
    return state.integers(0, 2**64, n_words, np.uint64) | np.uint64(1)


def matcher() -> Callable[..., int]:
    """Return the compiled `match`, or its reference where numba is absent."""
    words, ints = "uint64[:,:,::1]", "int64[::1]"
    hashes, codes = "uint64[::1]", "int64[:,::1]"
    return jit.choose(
        _match_kernel,
        match_reference,
        f"int64({words}, {ints}, {words}, {codes}, {hashes}, {hashes}, {ints}, {codes}, {ints}, {ints})",
    )


def _match_kernel(
    frames: Words,
    streams: Ints,
    recent: Words,
    recent_codes: Ints,
    weights: Words,
    index_hashes: Words,
    index_codes: Ints,
    codes: Ints,
    places: Ints,
    hints: Ints,
) -> int:
    n, stack, n_words = frames.shape
    k = 0  # frames to store
    for i in range(n):
        stream = streams[i]
        before = recent[stream]
        for s in range(stack):
            frame = frames[i, s]
            code = np.int64(0)
            found = False
            for candidate in range(3):
                # where it was last time; where it moves in a stack; its left neighbour in this stack
                if candidate == 0:
                    other, code = before[s], recent_codes[stream, s]
                elif candidate == 1:
                    if s + 1 == stack:
                        continue
                    other, code = before[s + 1], recent_codes[stream, s + 1]
                else:
                    if s == 0:
                        continue
                    other, code = frames[i, s - 1], codes[i, s - 1]
                found = True
                w = 0
                while w < n_words and found:
                    end = min(w + 32, n_words)
                    difference = np.uint64(0)
                    for v in range(w, end):
                        difference |= frame[v] ^ other[v]
                    found = difference == 0
                    w = end
                if found:
                    break
            if not found:
                total = np.uint64(0)
                content = np.uint64(0)
                for v in range(n_words):
                    total += frame[v] * weights[v]
                    content |= frame[v]
                entry = np.int64((total >> np.uint64(40)) % np.uint64(index_hashes.size))
                hint = np.int64(-1)
                if content == 0:
                    code = np.int64(0)
                    found = True
                elif index_hashes[entry] == total and index_codes[entry] < 0:
                    code = index_codes[entry]
                    place = places[-1 - code]
                    other = frames[place // stack, place % stack]
                    found = True
                    for v in range(n_words):
                        if frame[v] != other[v]:
                            found = False
                            break
                elif index_hashes[entry] == total and index_codes[entry] > 0:
                    hint = index_codes[entry]
                if not found:
                    code = np.int64(-1 - k)
                    places[k] = i * stack + s
                    hints[k] = hint
                    k += 1
                    index_hashes[entry] = total
                    index_codes[entry] = code
            codes[i, s] = code
        recent[stream] = frames[i]
        recent_codes[stream] = codes[i]
    return k


def match_reference(
    frames: Words,
    streams: Ints,
    recent: Words,
    recent_codes: Ints,
    weights: Words,
    index_hashes: Words,
    index_codes: Ints,
    codes: Ints,
    places: Ints,
    hints: Ints,
) -> int:
    """Match as the kernel does, in NumPy."""
    stack = frames.shape[1]
    totals = (frames * weights).sum(axis=-1, dtype=np.uint64)
    k = 0
    for i, stream in enumerate(streams.tolist()):  # each observation is compared with the one before it
        for s in range(stack):
            frame = frames[i, s]
            candidates = [(recent[stream, s], recent_codes[stream, s])]
            if s + 1 < stack:
                candidates.append((recent[stream, s + 1], recent_codes[stream, s + 1]))
            if s > 0:
                candidates.append((frames[i, s - 1], codes[i, s - 1]))
            code: Any = next((code for other, code in candidates if np.array_equal(frame, other)), None)
            entry, hint = int(totals[i, s] >> np.uint64(40)) % len(index_hashes), -1
            if code is None and not frame.any():
                code = 0
            elif code is None and index_hashes[entry] == totals[i, s]:
                if index_codes[entry] > 0:
                    hint = index_codes[entry]
                elif index_codes[entry] < 0:
                    place = places[-1 - index_codes[entry]]
                    if np.array_equal(frame, frames[place // stack, place % stack]):
                        code = index_codes[entry]
            if code is None:
                code = -1 - k
                places[k], hints[k] = i * stack + s, hint
                k += 1
                index_hashes[entry], index_codes[entry] = totals[i, s], code
            codes[i, s] = code
        recent[stream] = frames[i]
        recent_codes[stream] = codes[i]
    return k
