"""Which chunks a shard has stored since its last checkpoint. It outlives the shard's process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

BASE = -1
"""Writer of the entry that stands for all that the checkpoint holds."""

_AGAIN = -2  # writer of the entry that says: from here on by another process


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
    """A file of chunks, 32 bytes each. A write is one system call: when the process is killed, it is there or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)

    def read(self) -> list[list[Chunk]]:
        """Return the chunks of each process that wrote since the checkpoint, oldest first."""
        found = np.fromfile(self.path, np.int64)
        width = len(Chunk._fields)
        lives: list[list[Chunk]] = [[]]
        for row in found[: found.size // width * width].reshape(-1, width).tolist():
            chunk = Chunk(*row)
            if chunk.writer == _AGAIN:
                lives.append(lives[0][:1])  # it began with the same checkpoint
            else:
                lives[-1].append(chunk)
        return lives

    def append(self, chunk: Chunk) -> None:
        """Add a chunk."""
        os.write(self._file, np.array(chunk, np.int64).tobytes())

    def go_on(self) -> None:
        """Say that another process writes from here on."""
        self.append(Chunk(_AGAIN, 0, 0, 0))

    def begin(self, base: Chunk) -> None:
        """Forget all chunks: they are in a checkpoint now, for which `base` stands."""
        os.ftruncate(self._file, 0)
        self.append(base)

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError):  # closed before
            os.close(self._file)
        self.path.unlink(missing_ok=True)
