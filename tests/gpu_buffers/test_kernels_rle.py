"""`rle` on the device: the kernel, its torch reference and the codec of the CPU agree, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_kernels_delta import as_heap, assert_same_payloads

from sb3_extra_buffers.codecs import get_codec
from sb3_extra_buffers.gpu_buffers.kernels import rle_decode, rle_encode
from sb3_extra_buffers.gpu_buffers.kernels.rle import rle_decode_reference, rle_encode_reference

RUNS = {1: 255, 2: 65_535, 4: 2**32 - 1}
SIZES = [(1, 1), (63, 1), (1000, 1), (2100, 1), (1000, 2), (1000, 8), (64, 4)]


def some_frames(size: int, item_bytes: int, device: torch.device) -> torch.Tensor:
    """Return frames of long runs, of short ones, of zeros, and noise."""
    generator = torch.Generator().manual_seed(size)
    frames = torch.zeros((5, size), dtype=torch.uint8)
    frames[1] = (torch.arange(size) // (37 * item_bytes)).to(torch.uint8)
    frames[2, size // 2 :] = 3
    frames[3] = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    frames[4] = torch.randint(0, 2, (size // item_bytes, 1), generator=generator).expand(-1, item_bytes).reshape(-1)
    return frames.to(device)


@pytest.mark.parametrize("runs_bytes", RUNS)
@pytest.mark.parametrize(("size", "item_bytes"), SIZES)
def test_encode_and_decode(size: int, item_bytes: int, runs_bytes: int, kernel_device: torch.device) -> None:
    frames = some_frames(size, item_bytes, kernel_device)
    sizes = {"item_bytes": item_bytes, "runs_bytes": runs_bytes}
    payloads = rle_encode(frames, **sizes, longest=RUNS[runs_bytes])
    assert_same_payloads(payloads, rle_encode_reference(frames, **sizes, longest=RUNS[runs_bytes]))
    on_cpu = get_codec("rle", item_bytes=item_bytes, runs_type=f"u{runs_bytes}").coder(size)
    encoded = on_cpu.encode(frames.cpu().numpy(), np.zeros(len(frames), np.int64))
    assert payloads.lengths.tolist() == encoded.lengths.tolist()
    heap, table = as_heap(payloads)
    ids = torch.tensor([4, 0, 3, 2, 2, 1], dtype=torch.int32, device=kernel_device)
    got = rle_decode(heap, table, ids, size, **sizes)
    assert torch.equal(got, rle_decode_reference(heap, table, ids, size, **sizes))
    assert torch.equal(got, frames[ids.long()])


def test_long_runs_are_cut(kernel_device: torch.device) -> None:
    frames = some_frames(1000, 1, kernel_device)
    for longest in (1, 3, 100):
        payloads = rle_encode(frames, item_bytes=1, runs_bytes=1, longest=longest)
        assert_same_payloads(payloads, rle_encode_reference(frames, item_bytes=1, runs_bytes=1, longest=longest))
        heap, table = as_heap(payloads)
        ids = torch.arange(5, dtype=torch.int32, device=kernel_device)
        assert torch.equal(rle_decode(heap, table, ids, 1000, item_bytes=1, runs_bytes=1), frames)


def test_an_empty_payload_is_a_frame_of_zeros(kernel_device: torch.device) -> None:
    heap = torch.full((8,), 0xEE, dtype=torch.uint8, device=kernel_device)
    table = torch.zeros((1, 2), dtype=torch.int64, device=kernel_device)
    ids = torch.zeros(2, dtype=torch.int32, device=kernel_device)
    for decode in (rle_decode, rle_decode_reference):
        assert not decode(heap, table, ids, 63, item_bytes=1, runs_bytes=2).any()


def test_tensors_of_the_wrong_kind() -> None:
    frames = torch.zeros((2, 63), dtype=torch.uint8)
    with pytest.raises(ValueError, match="items"):
        rle_encode(frames, item_bytes=2, runs_bytes=2, longest=9)
    with pytest.raises(ValueError, match="runs"):
        rle_encode(frames, item_bytes=1, runs_bytes=3, longest=9)
    with pytest.raises(ValueError, match="not torch"):
        rle_encode(frames.int(), item_bytes=1, runs_bytes=2, longest=9)
