"""Bytes on a device: regions of any type at any offset, and cells that are written again and again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_twins import DEVICES

from sb3_extra_buffers.compressed import StoreFullError
from sb3_extra_buffers.gpu_buffers.raw_buffer import RawBuffer, SharedRawHeap

DEVICE = pytest.mark.parametrize("device", DEVICES)


@DEVICE
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0, 1, 7, 8])
def test_values_of_any_type_at_any_offset(start: int, dtype: torch.dtype, device: str) -> None:
    buffer = RawBuffer(100, device)
    buffer.write_bytes((0, 100), torch.full((100,), 0xEE, dtype=torch.uint8))
    values = torch.arange(5).to(dtype).to(device)
    buffer.write_bytes((start, 5), values)
    assert torch.equal(buffer.read_bytes((start, 5), dtype), values)
    out = torch.zeros(8, dtype=dtype, device=device)
    buffer.read_into((start, 5), out)
    assert out.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    end = start + 5 * dtype.itemsize
    assert (buffer.bytes[:start] == 0xEE).all()
    assert (buffer.bytes[end:] == 0xEE).all()


@DEVICE
def test_regions_that_overlap_are_copied_whole(device: str) -> None:
    buffer = RawBuffer(10, device)
    buffer.write_bytes((0, 10), torch.arange(10, dtype=torch.uint8))
    buffer.copy_region(0, 2, 6)
    assert buffer.bytes.tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 8, 9]
    buffer.resize(4)
    assert buffer.bytes.tolist() == [0, 1, 0, 1]


def test_regions_outside() -> None:
    buffer = RawBuffer(10)
    for region in ((8, 3), (-1, 2), (0, 11)):
        with pytest.raises(ValueError, match="outside"):
            buffer.read_bytes(region, torch.uint8)
    with pytest.raises(ValueError, match="3 values"):
        buffer.write_bytes((0, 3), torch.zeros(2))


@DEVICE
@pytest.mark.parametrize("grows", [True, False])
def test_cells_keep_what_was_written_last(grows: bool, device: str) -> None:
    rng = np.random.default_rng(0)
    heap = SharedRawHeap(8, 300, device, grows=grows)
    wanted: dict[int, torch.Tensor] = {}
    refused = 0
    for _ in range(200):
        cells = torch.from_numpy(rng.permutation(8)[: rng.integers(1, 4)])
        lengths = torch.from_numpy(rng.integers(0, 60, len(cells)))
        payloads = torch.from_numpy(rng.integers(0, 256, int(lengths.sum())).astype(np.uint8)).to(device)
        try:
            heap.write(cells, payloads, lengths)
            wanted.update(zip(cells.tolist(), payloads.split(lengths.tolist()), strict=True))
        except StoreFullError:
            refused += 1
        for cell, payload in wanted.items():
            start, length = int(heap.start_idx[cell]), int(heap.lengths[cell])
            assert torch.equal(heap.raw.bytes[start : start + length], payload)
    assert (refused == 0) == grows
    heap.compact()
    assert heap.data_end == int(heap.lengths.sum()) <= heap.heap_bytes
    for cell, payload in wanted.items():
        start, length = int(heap.start_idx[cell]), int(heap.lengths[cell])
        assert torch.equal(heap.raw.bytes[start : start + length], payload)


def test_large_heaps_are_compacted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from sb3_extra_buffers.gpu_buffers import raw_buffer

    monkeypatch.setattr(raw_buffer, "_CHUNK", 64)
    test_cells_keep_what_was_written_last(True, "cpu")
