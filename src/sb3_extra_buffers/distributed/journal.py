"""Which chunks a shard has stored since its last checkpoint. It outlives the shard's process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

BASE = -1
"""Writer of a file's first entry: all that the process began with. Its number is that of the checkpoint."""

LOST = -2
"""Writer of the second entry: all that was lost before that checkpoint. Its number is the journal's own."""


class Chunk(NamedTuple):
    """Some steps, as one writer sent them.

    Attributes:
        writer: who sent it.
        number: of the chunks that this writer sent, which one.
        transitions: how many.
        nbytes: how large it was on the way.
    """

    writer: int
    number: int
    transitions: int
    nbytes: int

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from all others."""
        return self.writer, self.number


class Journal:
    """A file of chunks for each process that a shard has had, 32 bytes a chunk.

    A write is one system call: when the process is killed, it is there or not. Files are numbered in the order of the
    processes, and the next file is made before this one is read: whoever writes, and then finds no next file, knows
    that what it wrote will be read.

    Args:
        folder: for the files.
        name: of the shard.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._number = max(self._numbers(), default=-1) + 1
        while True:
            try:
                self._file = os.open(self.path, flags, 0o666)
                break
            except FileExistsError:
                self._number += 1
        self._size = 0

    @property
    def path(self) -> Path:
        """The file of this process."""
        return self._path(self._number)

    @property
    def is_replaced(self) -> bool:
        """Whether another process has taken over: nothing that is stored from now on would be known to it."""
        return self._path(self._number + 1).exists()

    def read(self) -> list[list[Chunk]]:
        """Return what earlier processes wrote since the checkpoint, oldest first: `BASE`, `LOST`, and chunks."""
        width = len(Chunk._fields)
        lives = []
        for number in self._earlier():
            found = np.fromfile(self._path(number), np.int64)
            rows = found[: found.size // width * width].reshape(-1, width).tolist()
            life = [Chunk(*row) for row in rows]
            if [chunk.writer for chunk in life[:2]] == [BASE, LOST]:  # else it is empty: it was forgotten
                lives.append(life)
        return lives

    def append(self, chunk: Chunk) -> None:
        """Add a chunk.

        Raises:
            OSError: it cannot be written, or the journal was removed.
        """
        self._write(chunk)

    def begin(self, base: Chunk, lost: Chunk) -> None:
        """Write what this process begins with, in place of all it has written."""
        os.lseek(self._file, 0, os.SEEK_SET)
        self._size = 0
        self._write(base, lost)
        os.ftruncate(self._file, self._size)

    def forget(self) -> None:
        """Forget what earlier processes wrote. Empty files stay, so that each of them knows that it was replaced."""
        for number in self._earlier():
            os.truncate(self._path(number), 0)

    def remove(self) -> None:
        """Delete the files. Nothing can be added then."""
        with suppress(OSError):  # closed before
            os.close(self._file)
        self._file = -1  # the system gives the old number to the next file that is opened
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)

    def _write(self, *chunks: Chunk) -> None:
        data = np.array(chunks, np.int64).tobytes()
        written = os.write(self._file, data)
        if written < len(data):  # the disk is full; half an entry would spoil all that follow
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise OSError(f"only {written} of {len(data)} bytes could be written to {self.path}: is the disk full?")
        self._size += written

    def _earlier(self) -> list[int]:
        return sorted(number for number in self._numbers() if number < self._number)

    def _numbers(self) -> list[int]:
        found = (path.name.split(".")[-2] for path in self._folder.glob(f"{self._name}.*.journal"))
        return [int(number) for number in found if number.isdecimal()]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}.{number}.journal"
