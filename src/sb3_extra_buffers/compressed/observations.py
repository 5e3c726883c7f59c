"""`CompressedObservations`: the mixin that gives any SB3 buffer compressed observations.

SB3's own code runs unchanged. Its constructor (and a rollout's `reset`) sees a stand-in observation space of shape
`(0,)`, so it allocates nothing; each empty array it made is then replaced by a `CompressedArray`, which SB3's `add`,
`sample` and `get` write and read like the array they know.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_extra_buffers.codecs import get_codec, parallel, parse_method
from sb3_extra_buffers.compressed import ahead, hindsight, saving, small
from sb3_extra_buffers.compressed.gathering import gathers_anew
from sb3_extra_buffers.compressed.lending import Lent, may_lend
from sb3_extra_buffers.compressed.memory import Described, MemoryUsage
from sb3_extra_buffers.frames.allocator import keep_freed_memory
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.frames.auto import SMALL
from sb3_extra_buffers.frames.cast import checked_values, narrows, parse_dtypes
from sb3_extra_buffers.frames.heap import Budget
from sb3_extra_buffers.frames.lock import Lock
from sb3_extra_buffers.frames.observations import ObservationStore, Output
from sb3_extra_buffers.frames.spill import Spill

if TYPE_CHECKING:
    from typing_extensions import Self

_MADE_AGAIN = ("_usual", "_n_lent", "_row_names", "_gathered_by", *small.ATTRIBUTES, *ahead.ATTRIBUTES)
"""Attributes that the constructor, `add` or `sample` sets again."""
_ENV = {"env"}
WAITING = {"replay": 1 / 700, "rollout": 1 / 16}
"""How many frames of rows that wait to be stored are kept, at most, for each observation that a buffer has room for.

Stacked or not, about one of two observations of a replay buffer brings a new frame. A rollout is small, and the memory
of its batches larger.
"""

Key = str | None  # of a Dict space; None where the observation is one array


class CompressedObservations(Described):
    """Put before an SB3 buffer class, it keeps that buffer's observations compressed, losslessly.

    The first one of a process also has glibc keep memory that a training frees; see `keep_freed_memory`.

    Args:
        *args: arguments of the SB3 buffer.
        dtypes: storage dtype if it should differ from the space's: a dtype, or a dict with `elem_type` and, for rle,
            `runs_type`. A narrower one warns and clips.
        normalize_images: read uint8 observations as float32 divided by 255.
        compression_method: a method of the table in the docs; `"auto"` chooses from the first data.
        compression_kwargs: settings of that codec.
        decompression_kwargs: settings of that codec.
        output_dtype: `"raw"` reads observations in the space's dtype, `"float"` in float32.
        frame_stack: frames per observation, or `"auto"` to find out from the first transitions.
        max_bytes: limit of the bytes kept for observations; beyond it `add` raises and changes nothing.
        spill_dir: an existing folder; compressed observations are kept in a file there, so that they may exceed the
            memory. `max_bytes` is then the limit of what is kept in memory.
        verify: check what comes back from `spill_dir`; a damaged byte raises instead of reaching a sample.
        **kwargs: keyword arguments of the SB3 buffer. `optimize_memory_usage` is accepted with everything: next
            observations are shared by content, so samples are those of SB3's buffer without it.

    Raises:
        ValueError: an argument that cannot be; it says what can.
        TypeError: an unknown keyword, or a space that SB3's buffers do not store.
        ImportError: the method's library is missing; it holds the pip command.
    """

    _usual: Form | None = None  # form of the arguments of `add` that need no check
    _n_lent = 0  # how many of them are observations to lend
    _row_names: list[str] | None = None  # attributes that `add` may write rows of, if they cannot become others
    _adder = small.NOBODY  # of `small`, where nothing is compressed
    _gathered_by = 0  # the thread whose batch is being gathered by code that is known
    _ahead_next = _ahead_end = -1  # of `ahead`
    _ahead_full = False
    _ahead_held: tuple[Any, ...] = ()
    _ahead_copies: Sequence[tuple[NDArray[Any], NDArray[Any]]] = ()
    observation_space: Any
    obs_shape: Any
    buffer_size: int
    action_dim: int
    n_envs: int
    pos: int
    full: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        small.step_aside(cls)

    def __init__(
        self,
        *args: Any,
        dtypes: Mapping[str, Any] | DTypeLike | None = None,
        normalize_images: bool = False,
        compression_method: str = "auto",
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        output_dtype: Literal["raw", "float"] = "raw",
        frame_stack: int | Literal["auto"] = "auto",
        max_bytes: int | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        verify: bool = False,
        **kwargs: Any,
    ) -> None:
        given = _by_name(type(self), args, kwargs)
        space, buffer_size = given["observation_space"], given["buffer_size"]
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int | np.integer):
            raise TypeError(f"buffer_size is a number of transitions, not {buffer_size!r}")
        if buffer_size < 1:
            raise ValueError(f"buffer_size is at least 1, not {buffer_size}")
        if given.get("n_envs", 1) < 1:
            raise ValueError(f"n_envs is at least 1, not {given['n_envs']}")
        _check_class(type(self), space)
        if compression_method != "auto":
            parse_method(compression_method)
        elif compression_kwargs or decompression_kwargs:
            raise ValueError("compression_kwargs are settings of one codec: name it with compression_method")
        wanted = parse_dtypes(dtypes)
        self._guard = Lock()
        budget = Budget(max_bytes)
        spilling = {} if spill_dir is None else {"spill": Spill(Path(spill_dir), verify)}
        self._stores: dict[Key, ObservationStore] = {}
        self._lends = may_lend(type(self))
        for key, part in _parts(space):
            shape, dtype = get_obs_shape(part), np.dtype(part.dtype)
            storage = np.dtype(wanted.get("elem_type") or dtype)
            output = _parse_output(output_dtype, normalize_images, dtype)
            if not isinstance(shape, tuple):
                raise TypeError(f"nested Dict spaces are not supported: {part}")
            if int(np.prod(shape)) * dtype.itemsize < SMALL and storage == dtype and output == "raw":
                continue  # compressing it would cost more than it saves: SB3's own array
            if narrows(dtype, storage):
                warnings.warn(
                    f"dtypes asks for {storage} where observations are {dtype}: values are clipped and may be lost",
                    UserWarning,
                    stacklevel=2,
                )
            self._stores[key] = self._open_store(
                shape,
                dtype,
                storage=storage,
                method=compression_method,
                compression_kwargs=compression_kwargs,
                decompression_kwargs=decompression_kwargs,
                runs_type=wanted.get("runs_type"),
                frame_stack=frame_stack if _can_stack(shape, frame_stack) else 1,
                streams=given.get("n_envs", 1),
                output=output,
                budget=budget,
                lock=self._guard,
                **spilling,
            )
        if not self._stores and compression_method != "auto":
            get_codec(compression_method, compression_kwargs, decompression_kwargs)  # for its errors
        given["observation_space"] = self._stand_in(space)
        if "optimize_memory_usage" in given:
            given["optimize_memory_usage"] = False
        super().__init__(**given)
        self.observation_space = space
        self.obs_shape = get_obs_shape(space)
        if self._stores:
            self._attach()
            keep_freed_memory()
        else:
            small.go_without_lock(self)

    @property
    def _lock(self) -> Lock:
        """The lock of this buffer, for a thread that takes it."""
        if self._adder:
            small.let_others_in(self)
        return self._guard

    def reset(self) -> None:
        """Reset as SB3 does, without the dense arrays that SB3's rollout buffers allocate here."""
        shape = self.obs_shape
        with self._lock:
            ahead.forget(self)
            if isinstance(shape, dict):
                self.obs_shape = {key: (0,) if key in self._stores else part for key, part in shape.items()}
            elif self._stores:
                self.obs_shape = (0,)
            try:
                super().reset()  # type: ignore[misc]
            finally:
                self.obs_shape = shape
            if self._stores:
                self._attach()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add as SB3 does, whole or not at all: bad input raises and leaves the buffer as it was."""
        checked: Sequence[Any] = args
        if self._usual is None or kwargs or not _has_form(args, self._usual):
            checked = self._checked_fields(args, kwargs)
        elif self._n_lent:
            checked = [*map(Lent, args[: self._n_lent]), *args[self._n_lent :]]
        with self._lock:
            undo, stores, is_stored = self._undo(), self._stores.values(), False
            try:
                for store in stores:
                    store.begin()
                super().add(*checked, **kwargs)  # type: ignore[misc]
                share = WAITING["replay" if hasattr(self, "next_observations") else "rollout"]
                for store in stores:
                    store.prepare(share)
                is_stored = True
                for store in stores:
                    store.publish()
            except BaseException:  # also of Ctrl-C
                if is_stored:
                    for store in stores:
                        store.publish()
                else:
                    self._roll_back(undo)
                raise

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Sample as SB3 does.

        Raises:
            ValueError: the buffer is empty (SB3's message would be NumPy's).
        """
        with self._lock:
            if self.size() == 0:  # type: ignore[attr-defined]
                raise ValueError("cannot sample from an empty buffer: add transitions first")
            return super().sample(*args, **kwargs)  # type: ignore[misc]

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Gather a batch as SB3 does. Arrays that nobody else has become tensors without SB3's copy."""
        with self._lock:
            usual = len(args) in (1, 2) and not kwargs.keys() - _ENV
            if not usual or not gathers_anew(self, CompressedObservations, *args, **kwargs):
                return super()._get_samples(*args, **kwargs)  # type: ignore[misc]
            try:
                self._gathered_by = get_ident()
                return super()._get_samples(*args, **kwargs)  # type: ignore[misc]
            finally:
                self._gathered_by = 0

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Return minibatches as SB3's rollout buffers do.

        Raises:
            ValueError: the rollout is not full (SB3 asserts, without a message).
            AttributeError: a replay buffer, which has no such method.
        """
        if not hasattr(super(), "get"):
            raise AttributeError(f"{type(self).__name__} has no minibatches: it is a replay buffer, use sample()")
        if not self.full:
            raise ValueError(f"the rollout has {self.size()} of its steps: add the others before get()")  # type: ignore[attr-defined]
        ahead.forget(self)  # SB3 makes new arrays of them
        return self._in_turn(super().get(*args, **kwargs))  # type: ignore[misc]

    def compute_returns_and_advantage(self, *args: Any, **kwargs: Any) -> None:
        """Compute as SB3's rollout buffers do; a save in another thread sees all of it, or nothing."""
        with self._lock:
            super().compute_returns_and_advantage(*args, **kwargs)  # type: ignore[misc]

    def _in_turn(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Take each minibatch under the lock: before the first one SB3 reshapes its arrays, one after another."""
        end = object()
        while True:
            with self._lock:
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    def to_torch(self, array: NDArray[Any], copy: bool = True) -> Any:
        """Convert as SB3 does, without its copy where the array was gathered or decompressed for this very batch."""
        if self._gathered_by == get_ident() and type(array) is np.ndarray and array.flags.c_contiguous:
            copy = False
        else:
            for store in self._stores.values():
                if store.fresh.claim(array):
                    copy = False
        return super().to_torch(array, copy)  # type: ignore[misc]

    def memory_usage(self) -> MemoryUsage:
        """Return how much memory the observations take, and would take uncompressed. Prints as a table."""
        with self._lock:
            arrays = 2 if hasattr(self, "next_observations") else 1
            held = self.size() * self.n_envs * arrays  # type: ignore[attr-defined]
            parts = []
            for key, part in _parts(self.observation_space):
                name, store = key or type(self).__name__, self._stores.get(key)
                raw = held * int(np.prod(get_obs_shape(part))) * np.dtype(part.dtype).itemsize  # type: ignore[arg-type]
                if store is None:
                    parts.append(MemoryUsage(name, "dense", raw, raw, held, held))
                    continue
                method = store.codec.name if store.planned else f"{store.method} (undecided)"
                stored = store.nbytes  # asked first: it lets go of the frames of arrays that are gone
                parts.append(MemoryUsage(name, method, raw, stored, held * store.layout.stack, store.frames.n_frames))
            return MemoryUsage.total(type(self).__name__, parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the buffer to a file, compressed as it is: whole or not at all. Other threads may add meanwhile.

        A later save to the same path writes only what has changed since. Until it is complete, and if it fails, the
        file stays as it was.

        Raises:
            OSError: no room, no permission, or another process is saving to the file.
            TypeError: an attribute that cannot be saved; it says which one.
        """
        saving.save(self, path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, spill_dir: str | os.PathLike[str] | None = None, verify: bool = False
    ) -> Self:
        """Return the buffer that `save` wrote. Nothing in the file is executed, every byte is verified.

        Hindsight buffers come back without their env, as from `load_replay_buffer`: call `set_env`.

        Args:
            path: the file.
            spill_dir: as of the constructor; it is not saved.
            verify: likewise.

        Raises:
            DamagedFileError: the file is damaged, or was not saved by this package.
            TypeError: it holds a buffer of another class.
            ImportError: the library of its compression method is missing; it holds the pip command.
        """
        buffer: Self = saving.load(cls, path, None if spill_dir is None else Spill(Path(spill_dir), verify))
        return buffer

    def __getstate__(self) -> dict[str, Any]:
        """Return one state of the buffer, for pickle and deepcopy: a copy where another thread might add meanwhile."""
        with self._lock:
            state = self._attributes()
            return deepcopy(state) if parallel.others_run() else state

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes that SB3's class wants to be pickled."""
        inherited = getattr(super(), "__getstate__", None)  # of every object since Python 3.11
        state = dict(vars(self) if inherited is None else inherited())
        return {name: value for name, value in state.items() if name not in _MADE_AGAIN}

    def _saved(self) -> dict[str, Any]:
        """Return the attributes for a file."""
        return self._attributes()

    def _restore(self, state: dict[str, Any]) -> None:
        """Take the attributes that `_saved` returned, in a new object."""
        if hasattr(self, "__setstate__"):
            self.__setstate__(state)
        else:
            vars(self).update(state)

    def _loaded(self) -> None:
        """Do what is left to do after all was loaded."""

    def _open_store(self, *args: Any, **settings: Any) -> ObservationStore:
        """Return what keeps the observations of one key; the arguments are those of `ObservationStore`."""
        return ObservationStore(*args, **settings)

    def _attach(self) -> None:
        """Replace the empty arrays that SB3 has made for the stand-in space by compressed ones."""
        for name, array in list(vars(self).items()):
            if isinstance(array, dict) and name != "_stores":
                for key in self._stores.keys() & array.keys():
                    array[key] = self._compressed(key, array[key])
            elif None in self._stores and name != "actions":  # of a space without values they are empty too
                setattr(self, name, self._compressed(None, array))

    def _compressed(self, key: Key, array: Any) -> Any:
        if type(array) is not np.ndarray or array.ndim < 2 or array.shape[-1] != 0:
            return array
        store = self._stores[key]
        if store.output == "raw":
            store.dtype = array.dtype
        return FrameArray.zeros(store, array.shape[:-1])

    def _stand_in(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        """Return `space` with parts of shape `(0,)` in place of those that are compressed."""
        if isinstance(space, spaces.Dict):
            return spaces.Dict(
                {key: _empty(part) if key in self._stores else part for key, part in space.spaces.items()}
            )
        return _empty(space) if self._stores else space

    def _checked_fields(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the arguments of `add`, or raise before anything is changed. Those by name are checked in place.

        What came through unchanged, because its dtypes are right, need not be checked again: `_usual` is its form.
        """
        # SB3's replay buffers take these in this order, its rollout buffers `obs, action, reward` first.
        replay = hasattr(self, "next_observations")
        names = ("obs", "next_obs", "action", "reward", "done", "infos") if replay else ("obs", "action", "reward")
        checked = [self._checked_field(name, value) for name, value in zip(names, args, strict=False)]
        kwargs.update({name: self._checked_field(name, kwargs[name]) for name in names if name in kwargs})
        given = [value.array if type(value) is Lent else value for value in checked]
        lent = sum(type(value) is Lent for value in checked)
        if all(one is other for one, other in zip(given, args, strict=False)) and lent in (0, 1 + replay):
            form = _form(args, replay)
            if form is not None:
                self._usual, self._n_lent = form, lent
                if not lent:
                    return args
        return [*checked, *args[len(names) :]]

    def _checked_field(self, name: str, value: Any) -> Any:
        """Return an argument of `add`, or raise before anything is changed."""
        if name in ("obs", "next_obs"):
            return self._checked(value)
        if name == "infos":
            if len(value) != self.n_envs or not all(type(info) is dict or isinstance(info, Mapping) for info in value):
                raise ValueError(f"infos is a list of dicts, one for each of {self.n_envs} envs")
            return value
        wanted = self.n_envs * (self.action_dim if name == "action" else 1)
        values = value if type(value) is np.ndarray else np.asarray(value)
        if values.size != wanted and not (values.size == 1 and values.ndim == 0):
            raise ValueError(f"{name} has {values.size} values; {self.n_envs} envs need {wanted}")
        if values.dtype.kind not in "biuf":
            raise TypeError(f"{name} is an array of numbers, not {value!r}")
        return value

    def _checked(self, obs: Any) -> Any:
        """Return observations as the space's arrays `[n_envs, *obs_shape]`."""
        if not isinstance(self.observation_space, spaces.Dict):
            return self._checked_part(None, obs, self.observation_space, self.obs_shape)
        if not isinstance(obs, Mapping) or self.observation_space.spaces.keys() - obs.keys():
            wanted = ", ".join(self.observation_space.spaces)
            raise ValueError(f"observations of this space are dicts with the keys {wanted}; got {_keys(obs)}")
        parts = self.observation_space.spaces.items()
        return {key: self._checked_part(key, obs[key], part, self.obs_shape[key]) for key, part in parts}

    def _checked_part(self, key: Key, obs: Any, space: spaces.Space[Any], shape: tuple[int, ...]) -> Any:
        full = (self.n_envs, *shape)
        discrete = isinstance(space, spaces.Discrete)
        if discrete and np.size(obs) == self.n_envs:
            obs = np.asarray(obs).reshape(full)  # as SB3 does: one number per env
        checked = checked_values(obs, full, space.dtype)  # type: ignore[arg-type] # these spaces have one
        return Lent(checked) if self._lends and key in self._stores and not discrete else checked

    def _undo(self) -> Undo | None:
        """Return what an `add` may change: the position, and its row of SB3's arrays. None: `ahead` has a copy."""
        fields = ahead.fields_of(type(self))
        if fields and self.pos < self.buffer_size and not self._is_limited:
            ahead.have(self, fields)
            return None
        self._ahead_next = -1  # this row is written without a copy ahead
        row, attributes, names = self.pos, vars(self), self._row_names
        if names is None:
            names = [name for name, held in attributes.items() if _has_rows(held)]
            if self._lends:
                self._row_names = names  # of SB3: the same arrays at every `add`, or new ones in their place
        arrays = [attributes[name] for name in names]
        if dict in map(type, arrays):
            arrays = [array for held in arrays for array in (held.values() if type(held) is dict else (held,))]
        arrays = [array for array in arrays if type(array) is np.ndarray and array.ndim > 1 and row < len(array)]
        rows = [(array, array[row].copy()) for array in arrays]
        return Undo(row, self.full, rows, hindsight.episodes(self))

    @property
    def _is_limited(self) -> bool:
        """Whether an `add` may be refused for want of room: somebody may have changed rows since they were copied."""
        for store in self._stores.values():  # noqa: SIM110 # half the time of `any`
            if store.is_limited or store.spill is not None:
                return True
        return False

    def _roll_back(self, undo: Undo | None) -> None:
        """Put back what an `add` that raised has written."""
        for store in self._stores.values():
            store.rollback()
        if undo is None:
            ahead.put_back(self, ahead.fields_of(type(self)))
            return
        self.pos, self.full = undo.row, undo.full
        if undo.episodes is not None:
            hindsight.put_back(self, undo.row, undo.episodes)
        for array, before in undo.rows:
            array[undo.row] = before


class Undo(NamedTuple):
    """What an `add` may change, as it was before."""

    row: int
    full: bool
    rows: list[tuple[NDArray[Any], NDArray[Any]]]  # arrays, and copies of their rows
    episodes: hindsight.Episodes | None


def _has_rows(held: Any) -> bool:
    """Tell whether `add` may write a row of this attribute, or of an array in it."""
    if type(held) is dict:
        return any(_has_rows(part) for part in held.values())
    return type(held) is np.ndarray and held.ndim > 1


class Form(NamedTuple):
    """What the arguments of an `add` are like."""

    arrays: list[tuple[tuple[int, ...], np.dtype[Any]]]  # of a replay buffer the first five, of a rollout buffer three
    n_infos: int | None  # of a replay buffer


def _form(args: tuple[Any, ...], replay: bool) -> Form | None:
    """Return the form of what a buffer's `add` is given, or None if these are not its usual arrays."""
    arrays = args[: 5 if replay else 3]
    if len(args) != 6 or not all(type(array) is np.ndarray for array in arrays):
        return None
    form = Form([(array.shape, array.dtype) for array in arrays], len(args[5]) if replay else None)
    return form if _has_form(args, form) else None


def _has_form(args: tuple[Any, ...], form: Form) -> bool:
    """Tell whether `args` have this form: every `add` asks."""
    if len(args) != 6:
        return False
    for array, (shape, dtype) in zip(args, form.arrays):  # noqa: B905 # the others are not checked
        if type(array) is not np.ndarray or array.shape != shape or array.dtype is not dtype:
            return False
    if form.n_infos is None:
        return True
    infos = args[5]
    if (type(infos) is not list and type(infos) is not tuple) or len(infos) != form.n_infos:
        return False
    for info in infos:  # noqa: SIM110 # half the time of `all`
        if type(info) is not dict:
            return False
    return True


def _by_name(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the SB3 buffer that `cls` extends, all by name.

    Raises:
        TypeError: an argument that it does not have, or a missing one.
    """
    inits = [
        base.__init__
        for base in cls.__mro__
        if "__init__" in vars(base) and not issubclass(base, CompressedObservations)
    ]
    accepted: dict[str, inspect.Parameter] = {}
    for init in inits:  # a constructor that passes *args and **kwargs on takes what the next one takes
        parameters = dict(list(inspect.signature(init).parameters.items())[1:])
        named = {
            name: p for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD or p.kind is p.KEYWORD_ONLY
        }
        accepted = {**accepted, **named}
        if not any(p.kind is p.VAR_KEYWORD or p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            break
    positional = [name for name, p in accepted.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    given = dict(zip(positional, args, strict=False))
    unknown = sorted(kwargs.keys() - accepted.keys())
    twice = sorted(kwargs.keys() & given.keys())
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in given and n not in kwargs]
    if unknown or twice or missing or len(args) > len(positional):
        problem = (
            f"unknown arguments: {', '.join(unknown)}; it has: {', '.join(accepted)}"
            if unknown
            else f"arguments given twice: {', '.join(twice)}"
            if twice
            else f"missing arguments: {', '.join(missing)}"
            if missing
            else f"too many arguments: {len(args)}"
        )
        raise TypeError(f"{cls.__name__}: {problem}")
    return {**given, **kwargs}


def _check_class(cls: type, space: spaces.Space[Any]) -> None:
    """Raise where SB3's class for the other kind of space is meant; SB3's own error would not say so."""
    plain = {ReplayBuffer, NStepReplayBuffer, RolloutBuffer}
    takes_dicts = issubclass(cls, DictReplayBuffer | DictRolloutBuffer)
    if isinstance(space, spaces.Dict) and not takes_dicts and plain & set(cls.__bases__):
        raise TypeError(f"{cls.__name__} takes no Dict observations: use the class for Dict spaces")
    if not isinstance(space, spaces.Dict) and takes_dicts:
        raise TypeError(f"{cls.__name__} takes Dict observations only, not {type(space).__name__}")


def _parts(space: spaces.Space[Any]) -> list[tuple[Key, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        parts: list[tuple[Key, spaces.Space[Any]]] = list(space.spaces.items())
    else:
        parts = [(None, space)]
    for key, part in parts:
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            where = "" if key is None else f" (key {key!r})"
            raise TypeError(
                f"{type(part).__name__} observation spaces are not supported{where}; "
                "SB3 stores Box, Discrete, MultiDiscrete, MultiBinary and Dict of these"
            )
    return parts


def _parse_output(output_dtype: str, normalize_images: bool, dtype: np.dtype[Any]) -> Output:
    if output_dtype not in ("raw", "float"):
        raise ValueError(f"output_dtype is 'raw' or 'float', not {output_dtype!r}")
    if normalize_images and dtype == np.uint8:
        return "normalized"
    return "float" if output_dtype == "float" and dtype != np.float32 else "raw"


def _can_stack(shape: tuple[int, ...], frame_stack: int | Literal["auto"]) -> bool:
    """Tell whether `frame_stack` is for this part: in a Dict it is for images, not for the vectors beside them."""
    return frame_stack == "auto" or len(shape) > 1


def _empty(space: spaces.Space[Any]) -> spaces.Box:
    nothing = np.zeros(0, space.dtype)
    return spaces.Box(nothing, nothing, dtype=space.dtype)  # type: ignore[arg-type]


def _keys(obs: Any) -> str:
    return ", ".join(map(str, obs)) if isinstance(obs, Mapping) else type(obs).__name__
