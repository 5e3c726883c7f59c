"""`delta` on the device: the format of `codecs.delta`, many frames in one launch.

A payload is `positions: uint16[n]` (uint32 in frames above 65,536 words), then `words: uint32[n]`, little-endian: the
words in which a frame differs from its key. A payload as long as the frame is the frame itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from sb3_extra_buffers.gpu_buffers.kernels.launch import Launch, compiled, use_triton
from sb3_extra_buffers.gpu_buffers.kernels.payloads import (
    WORD,
    Payloads,
    check_frames,
    check_table,
    in_float,
    unpack_entries,
)
from sb3_extra_buffers.gpu_buffers.kernels.scatter import N_TARGETS, carry_out, filled_up

tl: Any = None  # triton.language, once a kernel is compiled
_CALLS = (carry_out,)


def position_bytes(frame_bytes: int) -> int:
    """Return the size of a position in frames of this size."""
    return 2 if -(-frame_bytes // WORD) <= 1 << 16 else 4


def delta_decode(
    heap: torch.Tensor,
    table: torch.Tensor,
    ids: torch.Tensor,
    keys: torch.Tensor,
    frame_bytes: int,
    *,
    places: torch.Tensor | None = None,
    dtype: torch.dtype = torch.uint8,
    normalize: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return frames as `[n, frame_bytes]`: looked up, decoded, cast and scaled in one pass.

    Args:
        heap: payloads, uint8.
        table: `[frames, 2]`, see `pack_entries`.
        ids: int32, rows of the table: `[n]`; with `places`, `[observations, stack]`.
        keys: int32 `[keys, words]`; key 0 is all zeros.
        frame_bytes: size of a frame.
        places: int32 `[m]`, rows of `ids` to decode, `m * stack` frames; None: all ids, in order.
        dtype: uint8, or float32 to get each byte as a number.
        normalize: divide by 255, exactly as NumPy does; for float32.
        out: contiguous tensor of as many bytes to write to, of any shape; it is returned. None: a new one.

    Raises:
        ValueError: tensors of the wrong kind.
    """
    check_table(heap, table, ids, places)
    n_words = -(-frame_bytes // WORD)
    if keys.dtype != torch.int32 or keys.ndim != 2 or keys.shape[1] != n_words or not keys.is_contiguous():
        raise ValueError(f"keys of these frames are int32 [n, {n_words}], not {keys.dtype} {tuple(keys.shape)}")
    if dtype not in (torch.uint8, torch.float32) or (normalize and dtype != torch.float32):
        raise ValueError(f"frames are decoded to uint8 or float32, normalized ones to float32, not {dtype}")
    stack = 1 if places is None else ids.shape[1]
    n = len(ids if places is None else places)
    if out is None:
        out = torch.empty((n * stack, frame_bytes), dtype=dtype, device=heap.device)
    if out.nbytes != n * stack * frame_bytes * dtype.itemsize or not out.is_contiguous():
        raise ValueError(f"{n * stack} frames of {frame_bytes} values do not fill {out.dtype} {tuple(out.shape)}")
    if not use_triton(heap):
        chosen = ids if places is None else ids[places.long()].view(-1)
        frames = delta_decode_reference(heap, table, chosen, keys, frame_bytes, dtype=dtype, normalize=normalize)
        out.view(-1).view(dtype).copy_(frames.view(-1))
        return out
    launch = decode_launch(frame_bytes, stack, places is not None, dtype, normalize)
    decode_and_fill(launch, n, heap, table, ids, ids if places is None else places, keys, (out,))
    return out


def decode_and_fill(
    launch: Launch,
    n: int,
    heap: torch.Tensor,
    table: torch.Tensor,
    ids: torch.Tensor,
    places: torch.Tensor,
    keys: torch.Tensor,
    outs: Sequence[torch.Tensor],
    fields: Sequence[torch.Tensor] = (),
    data: torch.Tensor | None = None,
    orders: torch.Tensor | None = None,
    n_orders: int = 0,
) -> None:
    """Decode `n` observations, and copy pieces of `data` into `fields`, in one launch. Nothing is checked.

    Args:
        launch: of `decode_launch`.
        n: how many observations, of as many frames as the launch is for.
        heap: as of `delta_decode`.
        table: likewise.
        ids: likewise; it may lie in pinned memory, as `places` and `data` may.
        places: likewise; not read where the launch is for ids alone.
        keys: likewise.
        outs: one tensor to write to, or two: the second one gets the second half of the observations.
        fields: at most five contiguous tensors.
        data: bytes.
        orders: as those of `scatter`, int64 `[n_orders, 4]`, in a tensor of their own.
        n_orders: how many.
    """
    if n + n_orders:
        given = heap if data is None else data, table if orders is None else orders
        tensors = heap, table, ids, places, keys, *given, *filled_up(fields or (heap,)), outs[-1], outs[0]
        launch(n + n_orders, tensors, n_orders, n // len(outs))


@functools.cache
def decode_launch(frame_bytes: int, stack: int, placed: bool, dtype: torch.dtype, normalize: bool) -> Launch:
    """Return the launch for `decode_and_fill`.

    Args:
        frame_bytes: size of a frame.
        stack: frames of an observation, which one program decodes: reading numbers in pinned memory takes longest.
        placed: whether `places` say which rows of `ids`; else they are not read.
        dtype: as of `delta_decode`.
        normalize: likewise.
    """
    n_words = -(-frame_bytes // WORD)
    by_words = frame_bytes % WORD == 0 and dtype == torch.uint8
    return Launch(
        _delta_decode_kernel,
        (
            torch.uint8,
            torch.int64,
            torch.int32,
            torch.int32,
            torch.int32 if by_words else torch.uint8,
            torch.uint8,
            torch.int64,
            *(torch.uint8,) * N_TARGETS,
            *(torch.int32 if by_words else dtype,) * 2,
        ),
        calls=_CALLS,
        PLACED=placed,
        STACK=stack,
        LANES=max(2, 1 << (stack - 1).bit_length()),
        FRAME_BYTES=frame_bytes,
        N_WORDS=n_words,
        POSITION=position_bytes(frame_bytes),
        WORDS=by_words,
        FLOAT=dtype == torch.float32,
        NORMALIZE=normalize,
        BLOCK=_block(n_words if by_words else frame_bytes),
        PATCH=128,
        COPY=1024,
    )


def delta_decode_reference(
    heap: torch.Tensor,
    table: torch.Tensor,
    ids: torch.Tensor,
    keys: torch.Tensor,
    frame_bytes: int,
    *,
    dtype: torch.dtype = torch.uint8,
    normalize: bool = False,
) -> torch.Tensor:
    """Decode the frames `ids` [n] as the kernel does, in torch."""
    offsets, lengths, references = unpack_entries(table, ids)
    raw = lengths == frame_bytes
    size = position_bytes(frame_bytes)
    n = torch.where(raw, 0, lengths // (size + WORD))
    frames = keys[torch.where(raw, 0, references)]  # [n, words]
    row = torch.repeat_interleave(torch.arange(len(ids), device=heap.device), n)
    nth = torch.arange(len(row), device=heap.device) - (torch.cumsum(n, 0) - n)[row]
    position = _little_endian(heap, offsets[row] + nth * size, size)
    word = _little_endian(heap, offsets[row] + n[row] * size + nth * WORD, WORD)
    frames[row, position] = torch.where(word >= 1 << 31, word - (1 << 32), word).int()
    out = frames.view(torch.uint8)[:, :frame_bytes].contiguous()
    at = offsets[raw][:, None] + torch.arange(frame_bytes, device=heap.device)
    out[raw] = heap[at]
    return out if dtype == torch.uint8 else in_float(out, normalize)


def _little_endian(heap: torch.Tensor, at: torch.Tensor, size: int) -> torch.Tensor:
    values = torch.zeros_like(at)
    for b in range(size):
        values |= heap[at + b].long() << (8 * b)
    return values


def _delta_decode_kernel(  # type: ignore[no-untyped-def] # Triton reads annotations
    heap,
    table,
    ids,
    places,
    keys,
    data,
    orders,
    field_0,
    field_1,
    field_2,
    field_3,
    field_4,
    second_out,
    out,
    n_orders,
    n_first,
    PLACED: tl.constexpr,
    STACK: tl.constexpr,
    LANES: tl.constexpr,
    FRAME_BYTES: tl.constexpr,
    N_WORDS: tl.constexpr,
    POSITION: tl.constexpr,
    WORDS: tl.constexpr,
    FLOAT: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PATCH: tl.constexpr,
    COPY: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    if program < n_orders:
        carry_out(data, orders + 4 * program, field_0, field_1, field_2, field_3, field_4, COPY)
        return
    observation = program - n_orders
    chosen = observation
    if PLACED:
        chosen = tl.load(places + observation).to(tl.int64)
    lane = tl.arange(0, LANES)
    numbers = tl.load(ids + chosen * STACK + lane, mask=lane < STACK, other=0).to(tl.int64)  # all in one read
    if observation >= n_first:
        observation -= n_first
        out = second_out
    for nth in range(STACK):
        frame = observation * STACK + nth
        entry = table + 2 * tl.sum(tl.where(lane == nth, numbers, 0), 0)
        start = tl.load(entry)
        length = tl.load(entry + 1) & 0xFFFFFFFF
        reference = tl.load(entry + 1) >> 32
        if WORDS:
            row = out + frame * N_WORDS
            if length == FRAME_BYTES:
                for base in range(0, N_WORDS, BLOCK):
                    w = base + tl.arange(0, BLOCK)
                    inside = w < N_WORDS
                    at = heap + start + 4 * w
                    word = tl.load(at, mask=inside, other=0).to(tl.int32)
                    word |= tl.load(at + 1, mask=inside, other=0).to(tl.int32) << 8
                    word |= tl.load(at + 2, mask=inside, other=0).to(tl.int32) << 16
                    word |= tl.load(at + 3, mask=inside, other=0).to(tl.int32) << 24
                    tl.store(row + w, word, mask=inside)
            else:
                for base in range(0, N_WORDS, BLOCK):
                    w = base + tl.arange(0, BLOCK)
                    inside = w < N_WORDS
                    tl.store(row + w, tl.load(keys + reference * N_WORDS + w, mask=inside, other=0), mask=inside)
        else:
            row = out + frame * FRAME_BYTES
            source = keys + reference * (4 * N_WORDS)
            if length == FRAME_BYTES:
                source = heap + start
            for base in range(0, FRAME_BYTES, BLOCK):
                b = base + tl.arange(0, BLOCK)
                inside = b < FRAME_BYTES
                value = tl.load(source + b, mask=inside, other=0)
                if FLOAT:
                    value = value.to(tl.float32)
                    if NORMALIZE:
                        value = tl.math.div_rn(value, 255.0)
                tl.store(row + b, value, mask=inside)
        if length < FRAME_BYTES:
            tl.debug_barrier()  # the whole key is written before any word of it is patched
            n = length // (POSITION + 4)
            for first in range(0, n, PATCH):
                j = first + tl.arange(0, PATCH)
                changed = j < n
                entries = heap + start + POSITION * j
                place = tl.load(entries, mask=changed, other=0).to(tl.int64)
                place |= tl.load(entries + 1, mask=changed, other=0).to(tl.int64) << 8
                if POSITION == 4:
                    place |= tl.load(entries + 2, mask=changed, other=0).to(tl.int64) << 16
                    place |= tl.load(entries + 3, mask=changed, other=0).to(tl.int64) << 24
                changed &= place < N_WORDS
                values = heap + start + POSITION * n + 4 * j
                if WORDS:
                    patch = tl.load(values, mask=changed, other=0).to(tl.int32)
                    patch |= tl.load(values + 1, mask=changed, other=0).to(tl.int32) << 8
                    patch |= tl.load(values + 2, mask=changed, other=0).to(tl.int32) << 16
                    patch |= tl.load(values + 3, mask=changed, other=0).to(tl.int32) << 24
                    tl.store(row + place, patch, mask=changed)
                else:
                    for k in tl.static_range(4):
                        byte = tl.load(values + k, mask=changed, other=0)
                        if FLOAT:
                            byte = byte.to(tl.float32)
                            if NORMALIZE:
                                byte = tl.math.div_rn(byte, 255.0)
                        tl.store(row + 4 * place + k, byte, mask=changed & (4 * place + k < FRAME_BYTES))


def delta_encode(frames: torch.Tensor, keys: torch.Tensor, candidates: torch.Tensor) -> Payloads:
    """Return the payloads of `frames`, each against the candidate key that makes it smallest (the first of equals).

    Args:
        frames: uint8 `[n, frame_bytes]`.
        keys: int32 `[keys, words]`.
        candidates: int64, rows of `keys` to choose from; at least one.

    Raises:
        ValueError: tensors of the wrong kind.
    """
    check_frames(frames)
    n, frame_bytes = frames.shape
    n_words = -(-frame_bytes // WORD)
    if keys.dtype != torch.int32 or keys.ndim != 2 or keys.shape[1] != n_words or not keys.is_contiguous():
        raise ValueError(f"keys of these frames are int32 [n, {n_words}], not {keys.dtype} {tuple(keys.shape)}")
    if candidates.dtype != torch.int64 or candidates.ndim != 1 or not len(candidates):
        raise ValueError("candidates are int64 numbers of keys, at least one")
    if not use_triton(frames):
        return delta_encode_reference(frames, keys, candidates)
    words = _as_words(frames)
    data = torch.empty((n, frame_bytes), dtype=torch.uint8, device=frames.device)
    lengths = torch.empty(n, dtype=torch.int64, device=frames.device)
    references = torch.empty(n, dtype=torch.int64, device=frames.device)
    if n:
        compiled(_delta_encode_kernel)[(n,)](
            words,
            keys,
            candidates,
            len(candidates),
            data,
            lengths,
            references,
            FRAME_BYTES=frame_bytes,
            N_WORDS=n_words,
            POSITION=position_bytes(frame_bytes),
            BLOCK=_block(n_words),
            num_warps=4,
        )
    return Payloads(data, lengths, references)


def delta_encode_reference(frames: torch.Tensor, keys: torch.Tensor, candidates: torch.Tensor) -> Payloads:
    """Encode as the kernel does, in torch."""
    frame_bytes = frames.shape[1]
    size = position_bytes(frame_bytes)
    words = _as_words(frames)
    counts = torch.stack([(words != keys[key]).sum(dim=1) for key in candidates])  # [candidates, n]
    best = counts.argmin(dim=0)
    changed = counts.gather(0, best[None])[0]
    raw = changed * (size + WORD) >= frame_bytes
    references = torch.where(raw, 0, candidates[best])
    data = torch.empty_like(frames)
    data[raw] = frames[raw]
    row, word = torch.nonzero((words != keys[references]) & ~raw[:, None], as_tuple=True)
    changed = torch.where(raw, 0, changed)
    nth = torch.arange(len(row), device=frames.device) - (torch.cumsum(changed, 0) - changed)[row]
    for b in range(size):
        data[row, nth * size + b] = (word >> (8 * b) & 255).to(torch.uint8)
    for b in range(WORD):
        data[row, changed[row] * size + nth * WORD + b] = (words[row, word] >> (8 * b) & 255).to(torch.uint8)
    return Payloads(data, torch.where(raw, frame_bytes, changed * (size + WORD)), references)


def _delta_encode_kernel(  # type: ignore[no-untyped-def] # Triton reads annotations
    words,
    keys,
    candidates,
    n_candidates,
    data,
    lengths,
    references,
    FRAME_BYTES: tl.constexpr,
    N_WORDS: tl.constexpr,
    POSITION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    frame = tl.program_id(0).to(tl.int64)
    source = words + frame * N_WORDS
    out = data + frame * FRAME_BYTES
    changed = tl.full((), N_WORDS + 1, tl.int64)
    best = tl.full((), 0, tl.int64)
    for c in range(n_candidates):
        candidate = tl.load(candidates + c)
        different = tl.full((), 0, tl.int64)
        for base in range(0, N_WORDS, BLOCK):
            w = base + tl.arange(0, BLOCK)
            inside = w < N_WORDS
            word = tl.load(source + w, mask=inside, other=0)
            other = tl.load(keys + candidate * N_WORDS + w, mask=inside, other=0)
            different += tl.sum((word != other).to(tl.int64), 0)
        better = different < changed
        changed = tl.where(better, different, changed)
        best = tl.where(better, candidate, best)
    length = changed * (POSITION + 4)
    if length >= FRAME_BYTES:
        for base in range(0, N_WORDS, BLOCK):
            w = base + tl.arange(0, BLOCK)
            word = tl.load(source + w, mask=w < N_WORDS, other=0)
            for k in tl.static_range(4):
                b = 4 * w + k
                tl.store(out + b, (word >> (8 * k)).to(tl.uint8), mask=b < FRAME_BYTES)
        tl.store(lengths + frame, FRAME_BYTES)
        tl.store(references + frame, 0)
    else:
        done = tl.full((), 0, tl.int64)
        for base in range(0, N_WORDS, BLOCK):
            w = base + tl.arange(0, BLOCK)
            inside = w < N_WORDS
            word = tl.load(source + w, mask=inside, other=0)
            other = tl.load(keys + best * N_WORDS + w, mask=inside, other=0)
            differs = word != other
            nth = done + tl.cumsum(differs.to(tl.int64), 0) - 1
            for k in tl.static_range(POSITION):
                tl.store(out + nth * POSITION + k, (w >> (8 * k)).to(tl.uint8), mask=differs)
            for k in tl.static_range(4):
                tl.store(out + changed * POSITION + nth * 4 + k, (word >> (8 * k)).to(tl.uint8), mask=differs)
            done += tl.sum(differs.to(tl.int64), 0)
        tl.store(lengths + frame, length)
        tl.store(references + frame, best)


def _as_words(frames: torch.Tensor) -> torch.Tensor:
    """Return bytes `[n, frame_bytes]` as int32 words, the last one filled up with zeros."""
    missing = -frames.shape[1] % WORD
    padded = torch.nn.functional.pad(frames, (0, missing)) if missing else frames
    return padded.contiguous().view(torch.int32)


def _block(n: int) -> int:
    """Return how many values a program handles at once: a power of two."""
    return min(2048, max(16, 1 << (n - 1).bit_length()))
