"""`delta` on the device: the kernel, its torch reference and the codec of the CPU agree, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sb3_extra_buffers.codecs import get_codec
from sb3_extra_buffers.gpu_buffers import transfer
from sb3_extra_buffers.gpu_buffers.kernels import Payloads, delta_decode, delta_encode, pack_entries
from sb3_extra_buffers.gpu_buffers.kernels.delta import (
    decode_and_fill,
    decode_launch,
    delta_decode_reference,
    delta_encode_reference,
)

SIZES = [1, 63, 1000, 8200]  # one block of the kernels holds 8,192 bytes in words
FLOATS: list[dict[str, Any]] = [{}, {"dtype": torch.float32}, {"dtype": torch.float32, "normalize": True}]


def some_frames(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys, and frames that equal one, nearly equal one, or are noise."""
    generator = torch.Generator().manual_seed(size)
    n_words = -(-size // 4)
    known = torch.randint(0, 256, (3, 4 * n_words), dtype=torch.uint8, generator=generator)
    known[0] = 0
    known[:, size:] = 0
    frames = known[[0, 1, 2, 1, 2, 0], :size].clone()
    frames[3, ::97] = 7
    frames[4, -1] += 1
    frames[5] = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return known.view(torch.int32).to(device), frames.to(device)


def as_heap(payloads: Payloads, margin: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return payloads one after another between poisoned bytes, at odd offsets too, and their table."""
    lengths = payloads.lengths.cpu()
    ends = torch.cumsum(lengths + margin, 0)
    offsets = ends - lengths
    heap = torch.full((int(ends[-1]) + margin,), 0xEE, dtype=torch.uint8)
    for data, start, length in zip(payloads.data.cpu(), offsets.tolist(), lengths.tolist(), strict=True):
        heap[start : start + length] = data[:length]
    device = payloads.data.device
    return heap.to(device), pack_entries(offsets, lengths, payloads.references.cpu()).to(device)


def assert_same_payloads(got: Payloads, wanted: Payloads) -> None:
    assert torch.equal(got.lengths, wanted.lengths)
    assert torch.equal(got.references, wanted.references)
    for one, other, length in zip(got.data, wanted.data, got.lengths.tolist(), strict=True):
        assert torch.equal(one[:length], other[:length])


@pytest.mark.parametrize("size", SIZES)
def test_encode(size: int, kernel_device: torch.device) -> None:
    keys, frames = some_frames(size, kernel_device)
    for candidates in ([0], [2, 1, 0], [1]):
        chosen = torch.tensor(candidates, device=kernel_device)
        assert_same_payloads(delta_encode(frames, keys, chosen), delta_encode_reference(frames, keys, chosen))


@pytest.mark.parametrize("options", FLOATS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_decode(size: int, options: dict[str, Any], kernel_device: torch.device) -> None:
    keys, frames = some_frames(size, kernel_device)
    payloads = delta_encode_reference(frames, keys, torch.arange(3, device=kernel_device))
    heap, table = as_heap(payloads)
    ids = torch.tensor([5, 0, 3, 3, 1, 4, 2], dtype=torch.int32, device=kernel_device)
    got = delta_decode(heap, table, ids, keys, size, **options)
    assert torch.equal(got, delta_decode_reference(heap, table, ids, keys, size, **options))
    wanted = frames[ids.long()].cpu().numpy()
    if options:
        wanted = wanted.astype(np.float32) / np.float32(255 if "normalize" in options else 1)
    assert torch.equal(got.cpu(), torch.from_numpy(wanted))


@pytest.mark.parametrize("stack", [1, 2, 3])
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("n_fields", [0, 1, 2, 5])
@pytest.mark.parametrize("pinned", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_fields_are_filled_in_the_same_launch(
    n_fields: int, placed: bool, stack: int, pinned: bool, kernel_device: torch.device
) -> None:
    """Numbers and fields lie on the device, or in pinned memory of the host."""
    keys, frames = some_frames(63, kernel_device)
    heap, table = as_heap(delta_encode_reference(frames, keys, torch.arange(3, device=kernel_device)))
    ids = torch.tensor([[5, 0, 1], [3, 3, 0], [1, 4, 2]], dtype=torch.int32)[:, :stack].contiguous()
    for n in (0, 1, 40, 41):  # the second launch goes the short way, with another number of orders
        places = torch.arange(2 * n, dtype=torch.int32) % 3
        chosen = ids[places.long()]
        arrays = [torch.arange(n * (2 + i), dtype=torch.float64).view(n, 2 + i) - i for i in range(n_fields)]
        numbers = (places if placed else chosen).numpy()
        enclosed = transfer.enclose([numbers], [array.numpy() for array in arrays], kernel_device)
        data = enclosed.memory.cpu()
        memory = data.pin_memory() if pinned else data.to(kernel_device)
        outs = [torch.empty((n * stack, 63), dtype=torch.uint8, device=kernel_device) for _ in range(2)]
        decode_and_fill(
            decode_launch(63, stack, placed, torch.uint8, False),
            *(2 * n, heap, table, ids.to(kernel_device) if placed else memory, memory, keys, outs),
            enclosed.fields,
            memory,
            *enclosed[2:],
        )
        wanted = delta_decode_reference(heap, table, chosen.view(-1).to(kernel_device), keys, 63)
        assert torch.equal(torch.cat(outs), wanted)
        for field, array in zip(enclosed.fields, arrays, strict=True):
            assert torch.equal(field.cpu(), array)


def test_every_byte_is_normalized_as_numpy_does_it(kernel_device: torch.device) -> None:
    frames = torch.arange(256, dtype=torch.uint8, device=kernel_device).reshape(2, 128)
    keys = torch.zeros((1, 32), dtype=torch.int32, device=kernel_device)
    heap, table = as_heap(delta_encode(frames, keys, torch.zeros(1, dtype=torch.int64, device=kernel_device)))
    ids = torch.arange(2, dtype=torch.int32, device=kernel_device)
    for decode in (delta_decode, delta_decode_reference):
        got = decode(heap, table, ids, keys, 128, dtype=torch.float32, normalize=True)
        wanted = np.arange(256, dtype=np.float32).reshape(2, 128) / np.float32(255)
        assert got.cpu().numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [63, 1000])
def test_the_device_reads_what_the_cpu_wrote(size: int, kernel_device: torch.device) -> None:
    rng = np.random.default_rng(0)
    frames = np.tile(rng.integers(0, 256, size).astype(np.uint8), (60, 1))
    frames[np.arange(60), rng.integers(0, size, 60)] += 1
    coder = get_codec("delta").coder(size)
    encoded = coder.encode(frames, np.zeros(60, np.int64))
    assert encoded.references.any()
    offsets = np.cumsum(encoded.lengths) - encoded.lengths
    tensors = [torch.from_numpy(array) for array in (offsets, encoded.lengths, encoded.references)]
    keys = torch.from_numpy(coder.keys.view(np.int32).copy()).to(kernel_device)  # type: ignore[attr-defined]
    got = delta_decode(
        torch.from_numpy(encoded.data.copy()).to(kernel_device),
        pack_entries(*tensors).to(kernel_device),
        torch.arange(60, dtype=torch.int32, device=kernel_device),
        keys,
        size,
    )
    assert torch.equal(got.cpu(), torch.from_numpy(frames))


def test_large_frames_have_long_positions(kernel_device: torch.device) -> None:
    size = 4 * 70_000
    frames = torch.zeros((1, size), dtype=torch.uint8)
    frames[0, [5, size // 2, size - 1]] = 9
    keys = torch.zeros((1, size // 4), dtype=torch.int32, device=kernel_device)
    payloads = delta_encode(frames.to(kernel_device), keys, torch.zeros(1, dtype=torch.int64, device=kernel_device))
    assert payloads.lengths.tolist() == [3 * 8]
    heap, table = as_heap(payloads)
    ids = torch.zeros(1, dtype=torch.int32, device=kernel_device)
    assert torch.equal(delta_decode(heap, table, ids, keys, size).cpu(), frames)


def test_nothing_to_do(kernel_device: torch.device) -> None:
    keys, frames = some_frames(63, kernel_device)
    chosen = torch.arange(3, device=kernel_device)
    assert delta_encode(frames[:0], keys, chosen).data.shape == (0, 63)
    heap, table = as_heap(delta_encode(frames, keys, chosen))
    ids = torch.zeros(0, dtype=torch.int32, device=kernel_device)
    assert delta_decode(heap, table, ids, keys, 63).shape == (0, 63)


def test_tensors_of_the_wrong_kind() -> None:
    keys, frames = some_frames(63, torch.device("cpu"))
    chosen = torch.arange(3)
    heap, table = as_heap(delta_encode(frames, keys, chosen))
    ids = torch.arange(3, dtype=torch.int32)
    for wrong in (
        (heap.float(), table, ids, keys),
        (heap, table.int(), ids, keys),
        (heap, table, ids.long(), keys),
        (heap, table, ids, keys[:, 1:]),
    ):
        with pytest.raises(ValueError, match="not torch"):
            delta_decode(*wrong, 63)
    with pytest.raises(ValueError, match="float64"):
        delta_decode(heap, table, ids, keys, 63, dtype=torch.float64)
    with pytest.raises(ValueError, match="not torch"):
        delta_encode(frames.float(), keys, chosen)
    with pytest.raises(ValueError, match="candidates"):
        delta_encode(frames, keys, chosen[:0])
