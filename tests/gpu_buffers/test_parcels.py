"""Parcels hold what a device needs, and their orders bring it to its places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.gpu_buffers.kernels.scatter import scatter_reference
from sb3_extra_buffers.gpu_buffers.parcels import ALIGNMENT, aligned, pack, pack_kernel, pack_reference

FRAME_BYTES, WORDS, N, N_KEYS = 50, 13, 12, 4


def some_frames(random: np.random.Generator) -> Any:
    """Return what `pack` reads of a frame store: payloads of 0 to 80 bytes, some of frames that are gone."""
    lengths = random.integers(0, 80, N).astype(np.uint32)
    offsets = random.permutation(N) * 100
    return SimpleNamespace(
        counts=random.integers(0, 3, N).astype(np.uint32),
        offsets=offsets,
        lengths=lengths,
        references=random.integers(0, N_KEYS, N).astype(np.uint32),
        heap=SimpleNamespace(data=random.integers(0, 256, 100 * N).astype(np.uint8)),
        frame_bytes=FRAME_BYTES,
        stack=2,
    )


@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 3))
def test_pieces_come_to_their_places(seed: int, keyed: bool, n_rows: int) -> None:
    random = np.random.default_rng(seed)
    frames = some_frames(random)
    ids = random.permutation(N)[: random.integers(0, N + 1)]
    keys = random.integers(0, 2**32, (N_KEYS if keyed else 0, WORDS), np.uint32)
    sent = np.where(random.random((len(keys), 1)) < 0.5, keys, 7).astype(np.uint32)
    stale = sent.copy()
    places = random.permutation(5)[:n_rows] * 3  # of rows of three observations
    rows = {int(place): random.integers(0, 99, (3, 2)).astype(np.uint32) for place in places}
    parcel = pack(frames, ids, keys, sent, rows)
    assert parcel.data.nbytes % ALIGNMENT == 0
    targets = [
        torch.zeros(100 * N, dtype=torch.uint8),
        torch.full((N, 2), -1, dtype=torch.int64),
        torch.from_numpy(stale.view(np.int32)),
        torch.full((15, 2), -1, dtype=torch.int32),
    ]
    if parcel.n:
        scatter_reference(torch.from_numpy(parcel.data), parcel.n, targets)
    heap, table, device_keys, device_ids = (target.numpy() for target in targets)
    alive = [i for i in ids.tolist() if frames.counts[i]]
    for i in alive:
        start, length = int(frames.offsets[i]), int(frames.lengths[i])
        assert table[i].tolist() == [start, int(frames.references[i]) << 32 | length]
        np.testing.assert_array_equal(heap[start : start + length], frames.heap.data[start : start + length])
        if keyed:
            np.testing.assert_array_equal(device_keys[frames.references[i]].view(np.uint32), keys[frames.references[i]])
    assert (table[[i for i in range(N) if i not in alive]] == -1).all()
    np.testing.assert_array_equal(sent, device_keys.view(np.uint32))
    for place, row in rows.items():
        np.testing.assert_array_equal(device_ids[place : place + 3], row.view(np.int32))
    assert parcel.extent == max((int(frames.offsets[i] + frames.lengths[i]) for i in alive), default=0)


@given(st.integers(0, 2**32))
def test_the_kernel_does_as_its_reference(seed: int) -> None:
    results = []
    for pack_one in (pack_kernel, pack_reference):
        random = np.random.default_rng(seed)
        frames, ids = some_frames(random), random.permutation(N)
        keys = random.integers(0, 2**32, (N_KEYS, WORDS), np.uint32)
        sent = np.zeros_like(keys)
        places, rows = np.array([8, 64]), random.integers(0, 256, 48).astype(np.uint8)
        parcel, done = np.zeros(9000, np.uint8), np.zeros(3, np.int64)
        orders = parcel[: 50 * 32].view(np.int64).reshape(50, 4)
        state = frames.counts, frames.offsets, frames.lengths, frames.references, frames.heap.data
        pack_one(ids, *state, keys, sent, places, rows, parcel, orders, done)
        results.append((parcel.tobytes(), sent.tobytes(), done.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize(("n", "wanted"), [(0, 0), (1, 16), (16, 16), (17, 32)])
def test_aligned(n: int, wanted: int) -> None:
    assert aligned(n) == wanted
