"""What all kernels read and write: payloads in one heap, described by a table."""

from __future__ import annotations

from typing import NamedTuple

import torch

WORD = 4
"""Bytes of a word of a frame."""


class Payloads(NamedTuple):
    """Encoded frames. The payload of frame i is `data[i, : lengths[i]]`; what lies behind it is undefined."""

    data: torch.Tensor  # uint8 [n, frame_bytes]
    lengths: torch.Tensor  # int64 [n], frame_bytes where the frame is stored as it is
    references: torch.Tensor  # int64 [n], the key it was encoded against


def pack_entries(offsets: torch.Tensor, lengths: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """Return the table `[n, 2]` of payloads: where each one starts; its length, and above 32 bits its reference."""
    return torch.stack([offsets.long(), lengths.long() | references.long() << 32], dim=1)


def unpack_entries(table: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return offsets, lengths and references of the payloads `ids`."""
    entries = table[ids.long()]
    return entries[:, 0], entries[:, 1] & 0xFFFFFFFF, entries[:, 1] >> 32


def check_table(heap: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, places: torch.Tensor | None = None) -> None:
    """Raise `ValueError` unless these are a heap, a table and ids as the kernels read them."""
    if heap.dtype != torch.uint8 or heap.ndim != 1 or not heap.is_contiguous():
        raise ValueError(f"a heap is a contiguous uint8 tensor of one axis, not {heap.dtype} {tuple(heap.shape)}")
    if table.dtype != torch.int64 or table.ndim != 2 or table.shape[1] != 2 or not table.is_contiguous():
        raise ValueError(f"a table is a contiguous int64 tensor [n, 2], not {table.dtype} {tuple(table.shape)}")
    if ids.dtype != torch.int32 or ids.ndim != (1 if places is None else 2) or not ids.is_contiguous():
        raise ValueError(f"ids are contiguous int32 [n], or [n, stack] with places, not {ids.dtype} {tuple(ids.shape)}")
    if places is not None and (places.dtype != torch.int32 or places.ndim != 1 or not places.is_contiguous()):
        raise ValueError(f"places are a contiguous int32 tensor of one axis, not {places.dtype} {tuple(places.shape)}")
    if not heap.device == table.device == ids.device:
        raise ValueError(f"heap, table and ids are on {heap.device}, {table.device} and {ids.device}: use one device")


def check_frames(frames: torch.Tensor) -> None:
    """Raise `ValueError` unless `frames` are bytes `[n, frame_bytes]`."""
    if frames.dtype != torch.uint8 or frames.ndim != 2 or not frames.is_contiguous():
        raise ValueError(f"frames are contiguous uint8 [n, bytes], not {frames.dtype} {tuple(frames.shape)}")


def in_float(frames: torch.Tensor, normalize: bool) -> torch.Tensor:
    """Return `frames` in float32, divided by 255 if asked: a real division, as NumPy does it.

    Torch on CUDA multiplies by 1/255 where the divisor is a Python number, which rounds differently.
    """
    values = frames.to(torch.float32)
    return values / torch.full((), 255.0, device=frames.device) if normalize else values
