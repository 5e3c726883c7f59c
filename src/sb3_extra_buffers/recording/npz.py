"""Records as they were saved before they had the format of all buffers: zips of NumPy arrays. Read, not written.

Reading executes nothing, checks every byte, and allocates no more than the steps need.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.frames.files import DamagedFileError

if TYPE_CHECKING:
    from sb3_extra_buffers.recording.buffers import FramelessRecordBuffer

    Record = TypeVar("Record", bound=FramelessRecordBuffer)

_FORMAT = "sb3-extra-buffers record 1"
_CHUNK = 128  # frames in an array
_HEADER = 1 << 14  # bytes of what is no array, at most
# What zipfile and NumPy raise for damaged files.
_DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # and NotImplementedError
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def is_npz(path: Path) -> bool:
    """Tell whether a file is a zip archive, by how it begins."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def has_frames(path: Path) -> bool:
    """Tell whether a record has frames.

    Raises:
        DamagedFileError: the file is damaged.
    """
    with _opened(path) as archive:
        return "frames-000000.npy" in archive.namelist()


def load(cls: type[Record], path: Path) -> Record:
    """Return the buffer that was saved.

    Raises:
        DamagedFileError: the file is damaged, no record, or has no frames where `cls` keeps them.
    """
    with _opened(path) as archive:
        return _load(cls, archive)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except _DAMAGE as error:
            raise DamagedFileError(f"{path} is damaged, or no such record: {error}") from error


def _load(cls: type[Record], archive: zipfile.ZipFile) -> Record:
    about = json.loads(_content(archive, "about.json", 0))
    if not isinstance(about, dict) or about.pop("format", None) != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    added, cut = int(about.pop("added")), bool(about.pop("cut"))
    buffer = cls(**{**about, "res": tuple(about["res"])})
    buffer._added, buffer._cut = added, cut
    rows = buffer._rows(slice(None))
    for name in ("rewards", "actions", "features", "dones"):
        array = getattr(buffer, name)
        array[rows] = _array(archive, name, (len(rows), *array.shape[1:]), array.dtype)
    if hasattr(buffer, "frames"):
        frames = buffer.frames
        for i, start in enumerate(range(0, len(rows), _CHUNK)):
            chunk = rows[start : start + _CHUNK]
            frames[chunk] = _array(archive, f"frames-{i:06}", (len(chunk), *frames.shape[1:]), frames.dtype)
    return buffer


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array.

    Raises:
        ValueError: there is none of that name, shape and dtype.
    """
    if f"{name}.npy" not in archive.namelist():
        raise ValueError(f"it has no {name}")
    content = _content(archive, f"{name}.npy", prod(shape) * dtype.itemsize)
    header = BytesIO(content[:_HEADER])
    if np.lib.format.read_magic(header) != (1, 0):
        raise ValueError(f"its {name} have a header of another kind")
    found = np.lib.format.read_array_header_1_0(header)
    if found != (shape, False, dtype):
        raise ValueError(f"its {name} are {found[2]}{found[0]}, not {dtype}{shape}")
    return np.frombuffer(content, dtype, prod(shape), header.tell()).reshape(shape) if prod(shape) else np.zeros(shape)


def _content(archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    """Return the bytes of a part that should have about `size`: all of it, so its checksum is compared."""
    claimed = archive.getinfo(name).file_size
    if claimed > size + _HEADER:
        raise ValueError(f"{name} claims {claimed:,} bytes")
    return archive.read(name)
