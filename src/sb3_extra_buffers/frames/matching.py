"""Find frames that are stored already: by comparing, first with what the same env wrote last, then through an index.

Steps over a batch of observations, each a kernel beside its NumPy reference:

    overlap   most observations are the env's last one, or that shifted by a frame: their frames have ids already.
              The other frames are copied out, one after another: the candidates.
    look_up   candidates that are zero, equal to each other, or (by hash) perhaps stored lately.
    confirm   of the latter, those that really are: byte by byte.
    tell      as well, of candidates that were encoded before: by their payloads.
    finish    gives the others, stored by now, their ids, puts ids in the place of candidates and counts references.
    count     counts references up and down; ids without any are free again.

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

INDEX = 512
"""Entries of the index of frames stored lately: the top bits of the hash, which every byte of a frame moves.

Later frames take the place of earlier ones, so no old frame is kept alive by it."""


_PERIOD = 64  # words


def hash_weights() -> Words:
    """Return the fixed odd multipliers of the hash, which weighs word by word and block by block."""
    state = np.random.default_rng(0)  # a generator of its own: SB3's global one must not move
    return state.integers(0, 2**64, _PERIOD, np.uint64) | np.uint64(1)


def overlap() -> Callable[..., bool]:
    """Return the step for two blocks of frames that lie one after another, as 8-byte words `[n, stack, words]`."""
    words, ints, codes = "uint64[:,:,::1]", "int64[::1]", "int64[:,:,::1]"
    signature = f"boolean({words}, {words}, {ints}, {words}, int64[:,::1], {codes}, uint64[:,::1], {ints}, {ints})"
    return jit.choose(_overlap_kernel, overlap_reference, signature)


def overlap_interleaved() -> Callable[..., bool]:
    """Return the step for two blocks of 4 byte frames whose pixels lie side by side, as 4-byte words `[n, pixels]`."""
    words, ints, codes = "uint32[:,::1]", "int64[::1]", "int64[:,:,::1]"
    signature = f"boolean({words}, {words}, {ints}, {words}, int64[:,::1], {codes}, uint8[:,::1], {ints}, {ints})"
    return jit.choose(_overlap_interleaved_kernel, _overlap_interleaved_reference, signature)


def look_up() -> Callable[..., int]:
    """Return the step that looks candidates up."""
    words, ints = "uint64[::1]", "int64[::1]"
    signature = f"int64(uint64[:,::1], {words}, {words}, {ints}, uint32[::1], {ints}, {ints})"
    return jit.choose(look_up_kernel, look_up_reference, signature)


def confirm() -> Callable[..., None]:
    """Return the step that compares candidates with the frames they may be equal to."""
    frames, ints = "uint8[:,::1]", "int64[::1]"
    return jit.choose(_confirm_kernel, confirm_reference, f"void({frames}, {frames}, {ints}, {ints})")


def tell() -> Callable[..., int]:
    """Return the step that compares payloads of candidates with those of the frames they may be equal to."""
    data, ints = "uint8[::1]", "int64[::1]"
    return jit.choose(
        _tell_kernel, tell_reference, f"int64({data}, {ints}, {data}, {ints}, uint32[::1], {ints}, {ints})"
    )


def finish() -> Callable[..., None]:
    """Return the step that makes ids of codes."""
    ints, ids = "int64[::1]", "uint32[::1]"
    found, stored, tables = f"{ints}, {ints}", f"{ints}, {ints}, {ints}", f"{ints}, {ids}, {ids}, {ids}"
    signature = f"void({found}, {stored}, {tables}, {ids}, int64, {ints}, {ints}, {ints}, {ids}, {ints})"
    return jit.choose(finish_kernel, finish_reference, signature)


def count() -> Callable[..., int]:
    """Return the step that counts references."""
    tables = "uint32[::1], uint32[::1], int64, int64[::1], int64, int64[::1], int64[::1]"
    signatures = (f"int64({ids}, {ids}, {tables})" for ids in ("int64[::1]", "uint32[::1]"))
    return jit.choose(count_kernel, count_reference, *signatures)


def _overlap_kernel(
    first: Words,
    second: Words,
    streams: Ints,
    recent: Words,
    recent_codes: Ints,
    codes: Ints,
    candidates: Words,
    sources: Ints,
    progress: Ints,
) -> bool:
    n, stack, n_words = first.shape
    blocks = 2 if len(second) > 0 else 1
    whole = n_words - n_words % 64
    k = progress[0]
    for i in range(progress[1], n):
        stream = streams[i]
        progress[0], progress[1] = k, i
        if stream < 0 or stream >= len(recent):
            return False
        for b in range(blocks):
            frames = first if b == 0 else second
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
                        codes[b, i, s] = recent_codes[stream, s + shift]
                    break
            if k + stack - known > len(candidates):
                progress[0] = k
                return False
            for s in range(known, stack):
                frame = frames[i, s]
                same = False
                for t in range(s - 1, -1, -1):  # frames may come back: a sprite that flickers
                    other = frames[i, t]
                    difference = np.uint64(0)
                    for w in range(0, whole, 64):
                        for v in range(64):
                            difference |= frame[w + v] ^ other[w + v]
                        if difference != 0:
                            break
                    for w in range(whole, n_words):
                        difference |= frame[w] ^ other[w]
                    same = difference == 0
                    if same:
                        codes[b, i, s] = codes[b, i, t]
                        break
                if not same:
                    for w in range(n_words):
                        candidates[k, w] = frame[w]
                    sources[k] = stream
                    codes[b, i, s] = -1 - k
                    k += 1
            if known < stack:
                for s in range(stack):
                    for w in range(n_words):
                        recent[stream, s, w] = frames[i, s, w]
                    recent_codes[stream, s] = codes[b, i, s]
    progress[0], progress[1] = k, n
    return True


def _overlap_interleaved_kernel(
    first: NDArray[np.uint32],
    second: NDArray[np.uint32],
    streams: Ints,
    recent: NDArray[np.uint32],
    recent_codes: Ints,
    codes: Ints,
    candidates: Bytes,
    sources: Ints,
    progress: Ints,
) -> bool:
    n, n_pixels = first.shape
    stack = 4
    blocks = 2 if len(second) > 0 else 1
    whole = n_pixels - n_pixels % 256
    eight, newest = np.uint32(8), np.uint32(24)
    k = progress[0]
    for i in range(progress[1], n):
        stream = streams[i]
        progress[0], progress[1] = k, i
        if stream < 0 or stream >= len(recent) or k == len(candidates):
            return False
        last = recent[stream]
        begin = 0  # the block to begin with
        known = -1  # how many frames of the next observation have codes; -1: it has to be compared
        if blocks == 2:
            # The usual case in one pass over memory: the first is the last one, the second that shifted. While they
            # are compared, the second takes the place of the last one, and its newest frame that of a candidate.
            frame, other, out = first[i], second[i], candidates[k]
            difference, moved = np.uint32(0), np.uint32(0)
            passed = 0
            # Inner loops of fixed length and one type: so the compiler makes vector code of them.
            for p in range(0, whole, 256):
                for q in range(p, p + 256):
                    difference = np.uint32(difference | np.uint32(frame[q] ^ last[q]))
                    apart = np.uint32(other[q] ^ np.uint32(last[q] >> eight))
                    moved = np.uint32(moved | np.uint32(apart & np.uint32(0xFFFFFF)))
                if difference != 0:
                    break
                for q in range(p, p + 256):
                    last[q] = other[q]
                    out[q] = np.uint8(np.uint32(other[q] >> newest))
                passed = p + 256
            if passed == whole:
                for q in range(whole, n_pixels):
                    difference |= np.uint32(frame[q] ^ last[q])
                    moved |= np.uint32(np.uint32(other[q] ^ np.uint32(last[q] >> eight)) & np.uint32(0xFFFFFF))
            if difference != 0:
                for q in range(passed):
                    last[q] = frame[q]  # as it was: so far they are the same
            else:
                for q in range(whole, n_pixels):
                    last[q] = other[q]
                    out[q] = np.uint8(np.uint32(other[q] >> newest))
                for s in range(stack):
                    codes[0, i, s] = recent_codes[stream, s]
                begin, known = 1, 3
                if moved != 0:
                    known = 4
                    for q in range(n_pixels):
                        if other[q] != frame[q]:
                            known = 0
                            break
                    if known == 0 and k + stack > len(candidates):
                        for q in range(n_pixels):
                            last[q] = frame[q]
                        return False
        for b in range(begin, blocks):
            frame = first[i] if b == 0 else second[i]
            if known < 0:
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
                    if k + stack > len(candidates):
                        progress[0] = k
                        return False
                    # Shifted, in one pass again.
                    out, moved = candidates[k], np.uint32(0)
                    for p in range(0, whole, 256):
                        for q in range(p, p + 256):
                            apart = np.uint32(frame[q] ^ np.uint32(last[q] >> eight))
                            moved = np.uint32(moved | np.uint32(apart & np.uint32(0xFFFFFF)))
                        for q in range(p, p + 256):
                            last[q] = frame[q]
                        for q in range(p, p + 256):
                            out[q] = np.uint8(np.uint32(frame[q] >> newest))
                    for q in range(whole, n_pixels):
                        moved |= np.uint32(np.uint32(frame[q] ^ np.uint32(last[q] >> eight)) & np.uint32(0xFFFFFF))
                        last[q] = frame[q]
                        out[q] = np.uint8(np.uint32(frame[q] >> newest))
                    known = 3 if moved == 0 else 0
            for s in range(known):
                codes[b, i, s] = recent_codes[stream, s + stack - known]
            for s in range(known, stack):
                bits = np.uint32(8 * s)
                same = False
                for t in range(s - 1, -1, -1):  # frames may come back: a sprite that flickers
                    distance = np.uint32(8 * (s - t))
                    pair = np.uint32(0xFF) << np.uint32(8 * t)
                    difference = np.uint32(0)
                    for p in range(0, whole, 256):
                        for q in range(p, p + 256):
                            difference |= np.uint32(frame[q] >> distance) ^ frame[q]
                        if difference & pair != 0:
                            break
                    for q in range(whole, n_pixels):
                        difference |= np.uint32(frame[q] >> distance) ^ frame[q]
                    same = difference & pair == 0
                    if same:
                        codes[b, i, s] = codes[b, i, t]
                        break
                if same:
                    continue
                if known == 0:  # else the newest one is there already
                    for q in range(n_pixels):
                        candidates[k, q] = np.uint8(frame[q] >> bits)
                sources[k] = stream
                codes[b, i, s] = -1 - k
                k += 1
            if known < stack:
                for s in range(stack):
                    recent_codes[stream, s] = codes[b, i, s]
            known = -1
    progress[0], progress[1] = k, n
    return True


def overlap_reference(
    first: NDArray[Any],
    second: NDArray[Any],
    streams: Ints,
    recent: NDArray[Any],
    recent_codes: Ints,
    codes: Ints,
    candidates: NDArray[Any],
    sources: Ints,
    progress: Ints,
) -> bool:
    """Do as the kernels do, in NumPy, for one or two blocks of frames `[n, stack, ...]` of any layout.

    Fills `codes` [2, n, stack], `candidates` and the streams they come from. `progress` is how many candidates there
    are, and how many observations are done. Returns False if `recent` has no room for a stream, or perhaps `candidates`
    for its frames: it is then called again, and goes on where it was. If that is the second block, the first is then
    the stream's last one.
    """
    stack, blocks = first.shape[1], (first, second) if len(second) else (first,)
    for i in range(progress[1], len(streams)):  # an observation is compared with the one before
        k, stream = int(progress[0]), streams[i]
        if not 0 <= stream < len(recent):
            return False
        for b, frames in enumerate(blocks):
            last, known = recent[stream], 0
            if np.array_equal(frames[i], last):
                known, codes[b, i] = stack, recent_codes[stream]
            elif stack > 1 and np.array_equal(frames[i, :-1], last[1:]):
                known, codes[b, i, :-1] = stack - 1, recent_codes[stream, 1:]
            if k + stack - known > len(candidates):
                progress[0] = k
                return False
            for s in range(known, stack):
                again = [t for t in range(s - 1, -1, -1) if np.array_equal(frames[i, s], frames[i, t])]
                if again:
                    codes[b, i, s] = codes[b, i, again[0]]
                else:
                    candidates[k, : frames.shape[2]] = frames[i, s]
                    sources[k] = stream
                    codes[b, i, s] = -1 - k
                    k += 1
            recent[stream] = frames[i]
            recent_codes[stream] = codes[b, i]
        progress[:] = k, i + 1
    return True


def _overlap_interleaved_reference(
    first: NDArray[np.uint32],
    second: NDArray[np.uint32],
    streams: Ints,
    recent: NDArray[np.uint32],
    recent_codes: Ints,
    codes: Ints,
    candidates: Bytes,
    sources: Ints,
    progress: Ints,
) -> bool:
    def planes(words: NDArray[np.uint32]) -> Bytes:
        return words.view(np.uint8).reshape(*words.shape, 4).transpose(0, 2, 1)

    blocks = planes(first), planes(second)
    return overlap_reference(*blocks, streams, planes(recent), recent_codes, codes, candidates, sources, progress)


def look_up_kernel(
    candidates: Words,
    weights: Words,
    index_hashes: Words,
    index_codes: Ints,
    counts: Counts,
    same_as: Ints,
    hints: Ints,
) -> int:
    """Do as `look_up_reference`."""
    n_words = candidates.shape[1]
    whole = n_words - n_words % 64
    known = 0
    for j in range(candidates.shape[0]):
        candidate = candidates[j]
        total = np.uint64(0)
        content = np.uint64(0)
        for w in range(0, whole, 64):
            block = np.uint64(0)
            for v in range(64):
                block += candidate[w + v] * weights[v]
                content |= candidate[w + v]
            total = total * weights[0] + block
        block = np.uint64(0)
        for w in range(whole, n_words):
            block += candidate[w] * weights[w - whole]
            content |= candidate[w]
        total = total * weights[0] + block
        same_as[j] = j
        hints[j] = -1
        if content == 0:
            same_as[j] = -1
            known += 1
            continue
        entry = np.int64(total >> np.uint64(55))
        if index_hashes[entry] == total:
            code = index_codes[entry]
            if code > 0:
                if counts[code] > 0:
                    hints[j] = code
                    known += 1
            elif code < 0:
                other = candidates[-1 - code]
                same = True
                for w in range(n_words):
                    if candidate[w] != other[w]:
                        same = False
                        break
                if same:
                    same_as[j] = -1 - code
                    known += 1
                    continue
        index_hashes[entry] = total
        index_codes[entry] = -1 - j
    return known


def look_up_reference(
    candidates: Words,
    weights: Words,
    index_hashes: Words,
    index_codes: Ints,
    counts: Counts,
    same_as: Ints,
    hints: Ints,
) -> int:
    """Look up as the kernel does, in NumPy.

    `same_as[j]` is -1 for a frame of zeros, an earlier candidate with the same bytes, or j; `hints[j]` is an id whose
    frame has the same hash, or -1. Returns how many candidates are, or perhaps are, known.
    """
    n, n_words = candidates.shape
    blocks = np.zeros((n, n_words // _PERIOD + 1, _PERIOD), np.uint64)
    blocks.reshape(n, blocks.shape[1] * _PERIOD)[:, :n_words] = candidates
    totals = np.zeros(n, np.uint64)
    for sums in (blocks * weights).sum(axis=2, dtype=np.uint64).T:
        totals = totals * weights[0] + sums
    same_as[:], hints[:] = np.arange(n), -1
    for j, total in enumerate(totals):  # each candidate may be equal to an earlier one
        entry = int(total >> np.uint64(55))
        if not candidates[j].any():
            same_as[j] = -1
            continue
        if index_hashes[entry] == total:
            code = int(index_codes[entry])
            if code > 0 and counts[code]:
                hints[j] = code
            elif code < 0 and np.array_equal(candidates[j], candidates[-1 - code]):
                same_as[j] = -1 - code
                continue
        index_hashes[entry], index_codes[entry] = total, -1 - j
    return int(np.count_nonzero((same_as != np.arange(n)) | (hints > 0)))


def _confirm_kernel(stored: Bytes, candidates: Bytes, hinted: Ints, hints: Ints) -> None:
    for i in range(hinted.size):
        frame, candidate = stored[i], candidates[hinted[i]]
        difference = np.uint8(0)
        for b in range(frame.size):
            difference |= np.uint8(frame[b] ^ candidate[b])
        if difference != 0:
            hints[hinted[i]] = -1


def confirm_reference(stored: Bytes, candidates: Bytes, hinted: Ints, hints: Ints) -> None:
    """Take back the hints for which `stored` [hinted] and the candidate, which may be padded, differ."""
    same = (stored == candidates[hinted, : stored.shape[1]]).all(axis=1)
    hints[hinted[~same]] = -1


def _tell_kernel(
    data: Bytes, sizes: Ints, heap: Bytes, offsets: Ints, lengths: Counts, same_as: Ints, hints: Ints
) -> int:
    n = begin = end = 0  # how many are new, where their payloads end, and all payloads so far
    for j in range(sizes.size):
        size, payload, hint = sizes[j], data[end:], hints[j]
        if hint > 0:
            start = offsets[hint]
            difference = np.uint8(lengths[hint] != size or start < 0 or start > heap.size - size)
            if difference == 0:
                stored = heap[start : start + size]
                for b in range(size):
                    difference |= np.uint8(stored[b] ^ payload[b])
            if difference != 0:
                hints[j] = -1
        if same_as[j] == j and hints[j] < 0:
            if begin < end:
                target = data[begin:]
                for b in range(size):  # in this order: they lie close together
                    target[b] = payload[b]
            sizes[n] = size
            n += 1
            begin += size
        end += size
    return n


def tell_reference(
    data: Bytes, sizes: Ints, heap: Bytes, offsets: Ints, lengths: Counts, same_as: Ints, hints: Ints
) -> int:
    """Take back the hints for which the payloads of the candidate and of the frame differ.

    Args:
        data: the payloads of all candidates, one after another; from now on those of new ones.
        sizes: their sizes, likewise.
        heap: where payloads of frames are.
        offsets: where each one begins, by id.
        lengths: its size, by id.
        same_as: as of `look_up_reference`.
        hints: likewise.

    Returns:
        How many candidates are new.
    """
    n = begin = end = 0
    for j, size in enumerate(sizes.tolist()):
        payload, hint = data[end : end + size], hints[j]
        if hint > 0 and heap[offsets[hint] :][: lengths[hint]].tobytes() != payload.tobytes():
            hints[j] = -1
        if same_as[j] == j and hints[j] < 0:
            data[begin : begin + size], sizes[n] = payload, size
            n, begin = n + 1, begin + size
        end += size
    return n


def finish_kernel(
    same_as: Ints,
    hints: Ints,
    new_offsets: Ints,
    new_lengths: Ints,
    new_references: Ints,
    offsets: Ints,
    lengths: Counts,
    references: Counts,
    counts: Counts,
    free: Counts,
    n_free: int,
    codes: Ints,
    recent_codes: Ints,
    index_codes: Ints,
    result: Counts,
    left: Ints,
) -> None:
    """Do as `finish_reference`."""
    ids = np.empty(same_as.size, np.int64)
    new = 0
    for j in range(same_as.size):
        if same_as[j] < 0:
            ids[j] = 0
        elif same_as[j] != j:
            ids[j] = ids[same_as[j]]
        elif hints[j] > 0:
            ids[j] = hints[j]
        else:
            n_free -= 1
            ids[j] = free[n_free]
            offsets[ids[j]] = new_offsets[new]
            lengths[ids[j]] = new_lengths[new]
            references[ids[j]] = new_references[new]
            new += 1
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
    counts[0] = 1  # the frame of zeros is not counted
    left[0] = n_free


def finish_reference(
    same_as: Ints,
    hints: Ints,
    new_offsets: Ints,
    new_lengths: Ints,
    new_references: Ints,
    offsets: Ints,
    lengths: Counts,
    references: Counts,
    counts: Counts,
    free: Counts,
    n_free: int,
    codes: Ints,
    recent_codes: Ints,
    index_codes: Ints,
    result: Counts,
    left: Ints,
) -> None:
    """Finish as the kernel does, in NumPy: new frames take ids from the end of `free`.

    Writes the tables of the new ids and `result`, the ids of `codes`; counts `codes` and `recent_codes` up. At last it
    writes to `left` how many ids are free: from then on it is done.
    """
    new = np.flatnonzero((same_as == np.arange(len(same_as))) & (hints < 0))
    taken = free[n_free - len(new) : n_free][::-1]
    offsets[taken], lengths[taken], references[taken] = new_offsets, new_lengths, new_references
    ids = np.maximum(hints, 0)
    ids[new] = taken
    ids = np.where(same_as < 0, 0, ids[same_as])
    for array in (recent_codes, index_codes):
        array[array < 0] = ids[-1 - array[array < 0]]
    result[:] = codes
    result[codes < 0] = ids[-1 - codes[codes < 0]]
    np.add.at(counts, result, 1)
    np.add.at(counts, recent_codes, 1)
    counts[0] = 1
    left[0] = n_free - len(new)


def count_kernel(
    up: NDArray[Any],
    down: NDArray[Any],
    counts: Counts,
    free: Counts,
    n_free: int,
    offsets: Ints,
    segment_bytes: int,
    alive: Ints,
    empty: Ints,
) -> int:
    """Do as `count_reference`."""
    for i in range(up.size):
        counts[up[i]] += np.uint32(1)
    empty[0] = 0
    for i in range(down.size):
        gone = down[i]
        counts[gone] -= np.uint32(1)
        if counts[gone] == 0 and gone != 0:
            free[n_free] = gone
            n_free += 1
            segment = offsets[gone] // segment_bytes
            alive[segment] -= 1
            if alive[segment] == 0:
                empty[0] += 1
                empty[empty[0]] = segment
    counts[0] = 1
    return n_free


def count_reference(
    up: NDArray[Any],
    down: NDArray[Any],
    counts: Counts,
    free: Counts,
    n_free: int,
    offsets: Ints,
    segment_bytes: int,
    alive: Ints,
    empty: Ints,
) -> int:
    """Count up and down; ids without references go to the end of `free`. Returns its new length.

    Their payloads are counted off in `alive`; `empty` is how many segments have none left, and these.
    """
    np.add.at(counts, up, 1)
    np.subtract.at(counts, down, 1)
    counts[0] = 1
    dead = np.unique(down[counts[down] == 0])
    free[n_free : n_free + len(dead)] = dead
    segments = offsets[dead] // segment_bytes
    np.subtract.at(alive, segments, 1)
    gone = np.unique(segments[alive[segments] == 0])
    empty[0], empty[1 : 1 + len(gone)] = len(gone), gone
    return n_free + len(dead)
