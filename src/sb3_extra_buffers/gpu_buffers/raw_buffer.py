"""Bytes on a device: linear storage, and a packed heap of cells over it."""

from __future__ import annotations

import torch

from sb3_extra_buffers.frames.heap import StoreFullError

__all__ = ["RawBuffer", "SharedRawHeap"]

_CHUNK = 1 << 23  # bytes that `compact` moves at once: each needs an index of 8 bytes


class RawBuffer:
    """Linear byte storage.

    A region is `(start, n)`: n values from byte `start` on. Regions need no alignment.

    Args:
        size: bytes.
        device: where they are.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        if size < 0:
            raise ValueError(f"a buffer has at least 0 bytes, not {size}")
        self.device = torch.device(device)
        self.size = int(size)
        self.storage = torch.UntypedStorage(self.size, device=self.device)  # type: ignore[no-untyped-call]

    @property
    def bytes(self) -> torch.Tensor:
        """All bytes, as a uint8 tensor over the same memory."""
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(self.storage)

    def write_bytes(self, region: tuple[int, int], tensor: torch.Tensor) -> None:
        """Copy the values of `tensor` into the region.

        Raises:
            ValueError: the region has another number of values, or reaches outside.
        """
        start, n = region
        if tensor.numel() != n:
            raise ValueError(f"the region has {n} values, the tensor {tensor.numel()}")
        self._span(start, n * tensor.element_size()).copy_(
            tensor.contiguous().view(-1).view(torch.uint8), non_blocking=True
        )

    def read_bytes(self, region: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the region as a tensor of `dtype`: the memory itself where it is aligned for that, else a copy."""
        start, n = region
        span = self._span(start, n * dtype.itemsize)
        return (span if start % dtype.itemsize == 0 else span.clone()).view(dtype)

    def read_into(self, region: tuple[int, int], tensor: torch.Tensor) -> None:
        """Copy the region into the first values of `tensor`, which has one axis."""
        tensor[: region[1]] = self.read_bytes(region, tensor.dtype)

    def copy_region(self, source: int, target: int, n: int) -> None:
        """Copy `n` bytes from byte `source` to byte `target`; the two may overlap."""
        self._span(target, n).copy_(self._span(source, n).clone())

    def resize(self, size: int) -> None:
        """Make the buffer `size` bytes long; what fits stays."""
        before, kept = self.bytes, min(size, self.size)
        self.size = int(size)
        self.storage = torch.UntypedStorage(self.size, device=self.device)  # type: ignore[no-untyped-call]
        self.bytes[:kept] = before[:kept]

    def _span(self, start: int, n: int) -> torch.Tensor:
        if start < 0 or n < 0 or start + n > self.size:
            raise ValueError(f"bytes {start} to {start + n} reach outside a buffer of {self.size}")
        return self.bytes[start : start + n]


class SharedRawHeap:
    """Payloads of many cells, one after another in one buffer.

    A cell that is written again gets a new place; `compact` takes back what the old ones left.

    Args:
        n_cells: number of cells, all empty at first.
        heap_bytes: bytes of the buffer.
        device: where they are.
        grows: make the buffer larger if payloads do not fit; else that is an error.

    Attributes:
        start_idx: int64 `[n_cells]`, the first byte of each payload, on the host.
        lengths: int64 `[n_cells]`, the bytes of each payload, on the host.
        data_end: where the next payload goes.
    """

    def __init__(
        self, n_cells: int, heap_bytes: int, device: torch.device | str = "cpu", *, grows: bool = False
    ) -> None:
        self.raw = RawBuffer(heap_bytes, device)
        self.start_idx = torch.zeros(n_cells, dtype=torch.int64)
        self.lengths = torch.zeros(n_cells, dtype=torch.int64)
        self.data_end = 0
        self.grows = grows

    @property
    def heap_bytes(self) -> int:
        """Bytes of the buffer."""
        return self.raw.size

    def write(self, cells: torch.Tensor, payloads: torch.Tensor, lengths: torch.Tensor) -> None:
        """Give `cells` new payloads.

        Args:
            cells: int64 `[n]` on the host, each at most once.
            payloads: their bytes, one payload after another.
            lengths: int64 `[n]` on the host.

        Raises:
            StoreFullError: they do not fit; every cell is as it was.
        """
        total = len(payloads)
        self.ensure_space(total)
        self.raw.write_bytes((self.data_end, total), payloads)
        self.start_idx[cells] = self.data_end + torch.cumsum(lengths, 0) - lengths
        self.lengths[cells] = lengths
        self.data_end += total

    def ensure_space(self, n: int) -> None:
        """Make room for `n` more bytes: take back dead ones, then grow.

        Raises:
            StoreFullError: the heap does not grow, and live payloads leave too little.
        """
        if self.data_end + n <= self.heap_bytes:
            return
        live = int(self.lengths.sum())
        if live + n > self.heap_bytes and not self.grows:
            raise StoreFullError(
                f"the observations need {live + n:,} bytes of heap, more than heap_bytes={self.heap_bytes:,}: "
                "raise it, or leave it out and the heap grows by itself"
            )
        self.compact()
        if self.data_end + n > self.heap_bytes:
            self.raw.resize(max(self.data_end + n, self.heap_bytes * 5 // 4))

    def compact(self) -> None:
        """Move live payloads together, in the order they lie; `data_end` is then the sum of their lengths."""
        live = torch.nonzero(self.lengths)[:, 0]
        live = live[torch.argsort(self.start_idx[live])]
        lengths = self.lengths[live]
        ends = torch.cumsum(lengths, 0)
        memory = self.raw.bytes
        shift = self.start_idx[live] - (ends - lengths)  # how far each one moves down
        first = moved = 0
        while first < len(live):  # a payload never moves up, so no chunk is overwritten before it is read
            last = max(first + 1, int(torch.searchsorted(ends, moved + _CHUNK, right=True)))
            end = int(ends[last - 1])
            target = torch.arange(moved, end)
            source = target + torch.repeat_interleave(shift[first:last], lengths[first:last])
            memory[moved:end] = memory[source.to(self.raw.device)]
            first, moved = last, end
        self.start_idx[live] = ends - lengths
        self.data_end = moved
