"""`GpuObservations`: the mixin that gives an SB3 buffer observations on a Torch device.

Everything of `CompressedObservations` holds: SB3's code runs unchanged, the host's frame store decides. Two things are
different. What is stored is mirrored to the device. And a batch is not converted field by field: SB3's code gathers
it, of observations only which ones, and then a launch makes tensors of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.utils import get_device

from sb3_extra_buffers.compressed.gathering import known_gatherer
from sb3_extra_buffers.compressed.observations import CompressedObservations
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.gpu_buffers.compression_methods import check_method
from sb3_extra_buffers.gpu_buffers.gathering import Cells, StandIn
from sb3_extra_buffers.gpu_buffers.kernels.scatter import N_TARGETS
from sb3_extra_buffers.gpu_buffers.memory import DeviceUsage
from sb3_extra_buffers.gpu_buffers.store import (
    DenseObservations,
    DeviceObservations,
    HeapLimit,
    Selection,
)
from sb3_extra_buffers.gpu_buffers.transfer import enclose, to_device
from sb3_extra_buffers.gpu_buffers.utils import torch_dtype_to_numpy


class GpuObservations(CompressedObservations):
    """Put before an SB3 replay or rollout buffer class, it keeps that buffer's observations on a device, losslessly.

    Args:
        *args: arguments of the SB3 buffer.
        dtypes: storage dtype if it should differ from the space's, of torch or NumPy: a dtype, or a dict with
            `elem_type` and, for rle, `runs_type`. A narrower one warns and clips.
        normalize_images: samples of uint8 observations are float32 divided by 255.
        compression_method: `"delta"`, `"rle"`, `"none"` (dense tensors), or `"zstd"` with a level (decoded by the CPU).
        output_dtype: `"raw"` samples observations in the space's dtype, `"float"` in float32.
        buffer_device: where observations are kept; `"auto"`: the SB3 buffer's `device`, also after that changes.
        heap_bytes: limit of the heap on the device; beyond it `add` raises and changes nothing. None: it grows.
        max_slot_bytes: deprecated; as `heap_bytes` for one observation.
        **kwargs: further arguments of `CompressedObservations` and of the SB3 buffer.

    Raises:
        ValueError: an argument that cannot be; it says what can.
        TypeError: an unknown keyword, or a space that SB3's buffers do not store.
        ImportError: the method's library is missing; it holds the pip command.
    """

    _gathered_from: StandIn | None = None  # what stands for the buffer when batches are gathered
    device: torch.device
    buffer_size: int
    _stores: dict[str | None, DeviceObservations]  # type: ignore[assignment]

    def __init__(
        self,
        *args: Any,
        dtypes: Mapping[str, Any] | Any = None,
        normalize_images: bool = False,
        compression_method: str = "delta",
        output_dtype: Literal["raw", "float"] = "raw",
        buffer_device: torch.device | str = "auto",
        heap_bytes: int | None = None,
        max_slot_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._dense = check_method(compression_method) == "none"
        if self._dense:
            kwargs["frame_stack"] = 1
        if kwargs.get("spill_dir") is not None:
            raise ValueError("spill_dir is for buffers in host memory: observations of this one are on a device")
        self._limit = HeapLimit(heap_bytes)
        self._gathering = False
        self._placed: torch.device | None = None if buffer_device == "auto" else get_device(buffer_device)
        super().__init__(
            *args,
            dtypes=_as_numpy(dtypes),
            normalize_images=normalize_images,
            compression_method=compression_method,
            output_dtype=output_dtype,
            **kwargs,
        )
        if max_slot_bytes is not None:
            warnings.warn(
                "max_slot_bytes is deprecated: leave it out and the heap grows by itself, or limit it with heap_bytes",
                DeprecationWarning,
                stacklevel=2,
            )
            cells = self.buffer_size * self.n_envs * (2 if hasattr(self, "next_observations") else 1)
            self._limit.heap_bytes = HeapLimit(max_slot_bytes).heap_bytes * cells  # type: ignore[operator]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of another process, which may have had another device: without CUDA, this is the CPU."""
        vars(self).update(state)
        self.device = get_device(self.device)
        self._placed = None if self._placed is None else get_device(self._placed)

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in super()._attributes().items() if name != "_gathered_from"}

    def _saved(self) -> dict[str, Any]:
        return {**super()._saved(), "_limit": self._limit.heap_bytes}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore({**state, "_limit": HeapLimit(state["_limit"])})

    def _loaded(self) -> None:
        for store in self._stores.values():
            store.claim()

    @property
    def buffer_device(self) -> torch.device:
        """Where observations are kept. Set it to move them."""
        return self.device if self._placed is None else self._placed

    @buffer_device.setter
    def buffer_device(self, device: torch.device | str) -> None:
        self._placed = None if device == "auto" else get_device(device)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add as SB3 does, whole or not at all. Observations may be tensors, also on a device."""
        with self._lock:
            self._place()
        super().add(*args, **kwargs)

    def to_torch(self, array: NDArray[Any], copy: bool = True) -> Any:
        """Convert as SB3 does; while a batch is put together, not yet: SB3 copies and waits for each field."""
        return array if self._gathering else to_device([np.asarray(array)], self.device)[0]

    def device_usage(self) -> DeviceUsage:
        """Return how many bytes the observations take on the device. Prints as a table."""
        with self._lock:
            self._place()
            stores = self._stores.values()
            tensors = [store.device_tensors() for store in stores]
            sizes = {
                name: sum(held[name].nbytes for held in tensors if name in held)
                for name in ("heap", "table", "keys", "ids")
            }
            return DeviceUsage(
                heap_bytes=sizes["heap"],
                heap_used=sum(store.heap_used for store in stores),
                table_bytes=sizes["table"],
                key_bytes=sizes["keys"],
                id_bytes=sizes["ids"],
            )

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Gather a batch with SB3's code, then send and decode it as a whole (SB3 converts each field by itself)."""
        with self._lock:
            self._place()
            gathers = self._gathers()
            if gathers is not None:
                stand_in = self._gathered_from
                if stand_in is None or not stand_in.is_for(self):
                    stand_in = self._gathered_from = StandIn(self, _chooser)
                return self._delivered(stand_in.gather(gathers, self, *args, **kwargs))
            arrays = {name: held for name, held in list(vars(self).items()) if _holds_frames(held)}
            self._gathering = True
            try:
                vars(self).update({name: _chooser(held) for name, held in arrays.items()})
                batch = super()._get_samples(*args, **kwargs)
            finally:
                vars(self).update(arrays)
                self._gathering = False
            return self._delivered(batch)

    def _gathers(self) -> Callable[..., Any] | None:
        """Return the method that gathers batches, if it is SB3's and what it gathers is converted by us; else None."""
        own = getattr(self.to_torch, "__func__", None) is GpuObservations.to_torch
        return known_gatherer(type(self), CompressedObservations) if own else None

    def _normalize_obs(self, obs: Any, env: Any = None) -> Any:
        """Read observations before `env` normalises them: it does that in NumPy."""
        if env is None or not env.norm_obs:
            return obs
        chosen = {key: np.asarray(part) for key, part in obs.items()} if isinstance(obs, dict) else np.asarray(obs)
        return super()._normalize_obs(chosen, env)  # type: ignore[misc]

    def _checked(self, obs: Any) -> Any:
        if isinstance(obs, Mapping):
            obs = {key: _in_host_memory(part) for key, part in obs.items()}
        return super()._checked(_in_host_memory(obs))

    def _open_store(self, *args: Any, **settings: Any) -> DeviceObservations:
        return (DenseObservations if self._dense else DeviceObservations)(*args, limit=self._limit, **settings)

    def _attach(self) -> None:
        super()._attach()
        self._place()
        for store in self._stores.values():
            if isinstance(store, DenseObservations):
                store.reserve()

    def _place(self) -> None:
        """Tell the stores where to be: SB3 sets `device` after loading."""
        for store in self._stores.values():
            if store.device != self.buffer_device:
                store.move(self.buffer_device)

    def _delivered(self, batch: Any) -> Any:
        """Return `batch`, a named tuple of arrays or of dicts of them, with tensors instead."""
        if dict not in map(type, batch):
            return type(batch)(*self._tensors(batch))
        leaves = [leaf for field in batch for leaf in (field.values() if type(field) is dict else (field,))]
        left = iter(self._tensors(leaves))
        fields = [{key: next(left) for key in field} if type(field) is dict else next(left) for field in batch]
        return type(batch)(*fields)

    def _tensors(self, leaves: Sequence[Any]) -> list[torch.Tensor | None]:
        """Return a tensor for each array and each choice of observations; None for None."""
        arrays: list[NDArray[Any]] = []
        groups: dict[Any, list[Selection]] = {}
        for leaf in leaves:
            if type(leaf) is Selection:
                groups.setdefault(leaf.group, []).append(leaf)
            elif leaf is not None:
                arrays.append(leaf)
        for store in {store: None for store, _ in groups}:
            store.refresh()
        near = self._placed is None or self._placed == self.device
        if near and len(groups) == 1 and len(arrays) <= N_TARGETS and store.takes_memory:  # one launch for all
            ((_, are_ids), chosen) = groups.popitem()
            enclosed = enclose([one.numbers for one in chosen], arrays, store.heap_device)
            sizes = [len(one.numbers) for one in chosen]
            read, fields = iter(store.decode(sizes, enclosed.memory, not are_ids, enclosed)), iter(enclosed.fields)
            return [
                next(read) if type(leaf) is Selection else None if leaf is None else next(fields) for leaf in leaves
            ]
        return self._tensors_of_groups(leaves, groups, arrays, near)

    def _tensors_of_groups(
        self, leaves: Sequence[Any], groups: dict[Any, list[Selection]], arrays: list[NDArray[Any]], near: bool
    ) -> list[torch.Tensor | None]:
        """Do as `_tensors`, in several launches: one for each group of choices that are read together.

        Args:
            leaves: arrays and choices.
            groups: the choices.
            arrays: the arrays.
            near: whether observations are where their tensors are wanted.
        """
        joined = [np.concatenate([one.numbers for one in group]) for group in groups.values()]
        place = next(iter(groups))[0].heap_device if groups else self.buffer_device
        sent = to_device([*joined, *arrays] if near else joined, place)
        fields = iter(sent[len(joined) :] if near else to_device(arrays, self.device))
        read: dict[Selection, torch.Tensor] = {}
        for ((store, are_ids), group), chosen in zip(groups.items(), sent, strict=False):
            parts = store.decode([len(one.numbers) for one in group], chosen, not are_ids)
            read.update(zip(group, parts if near else [part.to(self.device) for part in parts], strict=True))
        return [read[leaf] if type(leaf) is Selection else None if leaf is None else next(fields) for leaf in leaves]


class _Chooser:
    """Stands for an array of observations: says which ones, and reads nothing."""

    __slots__ = ("array", "cells", "choose")

    def __init__(self, array: FrameArray, cells: Cells | None) -> None:
        self.array = array
        self.cells = cells
        self.choose = array.store.choose  # type: ignore[attr-defined] # it is of `DeviceObservations`

    def __getitem__(self, index: Any) -> Any:
        array = self.array
        chosen = self.choose(array, index, None if self.cells is None else self.cells.of(index))
        return array[index] if chosen is None else chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)


def _holds_frames(held: Any) -> bool:
    if type(held) is dict:
        return any(type(part) is FrameArray for part in held.values())
    return type(held) is FrameArray


def _chooser(held: Any, cells: Cells | None = None) -> Any:
    """Return what stands for observations: for an array, or for the arrays in a dict."""
    if type(held) is dict:
        return {key: _chooser(part, cells) for key, part in held.items()}
    if type(held) is not FrameArray:
        return held
    return _Chooser(held, cells if cells is not None and held._leading == cells.shape else None)


def _in_host_memory(obs: Any) -> Any:
    return obs.detach().cpu().numpy() if isinstance(obs, torch.Tensor) else obs


def _as_numpy(dtypes: Any) -> Any:
    """Return `dtypes` with NumPy's in the place of torch's."""
    if isinstance(dtypes, Mapping):
        return {key: _as_numpy(dtype) for key, dtype in dtypes.items()}
    return torch_dtype_to_numpy(dtypes) if isinstance(dtypes, torch.dtype) else dtypes
