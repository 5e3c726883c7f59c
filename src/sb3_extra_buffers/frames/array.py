"""`CompressedArray`: reads and writes like the array of observations it replaces, and holds frame ids.

NumPy's C code looks straight into the memory of anything that is an `ndarray`, past every hook. So an array that holds
ids must not be one for C code: `CompressedArray(...)` makes a `FrameArray`, which *says* it is a `CompressedArray`, an
`ndarray` subclass (`isinstance` and `issubclass` agree), but has no memory of its own. Python code sees the array; C
code has to ask for the observations (`__array__`) and gets exactly them.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from math import prod
from types import EllipsisType
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_extra_buffers.codecs import parallel
from sb3_extra_buffers.frames.cast import checked_values, parse_dtypes
from sb3_extra_buffers.frames.heap import Budget
from sb3_extra_buffers.frames.observations import IdTable, ObservationStore
from sb3_extra_buffers.frames.store import Ids
from sb3_extra_buffers.frames.tables import html_table, readable_bytes


class CompressedArray(np.ndarray[Any, Any]):
    """An array of compressed observations: assignment compresses, indexing gives decompressed batches.

    Args:
        shape: leading axes, such as `(rows, envs)`; the array has the shape `(*shape, *obs_shape)`.
        dtype: dtype of the observations.
        obs_shape: shape of one observation.
        dtypes: `{"elem_type": ..., "runs_type": ...}`; a narrower `elem_type` clips. None: lossless.
        compression_method: see the table of methods.
        compression_kwargs: settings of that codec.
        decompression_kwargs: settings of that codec.
        frame_stack: frames per observation, or `"auto"`.
        max_bytes: limit of the bytes kept.
    """

    def __new__(  # type: ignore[misc] # the object is a FrameArray, see the module's docstring
        cls,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        obs_shape: int | tuple[int, ...],
        *,
        dtypes: Mapping[str, Any] | DTypeLike | None = None,
        compression_method: str = "auto",
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        frame_stack: int | Literal["auto"] = "auto",
        max_bytes: int | None = None,
    ) -> FrameArray:
        """Make an array of zeros."""
        leading = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        wanted = parse_dtypes(dtypes)
        store = ObservationStore(
            (obs_shape,) if isinstance(obs_shape, int | np.integer) else tuple(obs_shape),
            np.dtype(dtype),
            storage=wanted.get("elem_type"),
            runs_type=wanted.get("runs_type"),
            method=compression_method,
            compression_kwargs=compression_kwargs,
            decompression_kwargs=decompression_kwargs,
            frame_stack=frame_stack,
            streams=leading[-1] if len(leading) > 1 else 1,
            budget=Budget(max_bytes),
        )
        return FrameArray.zeros(store, leading)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the array to a file, compressed as it is: whole or not at all; see `FrameArray.save`."""
        raise TypeError("this is no compressed array: make one with CompressedArray(...)")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FrameArray:
        """Return the array that `save` wrote. Nothing in the file is executed, every byte is verified.

        Raises:
            DamagedFileError: the file is damaged, or was not saved by this package.
            TypeError: it holds something else.
        """
        from sb3_extra_buffers.frames import saving

        return saving.load_array(path)


_ALL = slice(None)
_INT64 = np.dtype(np.int64)


class FrameArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Frame ids behind the face of an array of observations; made by `CompressedArray`.

    Whatever is not answered here (methods, attributes, NumPy functions) is answered by the decompressed array, which
    is read-only: a write that would be lost raises.
    """

    __slots__ = ("__weakref__", "_table", "_view")
    __array_priority__ = 1000.0

    def __init__(self, table: IdTable, ids: Ids | None = None) -> None:
        self._table = table
        self._view = ids  # a view of the table's ids; None: all of them, also after the store has planned anew

    @classmethod
    def zeros(cls, store: ObservationStore, leading: tuple[int, ...]) -> FrameArray:
        """Return an array of zeros over `store`."""
        return cls(IdTable(store, np.zeros((*leading, store.layout.stack), np.uint32)))

    @property  # type: ignore[misc] # `object.__class__` can be set, which makes no sense here
    def __class__(self) -> type:
        return CompressedArray

    def __reduce__(self) -> tuple[Any, ...]:
        if self._view is not None:
            return np.array, (np.asarray(self),)  # a view of something else cannot stay one
        # Another thread might write before all is pickled. Arrays over one store stay together instead.
        if self.store.alone and len(self.store.tables) == 1 and parallel.others_run():
            return FrameArray, (deepcopy(self)._table,)
        return FrameArray, (self._table,)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the array to a file, compressed as it is: whole or not at all.

        A later save to the same path writes only what has changed. Other threads may write to the array meanwhile: what
        is saved is one state of it.

        Raises:
            OSError: no room or no permission; what was saved there before is intact.
        """
        from sb3_extra_buffers.frames import saving

        saving.save_array(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> FrameArray:
        """Return the array that was saved; see `CompressedArray.load`."""
        return CompressedArray.load(path)

    def __copy__(self) -> FrameArray:
        self.store.settle()
        with self.store.lock:
            return self._counted(self._ids.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with self.store.lock:
            return np.array(self) if self._view is not None else FrameArray(deepcopy(self._table, memo))

    @property
    def store(self) -> ObservationStore:
        """What the array shares with the others of its observation key."""
        return self._table.store

    @property
    def _ids(self) -> Ids:
        ids = self._table.ids  # what waits to be stored is then in the view, too
        return ids if self._view is None else self._view

    @property
    def _leading(self) -> tuple[int, ...]:
        return (self._table.stored if self._view is None else self._view).shape[:-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the observations it stands for."""
        return (*self._leading, *self.store.obs_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What reading gives."""
        return self.store.read_dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes that the decompressed array would take; `store.nbytes` says what is really kept."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self._leading[0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __repr__(self) -> str:
        """Return what it is, not what is in it: that would be decompressed."""
        return f"CompressedArray(shape={self.shape}, dtype={self.dtype}, codec={self.store.codec})"

    def _repr_html_(self) -> str:
        sizes = readable_bytes(self.nbytes), readable_bytes(self.store.nbytes)
        rows = [("array", "shape", "dtype", "codec", "raw", "its store")]
        rows.append(("CompressedArray", str(self.shape), str(self.dtype), self.store.codec.name, *sizes))
        return html_table(rows, left=4)

    def __getitem__(self, index: Any) -> Any:
        """Return the selected observations, decompressed, in a new array."""
        store = self.store
        with store.lock:
            plain, rest = _split_index(index, len(self._leading))
            if plain is None:
                lead, inner = self._elements(index)
                rows, where = np.unique(lead, return_inverse=True)
                obs = self._take(self._ids.reshape(-1, self._ids.shape[-1])[rows])
                return obs.reshape(len(rows), prod(store.obs_shape))[where.reshape(lead.shape), inner]
            chosen = self._ids[plain]
            whole = self._view is None and chosen.ndim == 2 and len(plain) == len(self._leading)
            if whole and store.reads_pairs and isinstance(plain[0], np.ndarray) and plain[0].ndim:  # so it is no view
                obs = store.pairs.take(store, self._table, plain, chosen)
            else:
                obs = self._take(chosen)
            if rest:
                return obs[(*(slice(None),) * (chosen.ndim - 1), *rest)]
            if obs.ndim == 0:
                return obs[()]  # a number, as NumPy gives it
            store.fresh.add(obs)
            return obs

    def __setitem__(self, index: Any, value: Any) -> None:
        """Compress `value` into the selected observations."""
        store = self.store
        with store.lock:
            if store.staged is not None and type(index) is int and self._view is None and self._table.is_rows:
                obs = checked_values(value, store.row_shape, store.dtype)
                store.stage(self._table, index, obs)  # from a buffer's add
                return
            plain, rest = _split_index(index, len(self._leading))
            if plain and not rest and self._view is None and all(isinstance(part, int) for part in plain):
                table = self._table
                leading = table.ids.shape[len(plain) : -1]
                obs = checked_values(value, (*leading, *store.obs_shape), store.dtype)
                obs = obs.reshape(-1, *store.obs_shape)
                streams = store.row_streams  # of the usual case, a row
                if leading != (len(streams),):
                    last = plain[-1] % table.streams if len(plain) > 1 else 0
                    streams = np.arange(len(obs)) % table.streams if leading else np.array([last])
                store.assign(table, plain, obs, streams)
                return
            if plain is None or rest:
                lead, inner = self._elements(index)
                rows, where = np.unique(lead, return_inverse=True)
                obs = store.stored(self._ids.reshape(-1, self._ids.shape[-1])[rows])
                flat = obs.reshape(len(rows), prod(store.obs_shape))
                flat[where.reshape(lead.shape), inner] = checked_values(value, lead.shape, store.dtype)
            else:
                places = self._places()[plain]
                obs = checked_values(value, (*places.shape, *store.obs_shape), store.dtype)
                obs = obs.reshape(-1, *store.obs_shape)
                # Where an index names a place twice, the last value stays, as in NumPy.
                rows, last = np.unique(places.reshape(-1)[::-1], return_index=True)
                obs = obs[places.size - 1 - last]
            ids = store.put(
                obs, rows % self._table.streams if len(self._leading) > 1 else np.zeros(len(rows), np.int64)
            )
            self._assign_rows(rows, ids)

    def _assign_rows(self, rows: NDArray[np.int64], ids: Ids) -> None:
        index = np.unravel_index(rows, self._leading)
        replaced = self._ids[index].copy()
        self._table.touch()
        self._ids[index] = ids
        self.store.frames.release(replaced)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a compressed array cannot be had without decompressing it: leave out copy=False")
        decoded: NDArray[Any] = self[...]
        if dtype is not None:
            decoded = decoded.astype(dtype, copy=False)
        decoded.flags.writeable = copy is True  # what is written into it would be lost
        return decoded

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outs = kwargs.pop("out", ())
        if outs:
            kwargs["out"] = tuple(out[...] if _is_ours(out) else out for out in outs)
        if method == "at" and _is_ours(inputs[0]):
            raise TypeError(
                f"{ufunc.__name__}.at cannot change a compressed array: decompress it with np.asarray first"
            )
        result = getattr(ufunc, method)(*map(_decoded, inputs), **{key: _decoded(v) for key, v in kwargs.items()})
        for out, changed in zip(outs, kwargs.get("out", ()), strict=True):
            if _is_ours(out):
                out[...] = changed
        if not outs:
            return result
        return outs[0] if len(outs) == 1 else outs

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return func(*_decoded(args), **_decoded(kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("resize", "setflags") or not hasattr(np.ndarray, name):
            raise AttributeError(f"CompressedArray has no attribute {name!r}")
        return getattr(_decoded(self), name)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Return a view with two axes exchanged; leading axes stay compressed."""
        one, two = operator.index(axis1), operator.index(axis2)
        for axis in (one, two):
            if not -self.ndim <= axis < self.ndim:
                raise np.exceptions.AxisError(axis, self.ndim)
        one, two = one % self.ndim, two % self.ndim
        if max(one, two) >= len(self._leading):
            return _decoded(self).swapaxes(one, two)
        self.store.settle()
        return FrameArray(self._table, self._ids.swapaxes(one, two))

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return the array in another shape; as long as observations stay whole they stay compressed."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        wanted = _without_minus_one(tuple(wanted), self.size)
        n = len(self.store.obs_shape)
        whole = len(wanted) > n and wanted[len(wanted) - n :] == self.store.obs_shape
        if order != "C" or not whole:
            return _decoded(self).reshape(wanted, order=order)
        self.store.settle()
        with self.store.lock:
            ids = self._ids.reshape(*wanted[: len(wanted) - n], self._ids.shape[-1])
            if np.shares_memory(ids, self._ids):
                return FrameArray(self._table, ids)
            return self._counted(ids)

    def _counted(self, ids: Ids) -> FrameArray:
        """Return an array of its own over `ids`."""
        table = IdTable(self.store, ids)  # first: it may be refused
        self.store.frames.retain(ids)
        return FrameArray(table)

    def _take(self, ids: Ids) -> NDArray[Any]:
        obs = self.store.take(ids.reshape(-1, ids.shape[-1]))
        return obs.reshape((*ids.shape[:-1], *self.store.obs_shape))

    def _places(self) -> NDArray[np.int64]:
        return np.arange(prod(self._leading)).reshape(self._leading)

    def _elements(self, index: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each value that `index` selects, its observation and its place in that."""
        n = len(self.store.obs_shape)
        lead = self._places().reshape(*self._leading, *(1,) * n)
        inner = np.arange(prod(self.store.obs_shape)).reshape(self.store.obs_shape)
        return np.broadcast_to(lead, self.shape)[index], np.broadcast_to(inner, self.shape)[index]


def _split_index(index: Any, n_leading: int) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Split an index into a part for the leading axes and one for the axes of each observation.

    Returns `(None, ())` where that cannot be done, or not without changing the order of axes that NumPy gives.
    """
    if n_leading == 2 and _are_rows_and_envs(index):
        return index[:2], ()
    parts = list(index) if isinstance(index, tuple) else [index]
    if parts and parts[-1] is Ellipsis:
        parts.pop()
    while parts and isinstance(parts[-1], slice) and parts[-1] == slice(None):
        parts.pop()
    axes = cut = 0
    for i, part in enumerate(parts):
        if part is None or isinstance(part, EllipsisType | bool | np.bool_ | str):
            return None, ()
        if isinstance(part, list) or (hasattr(part, "__array__") and not isinstance(part, np.generic)):
            parts[i] = part = np.asarray(part) if np.size(part) else np.zeros(np.shape(part), np.intp)
        elif not isinstance(part, slice):
            try:
                parts[i] = operator.index(part)
            except TypeError:
                return None, ()
        axes += part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1
        cut = i + 1 if axes <= n_leading else cut
    leading, rest = tuple(parts[:cut]), tuple(parts[cut:])
    if not rest:
        return leading, ()
    basic = (slice,) if any(isinstance(part, np.ndarray) for part in leading) else (slice, int)
    spans = sum(part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1 for part in leading)
    splits = spans == n_leading and all(isinstance(part, basic) for part in rest)
    return (leading, rest) if splits else (None, ())


def _are_rows_and_envs(index: Any) -> bool:
    """Tell whether an index is what SB3 takes batches with: every `sample` asks, several times."""
    if type(index) is not tuple or not 2 <= len(index) <= 3:
        return False
    rows, envs, *rest = index
    if rest and (type(rest[0]) is not slice or rest[0] != _ALL):
        return False
    return type(rows) is type(envs) is np.ndarray and rows.dtype == envs.dtype == _INT64 and rows.size == envs.size > 0


def _without_minus_one(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if -1 not in shape:
        return tuple(int(n) for n in shape)
    known = prod(n for n in shape if n != -1)
    return tuple(size // max(known, 1) if n == -1 else int(n) for n in shape)


def _is_ours(value: Any) -> bool:
    return type(value) is FrameArray


def _decoded(value: Any) -> Any:
    """Replace compressed arrays in arguments by decompressed, read-only ones."""
    if _is_ours(value):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(map(_decoded, value))
    if type(value) is dict:
        return {key: _decoded(v) for key, v in value.items()}
    return value
