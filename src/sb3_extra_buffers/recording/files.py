"""Records in files: a zip of NumPy arrays (`.npz`) and a header. Reading executes nothing and checks every byte."""

from __future__ import annotations

import json
import os
import secrets
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FORMAT = "sb3-extra-buffers record 1"
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


class Parts:
    """Arrays of an open file, by name."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array.

        Raises:
            ValueError: there is none of that name, shape and dtype.
        """
        if f"{name}.npy" not in self._archive.namelist():
            raise ValueError(f"it has no {name}")
        data = BytesIO(self._archive.read(f"{name}.npy"))  # all of it: now its checksum is compared
        array: NDArray[Any] = np.lib.format.read_array(data, allow_pickle=False)
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"its {name} are {array.dtype}{array.shape}, not {dtype}{shape}")
        return array


def write(path: Path, about: dict[str, Any], arrays: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Write a header and named arrays to `path`, whole or not at all."""
    with (
        replacing(path) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        archive.writestr("about.json", json.dumps({"format": _FORMAT, **about}))
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.ascontiguousarray(array), allow_pickle=False)


@contextmanager
def reading(path: Path) -> Iterator[tuple[dict[str, Any], Parts]]:
    """Open what `write` wrote: the header, and the arrays.

    Raises:
        ValueError: while it is open, for all that is wrong with the file.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                about = json.loads(archive.read("about.json"))
                if not isinstance(about, dict) or about.pop("format", None) != _FORMAT:
                    raise ValueError(f"its format is not {_FORMAT!r}")
                yield about, Parts(archive)
        except _DAMAGE as error:
            raise ValueError(f"{path} is damaged, or no such record: {error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write in the folder of `path`; it takes that name once it is complete and on the disk."""
    new = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")  # ffmpeg goes by the ending
    try:
        yield new
        with new.open("rb") as written:
            os.fsync(written.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
