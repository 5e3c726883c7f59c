"""`rle` on the device: the format of `codecs.rle`, many frames in one launch.

A payload of n runs is `runs: uint8, uint16 or uint32 [n]`, then `items: item[n]`, little-endian. A payload as long as
the frame is the frame itself, an empty one a frame of zeros.
"""

from __future__ import annotations

from typing import Any

import torch

from sb3_extra_buffers.gpu_buffers.kernels.launch import compiled, use_triton
from sb3_extra_buffers.gpu_buffers.kernels.payloads import Payloads, check_frames, check_table, unpack_entries

tl: Any = None  # triton.language, once a kernel is compiled


def rle_decode(
    heap: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, frame_bytes: int, *, item_bytes: int, runs_bytes: int
) -> torch.Tensor:
    """Return the frames `ids` as uint8 `[n, frame_bytes]`.

    Args:
        heap: payloads, uint8.
        table: `[frames, 2]`, see `pack_entries`.
        ids: int32 `[n]`, rows of the table.
        frame_bytes: size of a frame.
        item_bytes: size of what runs repeat.
        runs_bytes: size of a run's length.

    Raises:
        ValueError: tensors of the wrong kind.
    """
    check_table(heap, table, ids)
    _check_sizes(frame_bytes, item_bytes, runs_bytes)
    if not use_triton(heap):
        return rle_decode_reference(heap, table, ids, frame_bytes, item_bytes=item_bytes, runs_bytes=runs_bytes)
    out = torch.empty((len(ids), frame_bytes), dtype=torch.uint8, device=heap.device)
    most = max(1, frame_bytes // (item_bytes + runs_bytes))
    ends = torch.empty((len(ids), most), dtype=torch.int32, device=heap.device)
    if len(ids):
        compiled(_rle_decode_kernel)[(len(ids),)](
            heap,
            table,
            ids,
            ends,
            out,
            most,
            FRAME_BYTES=frame_bytes,
            ITEM=item_bytes,
            RUN=runs_bytes,
            SEARCH=most.bit_length(),
            BLOCK=1024,
            num_warps=4,
        )
    return out


def rle_decode_reference(
    heap: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, frame_bytes: int, *, item_bytes: int, runs_bytes: int
) -> torch.Tensor:
    """Decode as the kernel does, in torch."""
    offsets, lengths, _ = unpack_entries(table, ids)
    out = torch.zeros((len(ids), frame_bytes), dtype=torch.uint8, device=heap.device)
    raw = lengths == frame_bytes
    out[raw] = heap[offsets[raw][:, None] + torch.arange(frame_bytes, device=heap.device)]
    rows = torch.nonzero(~raw & (lengths > 0))[:, 0]
    n = lengths[rows] // (item_bytes + runs_bytes)
    row = torch.repeat_interleave(torch.arange(len(rows), device=heap.device), n)
    nth = torch.arange(len(row), device=heap.device) - (torch.cumsum(n, 0) - n)[row]
    start = offsets[rows][row]
    runs = torch.zeros_like(start)
    for b in range(runs_bytes):
        runs |= heap[start + nth * runs_bytes + b].long() << (8 * b)
    at = start + n[row] * runs_bytes + nth * item_bytes
    items = heap[at[:, None] + torch.arange(item_bytes, device=heap.device)]
    out[rows] = torch.repeat_interleave(items, runs, dim=0).reshape(len(rows), frame_bytes)
    return out


def _rle_decode_kernel(  # type: ignore[no-untyped-def] # Triton reads annotations
    heap,
    table,
    ids,
    ends,
    out,
    most,
    FRAME_BYTES: tl.constexpr,
    ITEM: tl.constexpr,
    RUN: tl.constexpr,
    SEARCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    frame = tl.program_id(0).to(tl.int64)
    entry = table + 2 * tl.load(ids + frame).to(tl.int64)
    start = tl.load(entry)
    length = tl.load(entry + 1) & 0xFFFFFFFF
    row = out + frame * FRAME_BYTES
    if (length == FRAME_BYTES) | (length == 0):
        for base in range(0, FRAME_BYTES, BLOCK):
            b = base + tl.arange(0, BLOCK)
            tl.store(row + b, tl.load(heap + start + b, mask=b < length, other=0), mask=b < FRAME_BYTES)
    else:
        n = length // (ITEM + RUN)
        mine = ends + frame * most
        done = tl.full((), 0, tl.int64)
        for base in range(0, n, BLOCK):  # where each run ends
            j = base + tl.arange(0, BLOCK)
            inside = j < n
            run = tl.load(heap + start + RUN * j, mask=inside, other=0).to(tl.int64)
            for k in tl.static_range(1, RUN):
                run |= tl.load(heap + start + RUN * j + k, mask=inside, other=0).to(tl.int64) << (8 * k)
            end = done + tl.cumsum(run, 0)
            tl.store(mine + j, end.to(tl.int32), mask=inside)
            done += tl.sum(run, 0)
        tl.debug_barrier()  # all ends are written before any is searched
        for base in range(0, FRAME_BYTES, BLOCK):
            b = base + tl.arange(0, BLOCK)
            item = b // ITEM
            low = tl.full((BLOCK,), 0, tl.int64)
            high = low + n - 1
            for _ in tl.static_range(SEARCH):  # the first run that ends behind the item
                middle = (low + high) // 2
                behind = tl.load(mine + middle) > item
                high = tl.where(behind, middle, high)
                low = tl.where(behind, low, tl.minimum(middle + 1, high))
            value = tl.load(heap + start + RUN * n + ITEM * low + b % ITEM, mask=b < FRAME_BYTES, other=0)
            tl.store(row + b, value, mask=b < FRAME_BYTES)


def rle_encode(frames: torch.Tensor, *, item_bytes: int, runs_bytes: int, longest: int) -> Payloads:
    """Return the payloads of `frames`.

    Args:
        frames: uint8 `[n, frame_bytes]`.
        item_bytes: size of what runs repeat.
        runs_bytes: size of a run's length.
        longest: longer runs are cut into pieces of so many items.

    Raises:
        ValueError: tensors of the wrong kind.
    """
    check_frames(frames)
    n, frame_bytes = frames.shape
    _check_sizes(frame_bytes, item_bytes, runs_bytes)
    if not use_triton(frames):
        return rle_encode_reference(frames, item_bytes=item_bytes, runs_bytes=runs_bytes, longest=longest)
    data = torch.empty((n, frame_bytes), dtype=torch.uint8, device=frames.device)
    lengths = torch.empty(n, dtype=torch.int64, device=frames.device)
    n_items = frame_bytes // item_bytes
    starts = torch.empty((n, n_items + 1), dtype=torch.int32, device=frames.device)
    if n:
        compiled(_rle_encode_kernel)[(n,)](
            frames,
            starts,
            data,
            lengths,
            min(longest, n_items),
            FRAME_BYTES=frame_bytes,
            N_ITEMS=n_items,
            ITEM=item_bytes,
            RUN=runs_bytes,
            BLOCK=1024,
            num_warps=4,
        )
    return Payloads(data, lengths, torch.zeros_like(lengths))


def rle_encode_reference(frames: torch.Tensor, *, item_bytes: int, runs_bytes: int, longest: int) -> Payloads:
    """Encode as the kernel does, in torch."""
    n, frame_bytes = frames.shape
    device = frames.device
    items = frames.view(n, frame_bytes // item_bytes, item_bytes)
    place = torch.arange(items.shape[1], device=device).expand(items.shape[:2])
    first = torch.ones(items.shape[:2], dtype=torch.bool, device=device)
    first[:, 1:] = (items[:, 1:] != items[:, :-1]).any(dim=2)
    start = torch.cummax(torch.where(first, place, 0), dim=1).values
    first = (place - start) % longest == 0
    counts = first.sum(dim=1)
    row, item = torch.nonzero(first, as_tuple=True)
    nth = torch.arange(len(row), device=device) - (torch.cumsum(counts, 0) - counts)[row]
    following = torch.cat([item[1:], item[:1]])
    last = nth == counts[row] - 1
    runs = torch.where(last, items.shape[1], following) - item
    lengths = counts * (runs_bytes + item_bytes)
    raw = lengths >= frame_bytes
    data = torch.empty_like(frames)
    data[raw] = frames[raw]
    kept = ~raw[row]
    row, item, nth, runs = row[kept], item[kept], nth[kept], runs[kept]
    for b in range(runs_bytes):
        data[row, nth * runs_bytes + b] = (runs >> (8 * b) & 255).to(torch.uint8)
    for b in range(item_bytes):
        data[row, counts[row] * runs_bytes + nth * item_bytes + b] = items[row, item, b]
    return Payloads(data, torch.where(raw, frame_bytes, lengths), torch.zeros_like(lengths))


def _rle_encode_kernel(  # type: ignore[no-untyped-def] # Triton reads annotations
    frames,
    starts,
    data,
    lengths,
    longest,
    FRAME_BYTES: tl.constexpr,
    N_ITEMS: tl.constexpr,
    ITEM: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    frame = tl.program_id(0).to(tl.int64)
    source = frames + frame * FRAME_BYTES
    out = data + frame * FRAME_BYTES
    mine = starts + frame * (N_ITEMS + 1)
    n = tl.full((), 0, tl.int64)
    for base in range(0, N_ITEMS, BLOCK):  # where items differ from the one before
        i = base + tl.arange(0, BLOCK)
        inside = i < N_ITEMS
        differs = inside & (i == 0)
        for k in tl.static_range(ITEM):
            byte = tl.load(source + ITEM * i + k, mask=inside, other=0)
            before = tl.load(source + ITEM * (i - 1) + k, mask=inside & (i > 0), other=0)
            differs |= inside & (byte != before)
        nth = n + tl.cumsum(differs.to(tl.int64), 0) - 1
        tl.store(mine + nth, i, mask=differs)
        n += tl.sum(differs.to(tl.int64), 0)
    tl.store(mine + n, N_ITEMS)
    tl.debug_barrier()  # all starts are written before runs are measured
    pieces = tl.full((), 0, tl.int64)
    for first in range(0, n, BLOCK):
        j = first + tl.arange(0, BLOCK)
        run = tl.load(mine + j + 1, mask=j < n, other=0) - tl.load(mine + j, mask=j < n, other=0)
        pieces += tl.sum(((run + longest - 1) // longest).to(tl.int64), 0)
    length = pieces * (RUN + ITEM)
    if length >= FRAME_BYTES:
        for block in range(0, FRAME_BYTES, BLOCK):
            b = block + tl.arange(0, BLOCK)
            tl.store(out + b, tl.load(source + b, mask=b < FRAME_BYTES, other=0), mask=b < FRAME_BYTES)
        tl.store(lengths + frame, FRAME_BYTES)
    else:
        done = tl.full((), 0, tl.int64)
        for first in range(0, n, BLOCK):
            j = first + tl.arange(0, BLOCK)
            start = tl.load(mine + j, mask=j < n, other=0)
            run = tl.load(mine + j + 1, mask=j < n, other=0) - start
            parts = ((run + longest - 1) // longest).to(tl.int64)
            target = done + tl.cumsum(parts, 0) - parts
            for part in range(tl.max(parts, 0)):
                cut = part < parts
                size = tl.minimum(run - part * longest, longest)
                for k in tl.static_range(RUN):
                    tl.store(out + RUN * (target + part) + k, (size >> (8 * k)).to(tl.uint8), mask=cut)
                for k in tl.static_range(ITEM):
                    item = tl.load(source + ITEM * start.to(tl.int64) + k, mask=cut, other=0)
                    tl.store(out + RUN * pieces + ITEM * (target + part) + k, item, mask=cut)
            done += tl.sum(parts, 0)
        tl.store(lengths + frame, length)


def _check_sizes(frame_bytes: int, item_bytes: int, runs_bytes: int) -> None:
    if runs_bytes not in (1, 2, 4, 8) or item_bytes not in (1, 2, 4, 8) or frame_bytes % item_bytes:
        raise ValueError(
            f"runs have 1, 2, 4 or 8 bytes, items 1, 2, 4 or 8 that fill a frame; "
            f"got runs of {runs_bytes}, items of {item_bytes}, frames of {frame_bytes}"
        )
