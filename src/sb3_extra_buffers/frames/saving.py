"""Values and stores as documents for a file, and back. Only what is named here is ever made of a file.

A value that JSON has stands for itself; any other is a dict of one entry, its kind. Of a store the file holds what
cannot be computed: payloads, where they are, ids, what the codec has learned. Counts and free places are computed from
the ids, and everything that is used as an index is checked: nothing in a file can make a kernel read elsewhere.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.codecs.base import Coder
from sb3_extra_buffers.codecs.like import Like
from sb3_extra_buffers.codecs.neighbours import Neighbours
from sb3_extra_buffers.codecs.ranks import Ranks
from sb3_extra_buffers.codecs.registry import CODECS, FILTERS
from sb3_extra_buffers.codecs.spans import Spans
from sb3_extra_buffers.frames import checks, files
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.frames.files import Checkpoint, Reader, Writer
from sb3_extra_buffers.frames.heap import Budget, Heap, small_segment
from sb3_extra_buffers.frames.layout import Layout
from sb3_extra_buffers.frames.lock import Lock, is_held_here
from sb3_extra_buffers.frames.observations import IdTable, ObservationStore
from sb3_extra_buffers.frames.spill import SpilledHeap
from sb3_extra_buffers.frames.store import FrameStore

Encode = Callable[[Any, Any, str], Any]
"""`(value, encoder, where)` to a document, for kinds of values that are not known here; or NotImplemented."""

Decode = Callable[[str, Any, Any], Any]
"""`(kind, content, decoder)` to a value, or NotImplemented."""

Notes = dict[str, tuple["weakref.ref[Heap | IdTable]", int]]
"""What knows which parts of an array were written to, by the name of the array, and its mark of the last save."""

_OBJECTS = 4096  # of an array of objects, in one block of JSON
_IDS = 1 << 20  # looked at at a time
_OTHERS = (*FILTERS, Like, Neighbours, Ranks, Spans)
_CODECS: dict[str, type[Codec]] = {**CODECS, **{codec.name: codec for codec in _OTHERS}}
_PLAIN = (type(None), bool, int, float, str)


class WrongClassError(TypeError):
    """A file that holds something else than what was asked for."""


class Encoder:
    """Writes values: numbers and bytes of arrays to the file, all else to the document it returns."""

    def __init__(self, writer: Writer, stores: list[ObservationStore], known: Checkpoint | None, extra: Encode) -> None:
        self.writer = writer
        self.stores = stores
        self.notes: Notes = {}
        self.claims = checks.Claims()
        self._known: Notes = {} if known is None else known.notes
        self._extra = extra

    def value(self, value: Any, where: str) -> Any:
        """Return a document of `value`.

        Raises:
            TypeError: a kind of value that cannot be saved; it says where it is.
        """
        if type(value) in _PLAIN:
            return value
        if type(value) is list:
            return [self.value(part, f"{where}[{i}]") for i, part in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [self.value(part, f"{where}[{i}]") for i, part in enumerate(value)]}
        if type(value) is deque:
            return {"deque": [[self.value(part, f"{where}[{i}]") for i, part in enumerate(value)], value.maxlen]}
        if type(value) is dict:
            pairs = [[self.value(k, where), self.value(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"dict": pairs}
        if type(value) in (bytes, bytearray):
            return {"bytes": self.writer.array(where, np.frombuffer(value, np.uint8))}
        if type(value) is FrameArray:
            return {"observations": self._observations(value, where)}
        if type(value) is np.ndarray:
            return self._array(value, where)
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return {"number": [value.dtype.str, value.tobytes().hex()]}
        if isinstance(value, np.dtype):
            return {"dtype": value.str}
        if isinstance(value, type) and issubclass(value, np.generic):
            return {"type": np.dtype(value).str}
        found = self._extra(value, self, where)
        if found is NotImplemented:
            raise TypeError(
                f"{where} is a {type(value).__name__}, which cannot be saved: numbers, strings, arrays, and lists, "
                "dicts, tuples and deques of these can"
            )
        return found

    def store(self, store: ObservationStore, where: str) -> dict[str, Any]:
        """Return a document of a store; arrays over it are values like others."""
        store.collect()
        settings = {**store._settings, "obs_shape": store.obs_shape, "dtype": store.dtype, "storage": store.storage}
        settings |= {"method": store.method, "frame_stack": store.frame_stack, "streams": int(store.streams)}
        settings["output"] = store.output
        self.claims.settings(settings)
        return {
            "settings": self.value(settings, where),
            "layout": [store.layout.stack, store.layout.axis],
            "planned": store.planned,
            "writes": store.writes,
            "found": None if store.found is None else list(store.found),
            "codec": _codec_document(store.codec, self, where),
            "frames": self._frames(store.frames, where),
        }

    def _frames(self, frames: Any, where: str) -> dict[str, Any]:
        if not isinstance(frames, FrameStore):  # dense cells on a device
            state = {key: value for key, value in frames.__getstate__().items() if key in ("cells", "device")}
            return {"dense": self.value(state, f"{where}/dense")}
        self.claims.recent(frames.recent_ids, frames.frame_bytes)
        heap, coder, name = frames.heap, frames.coder, f"{where}/heap"
        mark, n = self._last_mark(name, heap), files.BLOCK // frames.offsets.itemsize
        stored, rewritten = None, {}
        if mark is not None:
            stored = frames.stored_since(mark, n)
            rewritten = coder.rewritten(frames.references[i * n : (i + 1) * n] for i in stored.nonzero()[0].tolist())
        arrays = {
            key: self._rows(f"{where}/{key}", getattr(frames, key), stored, n)
            for key in ("offsets", "lengths", "references")
        }
        return {
            "codec": _codec_document(coder.codec, self, where),
            "coder": self._coder(coder, f"{where}/coder", rewritten),
            "arrays": {**arrays, "recent_ids": self.writer.array(f"{where}/recent_ids", frames.recent_ids)},
            "heap": self._heap(heap, name, mark),
            "segment_bytes": heap.segment_bytes,
            "open": [heap.segment, heap.at],
        }

    def _heap(self, heap: Heap, name: str, mark: int | None) -> str:
        """Write the payloads; since the last save, only segments were written to that were opened, or open then."""
        data, size = heap.data[: heap.n_segments * heap.segment_bytes], heap.segment_bytes
        block_bytes = max(1, files.block_size(data.size) // size) * size
        look = heap.look if isinstance(heap, SpilledHeap) else None
        changed = None if mark is None else (heap.written_since(mark), size)
        return self.writer.array(name, data, block_bytes=block_bytes, changed=changed, look=look)

    def _last_mark(self, name: str, knows: Heap | IdTable) -> int | None:
        """Return the mark of the last save to this file, if `knows` was there, and make one for the next."""
        known, mark = self._known.get(name, (None, 0))
        self.notes[name] = weakref.ref(knows), knows.mark()
        return mark if known is not None and known() is knows else None

    def _rows(self, name: str, array: NDArray[Any], changed: NDArray[np.bool_] | None, n: int = 1) -> str:
        """Write an array of which `changed` says for each `n` rows whether they may have changed since."""
        row_bytes = prod(array.shape[1:]) * array.itemsize
        return self.writer.array(name, array, changed=None if changed is None else (changed, n * row_bytes))

    def _coder(self, coder: Coder, where: str, rewritten: Mapping[str, NDArray[np.bool_]]) -> dict[str, Any]:
        state = {key: value for key, value in vars(coder).items() if not key.startswith("_")}
        return {
            key: {"coder": self._coder(value, f"{where}/{key}", {})}
            if isinstance(value, Coder)
            else {"array": self._rows(f"{where}/{key}", value, rewritten[key])}
            if key in rewritten
            else self.value(value, f"{where}/{key}")
            for key, value in state.items()
            if key not in checks.STRUCTURE
        }

    def _observations(self, array: FrameArray, where: str) -> list[Any]:
        number = next((i for i, store in enumerate(self.stores) if store is array.store), None)
        if number is None:
            raise TypeError(f"{where} is a compressed array of another buffer: it cannot be saved with this one")
        table, changed = array._table, None
        if array._view is None:
            mark = self._last_mark(where, table)
            changed = None if mark is None else table.written_since(mark)
        return [number, table.number, self._rows(where, array._ids, changed, table.part)]

    def _array(self, array: NDArray[Any], where: str) -> dict[str, Any]:
        if array.dtype != object:
            return {"array": self.writer.array(where, array)}
        parts = []
        flat = array.reshape(-1)
        for start in range(0, flat.size, _OBJECTS):
            chunk = flat[start : start + _OBJECTS].tolist()
            text = files.to_json([self.value(one, f"{where}[{start + i}]") for i, one in enumerate(chunk)])
            parts.append(self.writer.array(f"{where}/{start}", np.frombuffer(text, np.uint8)))
        return {"objects": [list(array.shape), parts]}


class Decoder:
    """Makes values of documents.

    Raises:
        DamagedFileError: what the file says makes no sense.
    """

    def __init__(self, reader: Reader, extra: Decode) -> None:
        self.reader = reader
        self.stores: list[ObservationStore] = []
        self.knowing: dict[str, Heap | IdTable] = {}
        self.claims = checks.Claims()
        self._tables: list[tuple[int, IdTable]] = []
        self._extra = extra

    def value(self, document: Any) -> Any:
        """Return the value that was saved."""
        if type(document) in _PLAIN:
            return document
        if type(document) is list:
            return [self.value(part) for part in document]
        ((kind, content),) = document.items()
        if kind == "tuple":
            return tuple(self.value(part) for part in content)
        if kind == "deque":
            return deque([self.value(part) for part in content[0]], maxlen=content[1])
        if kind == "dict":
            return {self.value(key): self.value(part) for key, part in content}
        if kind == "bytes":
            return self.reader.array(content).tobytes()
        if kind == "array":
            return self.reader.array(content)
        if kind == "objects":
            return self._objects(*content)
        if kind == "observations":
            return self._observations(*content)
        if kind == "number":
            return np.frombuffer(bytes.fromhex(content[1]), checks.number_dtype(content[0]))[0]
        if kind == "dtype":
            return checks.number_dtype(content)
        if kind == "type":
            return checks.number_dtype(content).type
        found = self._extra(kind, content, self)
        if found is NotImplemented:
            raise ValueError(f"there is no kind of value {kind!r}")
        return found

    def store(self, document: dict[str, Any], opened: Callable[..., ObservationStore]) -> None:
        """Make a store, with `opened(obs_shape, dtype, **settings)`; arrays over it are to come."""
        settings = self.value(document["settings"])
        self.claims.settings(settings)
        settings.pop("item_bytes")
        store = opened(settings.pop("obs_shape"), settings.pop("dtype"), **settings)
        stack, axis = document["layout"]
        checks.layout(stack, axis)
        store.layout = Layout(store.obs_shape, store.storage, stack, axis)
        store.planned, store.writes = document["planned"] is True, checks.integer(document["writes"])
        if document["found"] is not None:
            checks.layout(*document["found"])
            store.found = tuple(document["found"])
        store.codec = self._codec(document["codec"])
        saved = document["frames"]
        if "dense" in saved:
            state = self.value(saved["dense"])
            state |= {"frame_bytes": store.layout.frame_bytes, "lock": store.lock}
            checks.cells(state["cells"], store.layout.frame_bytes)
            store.frames.__setstate__({**state, "counts": np.ones(1, np.uint32), "free": np.zeros(0, np.int64)})
        else:
            store.budget.owners.discard(store.frames)
            store.frames = store._open(self._codec(saved["codec"]), store.layout)
            self._fill(store.frames, saved)
        self.stores.append(store)

    def finish(self) -> None:
        """Count the frames that the arrays refer to."""
        for store in self.stores:
            tables = [(number, table) for number, table in self._tables if table.store is store]
            for number, table in tables:
                table.number = number
            store.n_tables = max((number for number, _ in tables), default=0)
            _count(store.frames, [table.ids for _, table in tables])

    def _fill(self, frames: FrameStore, saved: dict[str, Any]) -> None:
        arrays = {name: self.reader.array(saved["arrays"][name]) for name in saved["arrays"]}
        checks.tables(arrays, frames.stack)
        self.claims.recent(arrays["recent_ids"], frames.frame_bytes)
        heap = frames.heap
        name = saved["heap"]
        heap.segment_bytes = checks.segment(saved.get("segment_bytes", small_segment(frames.frame_bytes)), frames)
        data = self.reader.array(name, heap.room if isinstance(heap, SpilledHeap) else None)
        heap.data = data
        heap.n_segments = data.size // heap.segment_bytes + 1  # the last one may not have a byte yet
        heap.segment, heap.at = map(checks.integer, saved["open"])
        checks.heap(heap, data)
        heap.limit = (heap.segment + 1) * heap.segment_bytes
        heap.alive = np.zeros(heap.n_segments, np.int64)
        heap.opened = np.zeros(heap.n_segments, np.uint32)
        if isinstance(heap, SpilledHeap):
            heap.seal()
        self._restore_coder(frames.coder, saved["coder"])
        vars(frames).update(arrays)
        self.knowing[name] = heap

    def _restore_coder(self, coder: Coder, saved: dict[str, Any]) -> None:
        state = {key: value for key, value in vars(coder).items() if not key.startswith("_")}
        today = coder.of_today(saved)
        if today.keys() != state.keys() - set(checks.STRUCTURE) and today is saved:
            raise ValueError(f"the state of a {type(coder).__name__} is not {', '.join(saved)}")
        for key, content in today.items():
            known = state[key]
            if isinstance(known, Coder):
                self._restore_coder(known, content["coder"])
            else:
                state[key] = checks.alike(self.value(content), known, key)
        checks.coder(coder, state)
        if hasattr(coder, "__setstate__"):
            coder.__setstate__(state)
        else:
            vars(coder).update(state)

    def _codec(self, document: Any) -> Codec:
        name, settings = document
        values = {
            key: self._codec(content["codec"]) if type(content) is dict and "codec" in content else self.value(content)
            for key, content in settings.items()
        }
        checks.codec_settings(values)
        return _CODECS[name](**values)

    def _observations(self, number: int, made: int, name: str) -> FrameArray:
        store = self.stores[checks.integer(number)]
        ids = self.reader.array(name)
        checks.ids(ids, store.layout.stack)
        table = IdTable(store, ids)
        self._tables.append((checks.integer(made), table))
        self.knowing[name] = table
        return FrameArray(table)

    def _objects(self, shape: list[int], parts: list[str]) -> NDArray[Any]:
        values = [self.value(one) for part in parts for one in files.from_json(self.reader.array(part))]
        array = np.empty(len(values), object)
        array[:] = values
        return array.reshape(shape)


class _Known:
    """What this process has saved of one buffer: a checkpoint for each path, and who is saving."""

    def __init__(self) -> None:
        self.saving = threading.RLock()
        self.checkpoints: dict[Path, Checkpoint] = {}


_known: weakref.WeakKeyDictionary[Lock, _Known] = weakref.WeakKeyDictionary()


def _forget_all() -> None:
    """A forked child begins anew: its parent goes on with the files it knows."""
    global _known
    _known = weakref.WeakKeyDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def save(
    path: str | os.PathLike[str],
    lock: Lock,
    stores: list[ObservationStore],
    describe: Callable[[Encoder], Any],
    extra: Encode,
    total: int = 0,
    is_changing: bool = False,
) -> None:
    """Write what `describe` says, under `lock`, to a file: whole or not at all.

    Args:
        path: the file. If it holds what was saved of the same buffer before, only what has changed is written.
        lock: the buffer's.
        stores: those that its arrays may refer to.
        describe: returns a document.
        extra: for kinds of values that are not known here.
        total: about how many bytes.
        is_changing: whether this thread is in the middle of a change, though without the lock.

    Raises:
        RuntimeError: this thread is adding or saving already: a signal's handler may save only what is whole.
    """
    where = Path(path).resolve()  # of a symbolic link, what it points to is written
    known = _known.setdefault(lock, _Known())
    if is_changing or is_held_here(lock) or is_held_here(known.saving):
        raise RuntimeError(
            "save() in the middle of another call on the same thread, as from the handler of a signal: note there that "
            "it came, and save when the step is done; what was saved before is intact"
        )
    with known.saving:
        before = known.checkpoints.get(where)
        notes: Notes = {}

        def document(writer: Writer) -> Any:
            with lock:
                encoder = Encoder(writer, stores, before, extra)
                found = {"stores": [encoder.store(store, f"stores/{i}") for i, store in enumerate(stores)]}
                found["content"] = describe(encoder)
                notes.update(encoder.notes)
                return found

        published = files.write(where, document, before, total + sum(store.nbytes for store in stores))
        published.notes = notes
        known.checkpoints[where] = published


@contextmanager
def loading(path: str | os.PathLike[str], extra: Decode) -> Iterator[tuple[Any, Decoder, Callable[[Lock], None]]]:
    """Read a file: gives the document that `describe` returned, a decoder, and what to call when all is read.

    Raises:
        DamagedFileError: the file is not what was saved.
    """
    where = Path(path).resolve()
    with files.reading(where) as reader:
        decoder = Decoder(reader, extra)
        before = reader.checkpoint()

        def finish(lock: Lock) -> None:
            decoder.finish()
            before.notes = {name: (weakref.ref(knows), knows.mark()) for name, knows in decoder.knowing.items()}
            _known.setdefault(lock, _Known()).checkpoints[where] = before

        try:
            yield reader.document, decoder, finish
        except (files.DamagedFileError, WrongClassError, ImportError, MemoryError, OSError):
            raise
        except Exception as error:  # of checks, constructors, libraries: what the file says makes no sense
            raise reader.damaged(f"{type(error).__name__}: {error}") from error


def _codec_document(codec: Codec, encoder: Encoder, where: str) -> list[Any]:
    own = {field.name: getattr(codec, field.name) for field in fields(codec)}
    return [
        codec.name,
        {
            key: {"codec": _codec_document(value, encoder, where)}
            if isinstance(value, Codec)
            else encoder.value(value, f"{where}/codec/{key}")
            for key, value in own.items()
        },
    ]


def _count(frames: Any, tables: list[NDArray[np.uint32]]) -> None:
    """Compute what follows from the ids: how often each is referred to, and what is free."""
    n = len(frames.cells) if not isinstance(frames, FrameStore) else len(frames.offsets)
    counts = np.zeros(n, np.int64)
    recent: list[NDArray[Any]] = [frames.recent_ids] if isinstance(frames, FrameStore) else []
    for ids in (*tables, *recent):
        if ids.size and not 0 <= ids.min() <= ids.max() < n:
            raise ValueError("an id is of no frame")
        for start in range(0, ids.size, _IDS):
            some = ids.reshape(-1)[start : start + _IDS]
            first = some.min()  # of frames that came together ids are near each other
            found = np.bincount(some - first)
            counts[first : first + len(found)] += found
    counts[0] = 1
    frames.counts = counts.astype(np.uint32)
    free = np.flatnonzero(counts == 0)[::-1]
    if not isinstance(frames, FrameStore):
        frames.free = free
        return
    heap, alive = frames.heap, np.flatnonzero(counts[1:]) + 1
    for start in range(0, len(alive), _IDS):
        checks.payloads(frames, alive[start : start + _IDS])
    frames.n_free, frames.free = len(free), np.zeros(n, np.uint32)
    frames.free[: len(free)] = free
    heap.alive = np.bincount(frames.offsets[alive] // heap.segment_bytes, minlength=heap.n_segments)
    heap.free = [segment for segment in np.flatnonzero(heap.alive == 0)[::-1].tolist() if segment != heap.segment]
    last = np.zeros((*frames.recent_ids.shape, 8 * frames.n_words), np.uint8)
    decoded = np.empty((frames.recent_ids.size, frames.frame_bytes), np.uint8)
    frames.take(frames.recent_ids.reshape(-1), decoded)
    last[..., : frames.frame_bytes] = decoded.reshape(*frames.recent_ids.shape, -1)
    frames.recent = last.view(np.uint64)
    frames.__setstate__({})


def save_array(array: FrameArray, path: str | os.PathLike[str]) -> None:
    """Save one array; see `CompressedArray.save`."""
    store = array.store

    def describe(encoder: Encoder) -> Any:
        return {"class": "CompressedArray", "max_bytes": store.budget.max_bytes, "array": encoder.value(array, "array")}

    save(path, store.lock, [store], describe, nothing)


def load_array(path: str | os.PathLike[str]) -> FrameArray:
    """Return the array that was saved; see `CompressedArray.load`."""
    with loading(path, nothing) as (document, decoder, finish):
        content = document["content"]
        if content["class"] != "CompressedArray":
            raise WrongClassError(f"{path} holds a {content['class']}: load it with that class")
        budget = Budget(content["max_bytes"])
        (store,) = document["stores"]
        decoder.store(store, lambda *args, **settings: ObservationStore(*args, budget=budget, **settings))
        array: FrameArray = decoder.value(content["array"])
        finish(array.store.lock)
    return array


def nothing(*args: Any) -> Any:
    """Know no more kinds of values: an `Encode` and a `Decode`."""
    return NotImplemented
