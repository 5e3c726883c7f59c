"""The file that buffers are saved to: blocks of bytes, an index of them, and where the index is. Nothing executes.

    0      header     magic, format version, byte order, a token that names this file; checksum
    512    places     4 x 512 bytes: two slots, each written twice. Which index is published: sequence, offset, size,
                      checksum of the index, checksum of the place itself
    2560   blocks     bytes of arrays, and indexes, in the order they were written

The index is JSON: a document, and for each array its dtype, its shape and its blocks, each with offset, size and
checksum. A first save writes a temporary file, syncs it, and renames it. Later saves of the same buffer append what
has changed and a new index, sync, and then write the other slot: whatever happens on the way, the last published state
is there. All sizes are checked against the size of the file before anything is allocated.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import secrets
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import optional

VERSION = 1
"""Version of the format that is written. Every version up to this one is read."""

BLOCK = 1 << 18
"""Bytes of a block, unless an array has very many."""

_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
_MAGIC = b"\x89sb3xb\r\n"
_HEADER = struct.Struct("<8sI8s16s")
_PLACE = struct.Struct("<QQQ8s")
_SECTOR = 512
_START = 5 * _SECTOR
_MOST_BLOCKS = 1 << 15  # of one array
_INDEX_BYTES = 1 << 27  # at most
_MUCH = 1 << 20  # bytes from which the disk need not wait for more
_LARGE = 1 << 28  # bytes from which progress is shown
_NUMBERS = "biufc"
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class DamagedFileError(ValueError):
    """A file that is not what was saved: damaged, cut short, or never a saved buffer."""


class Block(NamedTuple):
    """Where some bytes of an array lie."""

    offset: int
    size: int
    digest: str


_NO_BLOCK = Block(0, 0, "")


@dataclass
class Checkpoint:
    """A published state of a file, as the one who wrote or read it remembers it.

    Attributes:
        token: which file it is.
        sequence: how many states were published in it.
        digest: of the index. With the others it says which state: a copy of the file may have gone another way.
        end: where the next block goes.
        live: bytes that this state needs.
        blocks: those of each array, by name.
        notes: what else the writer wants to remember.
    """

    token: bytes
    sequence: int
    digest: str
    end: int
    live: int
    blocks: dict[str, list[Block]]
    notes: dict[str, Any] = field(default_factory=dict)


class Writer:
    """Appends arrays to a file; those blocks that `before` has already are not written again."""

    def __init__(self, file: FileIO, at: int, before: Checkpoint | None, progress: Callable[[int], object]) -> None:
        self.at = at
        self.arrays: dict[str, dict[str, Any]] = {}
        self.live = 0
        self._file = file
        self._begun = at  # up to where the system was told to begin
        self._before = {} if before is None else before.blocks
        self._progress = progress

    def array(
        self,
        name: str,
        array: NDArray[Any],
        *,
        block_bytes: int | None = None,
        changed: tuple[NDArray[np.bool_], int] | None = None,
        look: Callable[[int, int], object] | None = None,
    ) -> str:
        """Write an array of numbers, and return its name for the document.

        Args:
            name: unique in the document, and the same for the same array the next time.
            array: what to write.
            block_bytes: where to cut it. None: as suits its size.
            changed: for each part whether it may have changed since, and the bytes of a part. None: that is found out
                by checksum.
            look: called with the first byte and the end of each block before it is read.
        """
        if name in self.arrays:
            raise ValueError(f"two arrays are named {name!r}")
        if not _holds_numbers(array.dtype):
            raise TypeError(f"{name} is an array of {array.dtype}: only numbers can be saved")
        items = max(1, (block_bytes or block_size(array.nbytes)) // array.itemsize)
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        n = -(-array.size // items)
        sizes = np.full(n, items * array.itemsize, np.int64)
        sizes[-1:] = array.nbytes - sizes[:-1].sum()
        blocks: list[Block] = self._before.get(name, [])[:n]
        looked = np.ones(n, np.bool_)  # else it is where it was, and has not changed
        if changed is not None:
            as_large = np.fromiter((block.size for block in blocks), np.int64, len(blocks)) == sizes[: len(blocks)]
            looked[: len(blocks)] = _holding(*changed, sizes)[: len(blocks)] | ~np.logical_and.accumulate(as_large)
        blocks = [*blocks, *[_NO_BLOCK] * (n - len(blocks))]
        for i in looked.nonzero()[0].tolist():
            if look is not None:
                look(i * items * array.itemsize, min((i + 1) * items * array.itemsize, array.nbytes))
            part = np.ascontiguousarray(flat[i * items : (i + 1) * items]).view(np.uint8)
            digest = checksum(part)
            if (blocks[i].size, blocks[i].digest) != (part.size, digest):
                blocks[i] = Block(self.at, part.size, digest)
                self.write(part)
            self._progress(part.size)
        described = array.dtype.str if array.dtype.names is None else [list(part) for part in array.dtype.descr]
        self.arrays[name] = {"dtype": described, "shape": list(array.shape), "blocks": blocks}
        self.live += array.nbytes
        if self._before and self.at - self._begun >= _MUCH:
            self._begin()
        return name

    def _begin(self) -> None:
        """Let the system write to the disk what was appended, while we look at the rest: Linux takes this for that."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._file.fileno(), self._begun, self.at - self._begun, os.POSIX_FADV_DONTNEED)
        self._begun = self.at

    def write(self, memory: Any) -> None:
        """Append bytes."""
        at, view = self.at, memoryview(memory).cast("B")
        self._file.seek(at)
        while view:
            written = self._file.write(view) or 0
            view, at = view[written:], at + written
        self.at = at


class Reader:
    """A published state of a file.

    Args:
        file: open to read.
        path: for messages.
        index: whether to read what the state is, or only which one.

    Raises:
        DamagedFileError: there is none, or it is not as it was written.
    """

    def __init__(self, file: FileIO, path: Path, index: bool = True) -> None:
        self._file, self._path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.token = self._read_header()
        self.sequence, at, size, self.digest = self._read_place()
        if index:
            self._read_index(at, size)

    def _read_index(self, at: int, size: int) -> None:
        if size > _INDEX_BYTES:
            raise self.damaged(f"its index claims {size:,} bytes")
        index = np.empty(self._within(at, size), np.uint8)
        self._read_into(at, index)
        if checksum(index) != self.digest:
            raise self.damaged("the checksum of its index is wrong")
        try:
            parsed = from_json(index)
            self.document: Any = parsed["document"]
            self.arrays: dict[str, dict[str, Any]] = parsed["arrays"]
            self.blocks = {name: [Block(*block) for block in entry["blocks"]] for name, entry in self.arrays.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self.damaged(f"its index makes no sense: {error}") from error
        blocks = [block for blocks in self.blocks.values() for block in blocks]
        self.live = sum(self._within(block.offset, block.size) for block in blocks)
        if self.live > self.size:
            raise self.damaged("its index claims more bytes than the file has")
        self.end = max([at + size, *(block.offset + block.size for block in blocks)])
        self._progress: Callable[[int], object] = _silent

    def checkpoint(self) -> Checkpoint:
        """Return what a later save needs to go on with this file."""
        return Checkpoint(self.token, self.sequence, self.digest, self.end, self.live, self.blocks)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show how much is read, where it is much."""
        with _progress(self.live, f"Loading {self._path.name}") as self._progress:
            yield

    def array(self, name: str, room: Callable[[int], NDArray[np.uint8]] | None = None) -> NDArray[Any]:
        """Return an array, checked.

        Args:
            name: which one.
            room: asked for so many bytes of memory to read it to, and for each block again. None: new memory.

        Raises:
            DamagedFileError: it is not as it was written.
        """
        try:
            entry, blocks = self.arrays.pop(name), self.blocks[name]  # once: what is allocated is no more than the file
            described = entry["dtype"]
            dtype = np.dtype(described if isinstance(described, str) else [tuple(part) for part in described])
            shape = tuple(entry["shape"])
            if not _holds_numbers(dtype) or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"{dtype}, {shape}")
            total = prod(shape) * dtype.itemsize
        except (ValueError, TypeError, KeyError, SyntaxError) as error:
            raise self.damaged(f"{name} makes no sense: {error}") from error
        if total != sum(block.size for block in blocks):
            raise self.damaged(f"{name} is not as large as it says")
        memory, at = np.empty(total, np.uint8) if room is None else room(total), 0
        for block in blocks:
            part = (memory if room is None else room(total))[at : at + block.size]
            self._read_into(block.offset, part)
            if checksum(part) != block.digest:
                raise self.damaged(f"a checksum of {name} is wrong")
            at += block.size
            self._progress(block.size)
        return memory if dtype == np.uint8 and len(shape) == 1 else memory.view(dtype).reshape(shape)

    def damaged(self, problem: str) -> DamagedFileError:
        """Return the error that says so."""
        return DamagedFileError(f"{self._path} is damaged or was not saved by this package: {problem}")

    def _read_header(self) -> bytes:
        head = np.zeros(_SECTOR, np.uint8)
        if self.size < _START:
            raise self.damaged(f"it has {self.size} bytes only")
        self._read_into(0, head)
        magic, version, order, token = _HEADER.unpack_from(head.data)
        if magic != _MAGIC:
            raise self.damaged("it does not begin as saved buffers do")
        if bytes(head[_HEADER.size : _HEADER.size + 8]) != bytes.fromhex(checksum(head[: _HEADER.size])):
            raise self.damaged("the checksum of its header is wrong")
        if version > VERSION:
            raise ValueError(
                f"{self._path} has format version {version}, this package reads up to {VERSION}: update it"
            )
        if order.rstrip(b"\0").decode("ascii") != sys.byteorder:
            raise ValueError(f"{self._path} was written on a machine of another byte order, and cannot be read here")
        return bytes(token)

    def _read_place(self) -> tuple[int, int, int, str]:
        places = np.zeros((4, _SECTOR), np.uint8)
        self._read_into(_SECTOR, places.reshape(-1))
        found = [_unpack_place(place) for place in places]
        newest = max((place for place in found if place is not None), default=None)
        if newest is None:
            raise self.damaged("it does not say where its index is")
        return newest

    def _within(self, at: int, size: int) -> int:
        if not (type(at) is int and type(size) is int and _START <= at <= self.size and 0 <= size <= self.size - at):
            raise self.damaged(f"it has {self.size:,} bytes, and claims {size} at {at}")
        return size

    def _read_into(self, at: int, out: NDArray[np.uint8]) -> None:
        self._file.seek(at)
        view = out.data
        while view:
            got = self._file.readinto(view)
            if not got:
                raise self.damaged("it is cut short")
            view = view[got:]


def write(
    path: Path,
    describe: Callable[[Writer], Any],
    before: Checkpoint | None = None,
    total: int = 0,
) -> Checkpoint:
    """Save what `describe` writes and returns as a document. Whole or not at all: until then `path` stays as it is.

    Args:
        path: the file.
        describe: called once; it may hold a lock, since syncing and publishing comes later.
        before: what is known of this file. If that is still what it holds, only what has changed is written.
        total: about how many bytes there are, for a progress bar.

    Raises:
        OSError: no room, no permission, another process is saving to this file.
    """
    try:
        with _progress(total, f"Saving {path.name}") as progress:
            if before is not None and before.end < 2 * before.live + 64 * BLOCK:  # else much of the file is dead
                published = _append(path, describe, before, progress)
                if published is not None:
                    return published
            return _replace(path, describe, progress)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"no room to save ({os.strerror(error.errno)}); what was saved before is intact, and so is the buffer",
            str(path),
        ) from error


def _replace(path: Path, describe: Callable[[Writer], Any], progress: Callable[[int], object]) -> Checkpoint:
    """Write a new file, and then give it the name of the old one."""
    temporary = path.with_name(f".{path.name}.tmp")  # the same each time: the next save does away with a leftover
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to save to", str(path.parent))
    token = secrets.token_bytes(16)
    head = _HEADER.pack(_MAGIC, VERSION, sys.byteorder.encode("ascii"), token)
    head += bytes.fromhex(checksum(np.frombuffer(head, np.uint8)))
    with _locked(temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)) as file:
        try:
            file.truncate(0)
            _take_mode(file, path)
            writer = Writer(file, 0, None, progress)
            writer.write(head.ljust(_START, b"\0"))
            place = _write_index(file, writer, describe, 1)
            published = _publish(file, writer, place, token, 1)
            if _fcntl is None:
                file.close()  # Windows renames no open file
            os.replace(temporary, path)
        except BaseException:
            if _fcntl is None:
                file.close()
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)
    return published


def _append(
    path: Path, describe: Callable[[Writer], Any], before: Checkpoint, progress: Callable[[int], object]
) -> Checkpoint | None:
    """Write what has changed to the end of the file, then publish it; None if the file is not that of `before`."""
    try:
        with _locked(path, os.O_RDWR) as file:
            if not _holds(file, path, before):
                return None
            sequence = before.sequence + 1
            try:
                file.truncate(before.end)
                writer = Writer(file, before.end, before, progress)
                place = _write_index(file, writer, describe, sequence)
            except BaseException:
                file.truncate(before.end)
                raise
            return _publish(file, writer, place, before.token, sequence)
    except FileNotFoundError:
        return None


def _holds(file: FileIO, path: Path, before: Checkpoint) -> bool:
    """Tell whether what was published last in a file is `before`."""
    try:
        found = Reader(file, path, index=False)
    except ValueError:  # damaged, or of another version
        return False
    known = (before.token, before.sequence, before.digest)
    return (found.token, found.sequence, found.digest) == known and found.size >= before.end


def _write_index(file: FileIO, writer: Writer, describe: Callable[[Writer], Any], sequence: int) -> bytes:
    """Write everything but what publishes it, which is returned."""
    document = describe(writer)
    index = to_json({"document": document, "arrays": writer.arrays})
    if len(index) > _INDEX_BYTES:
        raise ValueError(f"the index has {len(index):,} bytes, more than {_INDEX_BYTES:,}: too much that is no array")
    place = _PLACE.pack(sequence, writer.at, len(index), bytes.fromhex(checksum(np.frombuffer(index, np.uint8))))
    writer.write(index)
    sync(file.fileno())
    return place + bytes.fromhex(checksum(np.frombuffer(place, np.uint8)))


def _publish(file: FileIO, writer: Writer, place: bytes, token: bytes, sequence: int) -> Checkpoint:
    end = writer.at
    for copy in (0, 1):
        writer.at = _SECTOR * (1 + 2 * (sequence % 2) + copy)
        writer.write(place)
    sync(file.fileno(), only_data=True)
    blocks = {name: entry["blocks"] for name, entry in writer.arrays.items()}
    digest = _PLACE.unpack_from(place)[3].hex()
    return Checkpoint(token, sequence, digest, end, writer.live, blocks)


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """Open a file to read the state that was published last.

    Raises:
        DamagedFileError: there is none.
    """
    with FileIO(path, "r") as file:
        reader = Reader(file, path)
        with reader.progress():
            yield reader


def to_json(document: Any) -> bytes:
    """Return the text of a document; the same for the same document."""
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def from_json(text: NDArray[np.uint8]) -> Any:
    """Return the document of a text."""
    return json.loads(text.tobytes())


def checksum(memory: NDArray[np.uint8]) -> str:
    """Return 64 bits that change when bytes do: a CRC-32, which sees every small change, and an Adler-32.

    A save also looks for what has changed by comparing them: a CRC alone would be too short for that.
    """
    library = _checksums()
    return f"{library.crc32(memory.data):08x}{library.adler32(memory.data):08x}"


@functools.cache
def _checksums() -> Any:
    """Return the library that computes them fastest; the checksums are the same."""
    return importlib.import_module("isal.isal_zlib" if optional.has_igzip() else "zlib")


def block_size(n_bytes: int) -> int:
    """Return how many bytes the blocks of an array of `n_bytes` have."""
    size = BLOCK
    while n_bytes > size * _MOST_BLOCKS:
        size *= 2
    return size


def _holding(parts: NDArray[np.bool_], part_bytes: int, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell for blocks of these sizes, one after another, whether they have bytes of any of the `parts`."""
    ends = sizes.cumsum()
    if parts.size * part_bytes < sizes.sum():
        raise ValueError(f"{parts.size} parts of {part_bytes} bytes are not all of the array")
    counted = np.concatenate([[0], parts.cumsum()])
    holding: NDArray[np.bool_] = counted[-(-ends // part_bytes)] > counted[(ends - sizes) // part_bytes]
    return holding


def _holds_numbers(dtype: np.dtype[Any]) -> bool:
    parts = [dtype] if dtype.fields is None else [part for part, *_ in dtype.fields.values()]
    return all(part.kind in _NUMBERS for part in parts)


def _unpack_place(place: NDArray[np.uint8]) -> tuple[int, int, int, str] | None:
    packed = place[: _PLACE.size]
    if bytes(place[_PLACE.size : _PLACE.size + 8]) != bytes.fromhex(checksum(packed)) or not packed.any():
        return None
    sequence, at, size, digest = _PLACE.unpack(packed.tobytes())
    return sequence, at, size, digest.hex()


@contextmanager
def _locked(path: Path, flags: int) -> Iterator[FileIO]:
    """Open a file that no other process saves to meanwhile."""
    while True:
        file = FileIO(os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666), "r+")
        try:
            if not _lock(file):
                raise OSError(errno.EAGAIN, "another process is saving to this file", str(path))
            try:
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # renamed since it was opened
                    continue
            except FileNotFoundError:
                continue
            yield file
            return
        finally:
            if _fcntl is not None and not file.closed:
                with suppress(OSError):
                    _fcntl.flock(file.fileno(), _fcntl.LOCK_UN)  # a forked child may have the file open, too
            file.close()


def _lock(file: FileIO) -> bool:
    """Tell whether nobody else has the file locked, and lock it; some file systems, and Windows, have no such locks."""
    if _fcntl is not None:
        try:
            _fcntl.flock(file.fileno(), _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    return True


def _take_mode(file: FileIO, path: Path) -> None:
    """Give a new file the permissions of the one that it replaces: what only its owner may read stays so."""
    if hasattr(os, "fchmod"):
        with suppress(OSError):  # there is none, or its file system has no permissions
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))


def sync(file: int, only_data: bool = False) -> None:
    """Wait until an open file is on the disk; or only its bytes and where they are, without the time of the change."""
    if hasattr(_fcntl, "F_FULLFSYNC"):  # on macOS `fsync` leaves it in the disk's own memory
        with suppress(OSError):
            _fcntl.fcntl(file, _fcntl.F_FULLFSYNC)
            return
    if only_data and hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Wait until the names of files in a folder are on the disk, where the system can do that."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            sync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, *_UNSUPPORTED):
            raise


def _silent(n: int) -> None:
    """Show nothing."""


@contextmanager
def _progress(total: int, what: str) -> Iterator[Callable[[int], object]]:
    """Give something to call with bytes that are done; it shows a bar where much is to do, tqdm is there to draw it."""
    if total < _LARGE:
        yield _silent
        return
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        yield _silent
        return
    with tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        yield bar.update
