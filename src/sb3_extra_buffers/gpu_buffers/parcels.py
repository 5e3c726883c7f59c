"""Parcels: what a device does not have yet, as bytes that `scatter` brings to their places.

    orders   int64 [n, 4]   of each piece: its target, byte where it begins there, byte of the parcel, bytes
    pieces                  rows of ids, keys, entries of the table, payloads

A few frames are packed after every `add` of a training, so a kernel does it in one call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import jit
from sb3_extra_buffers.codecs.base import Bytes, Ints

HEAP, TABLE, KEYS, IDS = range(4)  # targets
ALIGNMENT = 16  # of all that is sent
_ORDER = 32  # bytes
_NOTHING = np.empty(0, np.uint8)


class Parcel(NamedTuple):
    """Bytes to send.

    Attributes:
        data: orders and pieces.
        n: how many orders.
        extent: the last payload's end in the heap; 0 if there is none.
    """

    data: Bytes
    n: int
    extent: int


def aligned(n: int) -> int:
    """Return the bytes that `n` bytes take."""
    return (n + ALIGNMENT - 1) & -ALIGNMENT


def pack(frames: Any, ids: Ints, keys: NDArray[np.uint32], sent: NDArray[np.uint32], rows: dict[int, Any]) -> Parcel:
    """Return what the device needs.

    Args:
        frames: the frame store.
        ids: frames of it; those that nobody refers to any more are left out.
        keys: its key frames, `[n, words]`; none where the codec has none.
        sent: those of them that the device has; they are brought up to date.
        rows: new rows of the tables of ids, all of one size, by place.
    """
    places = np.array([*rows], np.int64) * (4 * frames.stack)
    listed = np.concatenate([row.reshape(-1) for row in rows.values()]).view(np.uint8) if rows else _NOTHING
    n_orders = len(places) + 3 * len(ids)
    pieces = int(frames.lengths[ids].sum()) + 16 * len(ids) + keys.shape[1] * 4 * min(len(ids), len(keys))
    most = n_orders * _ORDER + listed.size + pieces + ALIGNMENT
    parcel, done = np.empty(most, np.uint8), np.zeros(3, np.int64)
    orders = parcel[: n_orders * _ORDER].view(np.int64).reshape(n_orders, 4)
    state = frames.counts, frames.offsets, frames.lengths, frames.references, frames.heap.data
    packer()(ids, *state, keys, sent, places, listed, parcel, orders, done)
    n, end, extent = done.tolist()
    return Parcel(parcel[:end], n, extent)


def packer() -> Any:
    """Return what packs: compiled if there is numba, which takes a second for the first time."""
    ints, data, small, words = "int64[::1]", "uint8[::1]", "uint32[::1]", "uint32[:,::1]"
    return jit.choose(
        pack_kernel,
        pack_reference,
        f"void({ints}, {small}, {ints}, {small}, {small}, {data}, {words}, {words}, {ints}, {data}, {data},"
        f" int64[:,::1], {ints})",
    )


def pack_kernel(
    ids: Ints,
    counts: NDArray[np.uint32],
    offsets: Ints,
    lengths: NDArray[np.uint32],
    references: NDArray[np.uint32],
    heap: Bytes,
    keys: NDArray[np.uint32],
    sent: NDArray[np.uint32],
    places: Ints,
    rows: Bytes,
    parcel: Bytes,
    orders: NDArray[np.int64],
    done: Ints,
) -> None:
    """Do as `pack_reference`."""
    n, at, extent = 0, orders.shape[0] * _ORDER, np.int64(0)
    if places.size:
        size = rows.size // places.size
        for i in range(places.size):
            orders[n, 0], orders[n, 1], orders[n, 2], orders[n, 3] = IDS, places[i], at, size
            target, source = parcel[at : at + size], rows[i * size : (i + 1) * size]
            for b in range(size):
                target[b] = source[b]
            n, at = n + 1, at + size
    n_words = keys.shape[1]
    compared = np.zeros(keys.shape[0], np.uint8)
    for i in range(ids.size):
        frame = ids[i]
        if counts[frame] == 0:
            continue
        start, length, reference = offsets[frame], np.int64(lengths[frame]), np.int64(references[frame])
        if reference < keys.shape[0] and compared[reference] == 0:
            compared[reference] = 1
            same = True
            for w in range(n_words):
                same &= keys[reference, w] == sent[reference, w]
            if not same:
                size = 4 * n_words
                orders[n, 0], orders[n, 1], orders[n, 2], orders[n, 3] = KEYS, reference * size, at, size
                target, source = parcel[at : at + size], keys[reference].view(np.uint8)
                for b in range(size):
                    target[b] = source[b]
                sent[reference] = keys[reference]
                n, at = n + 1, at + size
        orders[n, 0], orders[n, 1], orders[n, 2], orders[n, 3] = TABLE, 16 * frame, at, 16
        second = (reference << 32) | length
        for b in range(8):
            parcel[at + b] = (start >> (8 * b)) & 255
            parcel[at + 8 + b] = (second >> (8 * b)) & 255
        n, at = n + 1, at + 16
        orders[n, 0], orders[n, 1], orders[n, 2], orders[n, 3] = HEAP, start, at, length
        target, source = parcel[at : at + length], heap[start : start + length]
        for b in range(length):
            target[b] = source[b]
        n, at = n + 1, at + length
        extent = max(extent, start + length)
    done[0], done[1], done[2] = n, (at + ALIGNMENT - 1) & -ALIGNMENT, extent


def pack_reference(
    ids: Ints,
    counts: NDArray[np.uint32],
    offsets: Ints,
    lengths: NDArray[np.uint32],
    references: NDArray[np.uint32],
    heap: Bytes,
    keys: NDArray[np.uint32],
    sent: NDArray[np.uint32],
    places: Ints,
    rows: Bytes,
    parcel: Bytes,
    orders: NDArray[np.int64],
    done: Ints,
) -> None:
    """Fill `parcel`, which begins with `orders`; `done` gets the numbers of orders and bytes, and the extent."""
    size = rows.size // len(places) if len(places) else 0
    pieces = [(IDS, place, rows[i * size : (i + 1) * size]) for i, place in enumerate(places.tolist())]
    compared = set()
    for frame in ids[counts[ids] > 0].tolist():
        start, length, reference = int(offsets[frame]), int(lengths[frame]), int(references[frame])
        if reference < len(keys) and reference not in compared:
            compared.add(reference)
            if not np.array_equal(keys[reference], sent[reference]):
                sent[reference] = keys[reference]
                pieces.append((KEYS, 4 * keys.shape[1] * reference, sent[reference].view(np.uint8)))
        pieces.append((TABLE, 16 * frame, np.array([start, reference << 32 | length], np.int64).view(np.uint8)))
        pieces.append((HEAP, start, heap[start : start + length]))
        done[2] = max(done[2], start + length)
    at = len(orders) * _ORDER
    for n, (target, place, piece) in enumerate(pieces):
        orders[n] = target, place, at, piece.size
        parcel[at : at + piece.size] = piece
        at += piece.size
    done[:2] = len(pieces), aligned(at)
