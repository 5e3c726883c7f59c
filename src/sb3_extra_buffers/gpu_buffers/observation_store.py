"""Stores of whole observations in cells `[rows, envs]`, written and read as tensors; they compare nothing.

The buffers keep each different frame once (see `mirror`); these stores are for observations that are tensors from the
start, and for those who build a buffer of their own.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import get_codec
from sb3_extra_buffers.gpu_buffers.compression_methods import check_method
from sb3_extra_buffers.gpu_buffers.kernels import (
    Payloads,
    delta_decode,
    delta_encode,
    pack_entries,
    rle_decode,
    rle_encode,
)
from sb3_extra_buffers.gpu_buffers.kernels.delta import position_bytes
from sb3_extra_buffers.gpu_buffers.metadata import SlotMetadata
from sb3_extra_buffers.gpu_buffers.raw_buffer import SharedRawHeap
from sb3_extra_buffers.gpu_buffers.utils import estimate_total_heap_bytes, find_smallest_dtype

__all__ = ["DenseObservationStore", "ObservationCells", "RawObservationStore", "create_observation_store"]

Index = int | NDArray[Any] | torch.Tensor

_KEYS = 8  # recent keys that an observation may be encoded against
_RENEWED = 32  # writes between two new keys, at least


class ObservationCells(ABC):
    """Observations in cells on a device.

    Args:
        shape: leading axes, such as `(rows, envs)`.
        obs_shape: shape of one observation.
        dtype: dtype of the observations.
        device: where they are kept, and where reading gives them.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        obs_shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        device: torch.device | str = "cpu",
    ) -> None:
        self.obs_shape = tuple(obs_shape)
        self.dtype = dtype
        self.device = torch.device(device)
        self.cells = torch.arange(prod(shape)).reshape(shape)  # which cell each place is, on the host
        self.obs_bytes = prod(self.obs_shape) * dtype.itemsize

    def write(self, index: Index | tuple[Index, ...], obs: torch.Tensor | NDArray[Any]) -> None:
        """Keep `obs` at a place, such as a row: `[envs, *obs_shape]`."""
        cells = self._chosen(index)
        values = torch.as_tensor(obs).to(self.device, non_blocking=True)
        if values.dtype != self.dtype or values.numel() != cells.numel() * prod(self.obs_shape):
            wanted = (*cells.shape, *self.obs_shape)
            raise ValueError(f"observations here are {self.dtype} {wanted}, not {values.dtype} {tuple(values.shape)}")
        self._write(cells.reshape(-1), values.reshape(cells.numel(), -1).contiguous().view(torch.uint8))

    def read(self, *index: Index) -> torch.Tensor:
        """Return the observations at places, such as `read(rows, envs)`, in a new tensor."""
        cells = self._chosen(index)
        values = self._read(cells.reshape(-1)).view(self.dtype)
        return values.reshape(*cells.shape, *self.obs_shape)

    def flatten(self) -> ObservationCells:
        """Return the same cells behind one axis, env by env, as SB3's `swap_and_flatten` orders them."""
        flat = copy.copy(self)
        flat.cells = self.cells.swapaxes(0, 1).reshape(-1)
        return flat

    def _chosen(self, index: Any) -> torch.Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        return self.cells[tuple(torch.as_tensor(part).cpu().long() for part in parts)]

    @abstractmethod
    def _write(self, cells: torch.Tensor, obs: torch.Tensor) -> None:
        """Keep bytes `[n, obs_bytes]`."""

    @abstractmethod
    def _read(self, cells: torch.Tensor) -> torch.Tensor:
        """Return bytes `[n, obs_bytes]`."""


class DenseObservationStore(ObservationCells):
    """Observations as they are, in one tensor."""

    def __init__(
        self,
        shape: tuple[int, ...],
        obs_shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(shape, obs_shape, dtype, device)
        self.data = torch.zeros((self.cells.numel(), self.obs_bytes), dtype=torch.uint8, device=self.device)

    def _write(self, cells: torch.Tensor, obs: torch.Tensor) -> None:
        self.data[cells.to(self.device, non_blocking=True)] = obs

    def _read(self, cells: torch.Tensor) -> torch.Tensor:
        return self.data[cells.to(self.device, non_blocking=True)]


class RawObservationStore(ObservationCells):
    """Compressed observations in a `SharedRawHeap`, encoded and decoded on the device, `zstd` by the CPU.

    Writing waits for the device once, to learn how long the payloads are.

    Args:
        shape: leading axes, such as `(rows, envs)`.
        obs_shape: shape of one observation.
        dtype: dtype of the observations.
        device: where they are kept.
        compression_method: `"delta"`, `"rle"`, or `"zstd"` with a level.
        heap_bytes: limit of the heap; beyond it `write` raises and changes nothing. None: planned, and it grows.
        runs_type: torch dtype of run lengths, for `rle`. None: the smallest that holds a whole observation.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        obs_shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        device: torch.device | str = "cpu",
        *,
        compression_method: str = "delta",
        heap_bytes: int | None = None,
        runs_type: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, obs_shape, dtype, device)
        self.method = check_method(compression_method)
        if self.method == "none":
            raise ValueError("'none' is what DenseObservationStore is for: use create_observation_store")
        n_cells = self.cells.numel()
        planned = estimate_total_heap_bytes(n_cells, self.obs_shape, dtype, compression_method)
        self.heap = SharedRawHeap(
            n_cells, planned if heap_bytes is None else heap_bytes, self.device, grows=heap_bytes is None
        )
        self.runs_type = runs_type or find_smallest_dtype(prod(self.obs_shape))
        self.references = torch.zeros(n_cells, dtype=torch.int64)
        self.keys = torch.zeros((1, -(-self.obs_bytes // 4)), dtype=torch.int32, device=self.device)
        self.candidates = [0]
        self.writes = 0
        if self.method == "zstd":
            self.coder = get_codec(compression_method, {"dictionary_bytes": 0}).coder(self.obs_bytes)

    def slot(self, *index: Index) -> SlotMetadata:
        """Return where the payload of one cell lies."""
        cell = int(self._chosen(index))
        start, length = int(self.heap.start_idx[cell]), int(self.heap.lengths[cell])
        first, second = {
            "delta": (position_bytes(self.obs_bytes), 4),
            "rle": (self.runs_type.itemsize, self.dtype.itemsize),
        }.get(self.method, (0, 0))
        n = 0 if length == self.obs_bytes or self.method == "zstd" else length // (first + second)
        return SlotMetadata(start, 0, n * first, n, length)

    def _write(self, cells: torch.Tensor, obs: torch.Tensor) -> None:
        encoded = self._encoded(obs)
        known = torch.stack([encoded.lengths, encoded.references]).cpu()  # the heap must know where payloads end
        kept = torch.arange(self.obs_bytes, device=self.device) < encoded.lengths[:, None]
        self.heap.write(cells, encoded.data[kept], known[0])
        self.references[cells] = known[1]
        self.writes += 1
        if self.method == "delta" and int(known[0].max()) > self.obs_bytes // 4 and self.writes >= _RENEWED:
            self._make_key(obs[int(known[0].argmax())])

    def _encoded(self, obs: torch.Tensor) -> Payloads:
        if self.method == "delta":
            if self.writes == 0:
                self._make_key(obs[0])
            return delta_encode(obs, self.keys, torch.tensor(self.candidates).to(self.device))
        if self.method == "rle":
            return rle_encode(
                obs,
                item_bytes=self.dtype.itemsize,
                runs_bytes=self.runs_type.itemsize,
                longest=torch.iinfo(self.runs_type).max,
            )
        encoded = self.coder.encode(obs.cpu().numpy(), np.zeros(len(obs), np.int64))
        data = np.zeros((len(obs), self.obs_bytes), np.uint8)
        data[np.arange(self.obs_bytes) < encoded.lengths[:, None]] = encoded.data
        lengths = torch.from_numpy(encoded.lengths).to(self.device)
        return Payloads(torch.from_numpy(data).to(self.device), lengths, torch.zeros_like(lengths))

    def _make_key(self, obs: torch.Tensor) -> None:
        """Let following observations be encoded against this one too; keys that no cell refers to go."""
        self.writes = 0 if len(self.keys) > 1 else self.writes
        used = torch.bincount(self.references[self.heap.lengths > 0], minlength=len(self.keys)) > 0
        used[[0, *self.candidates]] = True
        free = torch.nonzero(~used)[:, 0].tolist() or [len(self.keys)]
        if free[0] == len(self.keys):
            self.keys = torch.cat([self.keys, torch.zeros_like(self.keys[:1])])
        self.keys.view(torch.uint8)[free[0], : self.obs_bytes] = obs
        self.candidates = [*self.candidates[-_KEYS + 1 :], free[0]]

    def _read(self, cells: torch.Tensor) -> torch.Tensor:
        memory = self.heap.raw.bytes
        if self.method == "zstd":
            out = np.zeros((len(cells), self.obs_bytes), np.uint8)
            starts, lengths = self.heap.start_idx[cells].numpy(), self.heap.lengths[cells].numpy()
            self.coder.decode(memory.cpu().numpy(), starts, lengths, np.zeros_like(lengths), out)
            return torch.from_numpy(out).to(self.device)
        entries = pack_entries(self.heap.start_idx[cells], self.heap.lengths[cells], self.references[cells])
        table = entries.to(self.device, non_blocking=True)
        ids = torch.arange(len(cells), dtype=torch.int32, device=self.device)
        if self.method == "delta":
            return delta_decode(memory, table, ids, self.keys, self.obs_bytes)
        return rle_decode(
            memory,
            table,
            ids,
            self.obs_bytes,
            item_bytes=self.dtype.itemsize,
            runs_bytes=self.runs_type.itemsize,
        )


def create_observation_store(
    shape: tuple[int, ...],
    obs_shape: tuple[int, ...],
    dtype: torch.dtype = torch.uint8,
    device: torch.device | str = "cpu",
    *,
    compression_method: str = "delta",
    heap_bytes: int | None = None,
    runs_type: torch.dtype | None = None,
) -> ObservationCells:
    """Return a `DenseObservationStore` for the method `"none"`, else a `RawObservationStore`.

    Raises:
        ValueError: a method that buffers on a device do not have.
    """
    if check_method(compression_method) == "none":
        return DenseObservationStore(shape, obs_shape, dtype, device)
    return RawObservationStore(
        shape,
        obs_shape,
        dtype,
        device,
        compression_method=compression_method,
        heap_bytes=heap_bytes,
        runs_type=runs_type,
    )
