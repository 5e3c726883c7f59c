"""Storing new frames with `delta`, all steps in one compiled call: Python between them would take longer than they do.

The steps are those of `FrameStore`, with their kernels; see there, and in `matching`, `heap` and `delta`, what they do.
Import it only where numba is installed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

from sb3_extra_buffers.codecs import delta
from sb3_extra_buffers.frames import heap, matching

DONE, KEYS_FULL, TABLES_FULL, HEAP_FULL = range(4)

_look_up = numba.njit(nogil=True)(matching.look_up_kernel)
_finish = numba.njit(nogil=True)(matching.finish_kernel)
_count = numba.njit(nogil=True)(matching.count_kernel)
_copy_in = numba.njit(nogil=True)(heap.copy_in_kernel)
_encode = numba.njit(nogil=True)(delta.encode_kernel)
_decode = numba.njit(nogil=True)(delta.decode_kernel)


@functools.cache
def store_new() -> Callable[..., int]:
    """Return the compiled call. Its arguments are the state of a store and of its coder.

    `progress` holds how many frames are encoded, into how many bytes; how many are new; at last how many ids are free,
    from when on all is done.
    `copied` is that of the heap; rows of `scratch` go from step to step.
    The call returns DONE, or what there is no room for: it is then called again, and goes on where it was.
    """
    digest = _sources()

    def kernel(  # type: ignore[no-untyped-def] # numba infers them
        candidates, sources, codes, before, result,
        weights, index_hashes, index_codes, recent_codes,
        heap_data, limit, segment_bytes, alive, empty,
        offsets, lengths, references, counts, free, n_free,
        frame_bytes, position_bytes, keys, uses, key_candidates, last_used, clock, backgrounds, votes, savings,
        learning,
        scratch, frames, data, progress, copied,
    ):  # fmt: skip
        assert digest
        same_as, hints, streams = scratch[0], scratch[1], scratch[2]
        new_lengths, new_references, new_offsets = scratch[3], scratch[4], scratch[5]
        k = candidates.shape[0]
        n_words, words = frames.shape[1], candidates.view(np.uint32)
        if progress[2] < 0:
            _look_up(candidates, weights, index_hashes, index_codes, counts, same_as, hints)
            stored, row, nowhere = np.empty((1, frame_bytes), np.uint8), np.zeros(1, np.int64), np.full(1, -1)
            new = 0
            for j in range(k):
                candidate = candidates[j].view(np.uint8)
                if hints[j] > 0:
                    one = slice(hints[j], hints[j] + 1)
                    bad = _decode(
                        heap_data,
                        offsets[one],
                        lengths[one].astype(np.int64),
                        references[one].astype(np.int64),
                        row,
                        nowhere,
                        keys.view(np.uint8),
                        position_bytes,
                        stored,
                    )
                    difference = np.uint8(bad >= 0)
                    for b in range(frame_bytes):
                        difference |= np.uint8(stored[0, b] ^ candidate[b])
                    if difference != 0:
                        hints[j] = -1
                if same_as[j] == j and hints[j] < 0:
                    new += 1
            if new < k or words.shape[1] != n_words:
                new = 0
                for j in range(k):
                    if same_as[j] == j and hints[j] < 0:
                        for w in range(n_words):
                            frames[new, w] = words[j, w]
                        streams[new] = sources[j]
                        new += 1
            else:
                streams[:] = sources
            progress[2] = new
        new = progress[2]
        if new == k and words.shape[1] == n_words:  # the usual case: no copy
            frames = words
        if progress[0] < new and not _encode(
            frames[:new], streams[:new], frame_bytes, position_bytes, keys, uses, key_candidates, last_used, clock,
            backgrounds, votes, savings, learning, data, new_lengths, new_references, progress,
        ):  # fmt: skip
            return KEYS_FULL
        if n_free < new:
            return TABLES_FULL
        if not _copy_in(data, new_lengths[:new], heap_data, limit, segment_bytes, alive, new_offsets, copied):
            return HEAP_FULL
        _finish(
            same_as, hints, new_offsets, new_lengths, new_references, offsets, lengths, references, counts, free,
            n_free, codes, recent_codes, index_codes, result, progress[3:],
        )  # fmt: skip
        left = progress[3]
        progress[3] = _count(before[:0], before, counts, free, left, offsets, segment_bytes, alive, empty)
        for i in range(left, progress[3]):
            uses[references[free[i]]] -= 1
        before[:] = 0  # once, whatever happens from here on
        return DONE

    ints, words, ids, data = "int64[::1]", "uint32[:,::1]", "uint32[::1]", "uint8[::1]"
    groups = (
        f"uint64[:,::1], {ints}, {ints}, {ints}, {ids}",
        f"uint64[::1], uint64[::1], {ints}, {ints}",
        f"{data}, int64, int64, {ints}, {ints}",
        f"{ints}, {ids}, {ids}, {ids}, {ids}, int64",
        f"int64, int64, {words}, {ints}, {ints}, {ints}, {ints}, {words}, int8[:,::1], {ints}, boolean",
        f"int64[:,::1], {words}, {data}, {ints}, {ints}",
    )
    compiled: Callable[..., int] = numba.njit(f"int64({', '.join(groups)})", nogil=True, cache=True)(kernel)
    return compiled


def _sources() -> str:
    """Return a digest of the files whose kernels are called: numba's cache looks at this file's only, and at this."""
    files = [Path(module.__file__ or "") for module in (matching, heap, delta)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
