"""`DeviceObservations`: an observation store that batches are read from on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.codecs.base import Ints
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.frames.heap import StoreFullError
from sb3_extra_buffers.frames.layout import Layout
from sb3_extra_buffers.frames.observations import IdTable, ObservationStore
from sb3_extra_buffers.frames.store import FrameStore, Ids
from sb3_extra_buffers.gpu_buffers.dense import DenseFrames
from sb3_extra_buffers.gpu_buffers.kernels.payloads import in_float
from sb3_extra_buffers.gpu_buffers.mirror import ON_DEVICE, Mirror, MirroredFrames, Reading
from sb3_extra_buffers.gpu_buffers.parcels import Parcel
from sb3_extra_buffers.gpu_buffers.transfer import Enclosed, for_kernels, to_device
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch

_ALL = slice(None)
_INT64 = np.dtype(np.int64)
_WAITING = 256
"""Frames that wait for the next batch to be sampled, at most, before they are sent without one."""


class HeapLimit:
    """How many bytes of heap the stores of one buffer may take together on the device."""

    def __init__(self, heap_bytes: int | None) -> None:
        if heap_bytes is not None and (isinstance(heap_bytes, bool) or not isinstance(heap_bytes, int | np.integer)):
            raise TypeError(f"heap_bytes is a number of bytes or None to grow as needed, not {heap_bytes!r}")
        if heap_bytes is not None and heap_bytes < 1:
            raise ValueError(f"heap_bytes is at least 1 or None to grow as needed, not {heap_bytes}")
        self.heap_bytes = heap_bytes
        self.taken: dict[int, int] = {}  # by store, numbered as they come

    def check(self, store: int, extent: int) -> None:
        """Say that a store needs `extent` bytes.

        Raises:
            StoreFullError: that is too much for all together.
        """
        if self.heap_bytes is None or extent <= self.taken[store]:
            return
        needed = sum(self.taken.values()) - self.taken[store] + extent
        if needed > self.heap_bytes:
            raise StoreFullError(
                f"the observations need {needed:,} bytes of heap on the device, more than "
                f"heap_bytes={self.heap_bytes:,}: raise it, or leave it out and the heap grows by itself"
            )
        self.taken[store] = extent


class Placed(NamedTuple):
    """Where the ids of a table lie on the device."""

    ids: Ids  # the table's, as they were placed: the store replaces them when it plans anew
    places: NDArray[np.int32]  # row of `device_ids` for each observation, `[*leading]`
    flat: NDArray[np.int32]  # the same, `[n]`


class DeviceObservations(ObservationStore):
    """Compressed observations, mirrored to a device.

    Args:
        *args: arguments of `ObservationStore`.
        limit: limit of the heap on the device, shared with other stores.
        **settings: arguments of `ObservationStore`.
    """

    def __init__(self, *args: Any, limit: HeapLimit, **settings: Any) -> None:
        self.device = torch.device("cpu")
        self.limit = limit
        self.number = len(limit.taken)
        limit.taken[self.number] = 0
        self.begin_anew()
        super().__init__(*args, **settings)

    def begin_anew(self) -> None:
        """Forget what the device has: it is sent all again when it is needed."""
        self._mirror: Mirror | None = None
        self._placed: dict[int, Placed] = {}  # by the number of the table
        self._device_ids: torch.Tensor | None = None
        self._written: dict[int, Ids] = {}  # ids that the device does not have, by the first of their places

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key not in _ON_THE_DEVICE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.begin_anew()

    @property
    def on_device(self) -> bool:
        """Whether the device decodes; else the host does, also until the first data have shown what suits them."""
        return self.planned and type(self.codec) in ON_DEVICE

    @property
    def _places_ids(self) -> bool:
        """Whether the device has the tables of ids."""
        return self.on_device

    @property
    def is_limited(self) -> bool:
        """Whether there may be no room for more, here or on the device."""
        return super().is_limited or self.limit.heap_bytes is not None

    def move(self, device: torch.device) -> None:
        """Keep the observations on `device` from now on."""
        self.device = device
        self.begin_anew()
        self._mirrored.forget_mirror()

    def prepare(self, share: float = 0) -> None:
        """Store as `ObservationStore` does, and check that the device's heap is large enough.

        Raises:
            StoreFullError: `heap_bytes` is reached; the assignments are forgotten.
        """
        try:
            if not self.on_device:
                self._mirrored.forget_unsent()
            elif self._mirrored.n_unsent >= _WAITING:
                self.refresh()
            super().prepare(share)
            self._check_limit()
        except BaseException:
            self.rollback()
            raise

    def put(self, obs: NDArray[Any], streams: NDArray[np.int64]) -> Ids:
        """Store as `ObservationStore` does, and check that the device's heap is large enough.

        Raises:
            StoreFullError: `heap_bytes` is reached.
        """
        ids = super().put(obs, streams)
        self._device_ids = None  # the caller will write them to a table
        try:
            self._check_limit()
        except StoreFullError:
            self.frames.release(ids)
            raise
        return ids

    def publish(self) -> None:
        """Make the prepared assignments show, here and, when a batch is sampled or many wait, on the device."""
        prepared = self.prepared
        try:
            super().publish()
            if not self.on_device:
                return
            for stored in prepared:
                placed = self._placed.get(stored.table.number)
                if placed is None or self._device_ids is None:
                    continue
                places = placed.places[stored.index]
                if places.shape[-1:] == placed.places.shape[-1:] == (self.streams,):  # rows, all of one size
                    rows = stored.ids.reshape(-1, self.streams, self.layout.stack)
                    for first, ids in zip(places[..., 0].flat, rows, strict=True):
                        self._written[int(first)] = ids  # later ones take the place of earlier ones
                else:
                    self._device_ids = None  # not a row, but it may be of one that waits: all are sent anew
        except BaseException:  # Ctrl-C: likewise
            self._device_ids = None
            raise

    def refresh(self) -> None:
        """Send to the device what it does not have."""
        try:
            parcel = self.outgoing()
            if parcel is not None:
                assert self._mirror is not None
                assert self._device_ids is not None
                self._mirror.receive(for_kernels(parcel.data, self.heap_device), parcel.n, self._device_ids)
        except BaseException:
            self.begin_anew()  # what was on its way may not have arrived
            raise

    def outgoing(self) -> Parcel | None:
        """Return what the device does not have, if there is anything; it counts as sent from now on."""
        self.flush()
        frames, mirror, limit = self._mirrored, self._mirror, self.limit
        if mirror is None or mirror.frames is not frames:
            # All of the heap at once, if the limit is for this store alone.
            capacity = limit.heap_bytes if len(limit.taken) == 1 else None
            self._mirror = mirror = Mirror(frames, self.device, capacity, self._allowed)
            self._device_ids = None
        if self._device_ids is None:
            (self._device_ids,) = to_device([self._place_tables()], mirror.heap.device)
            self._written = {}
        if not frames.n_unsent and not self._written:
            return None
        written, self._written = self._written, {}
        return mirror.outgoing(frames.take_unsent(self._allowed), written)

    @property
    def _allowed(self) -> int | None:
        """Bytes of heap that this store may fill."""
        return None if self.limit.heap_bytes is None else self.limit.taken[self.number]

    def _place_tables(self) -> NDArray[np.int32]:
        """Say where the ids of each table lie on the device, and return them as they lie there."""
        self._placed.clear()
        blocks, start = [np.zeros((0, self.layout.stack), np.uint32)], 0
        for table in sorted(self.tables, key=lambda table: table.number):  # places stay as they are when one is added
            n = table.ids.size // self.layout.stack
            flat = np.arange(start, start + n, dtype=np.int32)
            self._placed[table.number] = Placed(table.ids, flat.reshape(table.ids.shape[:-1]), flat)
            blocks.append(table.ids.reshape(n, -1))
            start += n
        return np.concatenate(blocks).view(np.int32)

    def claim(self) -> None:
        """Take the part of the limit that frames need which came from a file.

        Raises:
            StoreFullError: `heap_bytes` is not enough.
        """
        self._check_limit()

    def _check_limit(self) -> None:
        if self.limit.heap_bytes is not None and self.on_device:
            self.limit.check(self.number, self._mirrored.unsent_end())

    def _admit(self, codec: Codec, frames: FrameStore) -> None:
        if self.limit.heap_bytes is not None and type(codec) in ON_DEVICE:
            assert isinstance(frames, MirroredFrames)
            self.limit.check(self.number, frames.unsent_end())

    def choose(self, array: FrameArray, index: Any, cells: Ints | None = None) -> Selection | None:
        """Return which observations `array[index]` are, or None where the host has to say or to read them.

        Args:
            array: of this store.
            index: what is asked for.
            cells: the same as numbers of the array's observations, if that is known.
        """
        if not self.on_device:
            return None
        self.flush()
        parts: tuple[Any, ...] = ()
        if cells is None:
            parts = index if type(index) is tuple else (index,)
            if type(parts[-1]) is slice and parts[-1] == _ALL:
                parts = parts[:-1]
            for part in parts:
                if type(part) is not np.ndarray or part.dtype != _INT64:
                    return None
        table, view = array._table, array._view
        if view is not None or not self._places_ids:
            ids = table.ids if view is None else view
            if len(parts) >= ids.ndim:
                return None
            chosen = ids[parts] if cells is None else ids.reshape(-1, ids.shape[-1]).take(cells, 0)
            return Selection(self, chosen.view(np.int32), None) if chosen.ndim == 2 else None
        placed = self._placed.get(table.number)
        if placed is None or placed.ids is not table.ids or self._device_ids is None:
            self._device_ids = None
            self.refresh()
            placed = self._placed[table.number]
        if cells is not None:
            return Selection(self, placed.flat.take(cells), table)
        if len(parts) > placed.places.ndim:
            return None
        places = placed.places[parts]
        return Selection(self, places, table) if places.ndim == 1 else None

    def decode(
        self, sizes: list[int], numbers: torch.Tensor, are_places: bool, enclosed: Enclosed | None = None
    ) -> list[torch.Tensor]:
        """Return observations as tensors `[size, *obs_shape]` on the device, which has them since `refresh`.

        Args:
            sizes: how many in each tensor.
            numbers: int32: places `[n]`, or ids `[n, stack]`. Where `takes_memory` is true, whatever begins with them.
            are_places: which of the two.
            enclosed: fields to fill in the same launch, where `takes_memory` is true.
        """
        mirror = self._mirror
        assert mirror is not None
        reading = mirror.reading
        if reading is None:
            reading = mirror.reading = self._reading()
        halves = mirror.by_kernel and len(sizes) == 2 and sizes[0] == sizes[1]
        n = sum(sizes)
        outs = [mirror.batch(size) for size in (sizes if halves else (n,))]
        ids, places = (self._device_ids, numbers) if are_places else (numbers, None)
        assert ids is not None
        mirror.decode(n, self.layout.stack, ids, places, outs, reading.in_floats, reading.normalize, enclosed)
        if reading.moved:
            outs = [obs.movedim(1, -2).contiguous().view(len(obs), *self.obs_shape) for obs in outs]
        if not reading.done:
            outs = [self._as_read(obs) for obs in outs]
        return outs if halves else split(outs[0], sizes)

    @property
    def takes_memory(self) -> bool:
        """Whether `decode` only asks where numbers begin."""
        return self._mirror is not None and self._mirror.by_kernel

    @property
    def heap_device(self) -> torch.device:
        """Where the heap is, since `refresh`: on `device`, with the index it had then."""
        assert self._mirror is not None
        return self._mirror.heap.device

    def _reading(self) -> Reading:
        """Return how the kernel has to write the observations of this plan."""
        in_floats = self.output != "raw" and self.storage == np.uint8
        shape, stack = self.obs_shape, self.layout.stack
        moved = self.layout.axis == -1 and stack > 1
        if moved:
            *outer, channels = shape
            shape = (stack, *outer, channels // stack)
        return Reading(
            shape,
            torch.float32 if in_floats else numpy_dtype_to_torch(self.storage),
            in_floats,
            in_floats and self.output == "normalized",
            moved,
            in_floats or self.storage == self.read_dtype,
        )

    def _as_read(self, obs: torch.Tensor) -> torch.Tensor:
        """Return stored values as reading gives them."""
        if self.output == "normalized":
            return in_float(obs.to(numpy_dtype_to_torch(self.dtype)), True)
        return obs.to(numpy_dtype_to_torch(self.read_dtype))

    def device_tensors(self) -> dict[str, torch.Tensor]:
        """Return what lies on the device, by name."""
        if not self.on_device:
            return {}
        self.refresh()
        assert self._mirror is not None
        tensors = self._mirror.tensors
        return tensors if self._device_ids is None else {**tensors, "ids": self._device_ids}

    @property
    def heap_used(self) -> int:
        """Bytes of the device's heap up to the end of the last payload."""
        if not self.on_device:
            return 0
        self.refresh()
        assert self._mirror is not None
        return self._mirror.extent

    @property
    def _mirrored(self) -> MirroredFrames:
        frames: Any = self.frames
        assert isinstance(frames, MirroredFrames)
        return frames

    def _open(self, codec: Codec, layout: Layout) -> MirroredFrames:
        return MirroredFrames(layout.frame_bytes, codec, layout.stack, self.streams, self.budget, self.lock)


_ON_THE_DEVICE = ("_mirror", "_placed", "_device_ids", "_written")


class DenseObservations(DeviceObservations):
    """Observations as they are, in a dense tensor on the device."""

    on_device = True
    takes_memory = False
    reads_pairs = False
    _places_ids = False

    def move(self, device: torch.device) -> None:
        """Keep the observations on `device` from now on."""
        self.device = device
        self._dense.move(device)

    def reserve(self) -> None:
        """Make room for all that the arrays over this store can hold, and for what an `add` writes before it frees."""
        cells = sum(table.ids.size for table in self.tables)
        self._dense.reserve(cells + 2 * self.streams)

    def prepare(self, share: float = 0) -> None:
        """Store as `ObservationStore` does, at once: the device gets what is added when it is added."""
        ObservationStore.prepare(self)

    def put(self, obs: NDArray[Any], streams: NDArray[np.int64]) -> Ids:
        """Store as `ObservationStore` does."""
        return ObservationStore.put(self, obs, streams)

    def publish(self) -> None:
        """Make the prepared assignments show."""
        ObservationStore.publish(self)

    def refresh(self) -> None:
        """Nothing to do: observations are sent when they are stored."""

    @property
    def heap_device(self) -> torch.device:
        """Where the cells are."""
        return self._dense.cells.device

    def claim(self) -> None:
        """Nothing to do: cells are not limited."""

    def decode(
        self, sizes: list[int], numbers: torch.Tensor, are_places: bool, enclosed: Enclosed | None = None
    ) -> list[torch.Tensor]:
        """Return the observations of int32 ids `[n, 1]` as tensors `[size, *obs_shape]` on the device."""
        cells = self._dense.cells.index_select(0, numbers.view(-1))
        obs = cells.view(numpy_dtype_to_torch(self.storage)).view(sum(sizes), *self.obs_shape)
        if self.storage == np.uint8 and self.output != "raw":
            return split(in_float(obs, self.output == "normalized"), sizes)
        return split(self._as_read(obs), sizes)

    def device_tensors(self) -> dict[str, torch.Tensor]:
        """Return what lies on the device, by name."""
        return {"heap": self._dense.cells}

    @property
    def heap_used(self) -> int:
        """Bytes of the cells in use."""
        return self._dense.n_frames * self._dense.frame_bytes

    @property
    def _dense(self) -> DenseFrames:
        frames: Any = self.frames
        assert isinstance(frames, DenseFrames)
        return frames

    def _open(self, codec: Codec, layout: Layout) -> Any:
        return DenseFrames(layout.frame_bytes, self.lock)


def split(whole: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """Return the parts of a tensor; each may be changed in place without autograd taking the others for changed."""
    return [whole] if len(sizes) == 1 else [part.data for part in whole.split_with_sizes(sizes)]


class Selection:
    """Observations of a batch that are chosen and not read yet; NumPy reads them if it is asked to.

    Args:
        store: where they are.
        numbers: int32: places of a table on the device, `[n]`, or ids, `[n, stack]`.
        table: the table, None for ids.
    """

    __slots__ = ("numbers", "store", "table")

    def __init__(self, store: DeviceObservations, numbers: NDArray[np.int32], table: IdTable | None) -> None:
        self.store = store
        self.numbers = numbers
        self.table = table

    @property
    def group(self) -> tuple[DeviceObservations, bool]:
        """Selections that are equal here can be read together."""
        return self.store, self.table is None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        store, ids = self.store, self.numbers.view(np.uint32)
        if self.table is not None:
            places = store._placed[self.table.number].flat
            ids = self.table.ids.reshape(-1, store.layout.stack)[self.numbers - places[0]]
        obs = store.take(ids.reshape(-1, ids.shape[-1])).reshape(*ids.shape[:-1], *store.obs_shape)
        return obs.astype(dtype or obs.dtype, copy=False)
