"""`none`: observations as they are, in one dense tensor on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.utils import get_device

from sb3_extra_buffers.codecs.base import Bytes, Ints
from sb3_extra_buffers.frames.lock import Lock
from sb3_extra_buffers.frames.store import Ids
from sb3_extra_buffers.gpu_buffers.transfer import to_device

_NO_CELLS = np.zeros(0, np.int64)


class DenseFrames:
    """Frames by id like a `FrameStore`, each in a cell of its own, nothing compared. Cell 0 is the frame of zeros."""

    stack = 1
    is_holding = False
    likes_pixels = False

    def __init__(self, frame_bytes: int, lock: Lock) -> None:
        self.frame_bytes = frame_bytes
        self.lock = lock
        self.cells = torch.zeros((1, frame_bytes), dtype=torch.uint8)
        self.counts = np.ones(1, np.uint32)
        self.free = _NO_CELLS

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            return {**vars(self), "cells": self.cells.cpu().numpy(), "device": str(self.cells.device)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device = get_device(state.pop("device"))
        vars(self).update(state)
        self.cells = torch.from_numpy(state["cells"]).to(device)

    def move(self, device: torch.device) -> None:
        """Keep the cells on `device` from now on."""
        self.cells = self.cells.to(device)

    def reserve(self, n: int) -> None:
        """Make room for `n` frames."""
        more = n + 1 - len(self.counts)
        if more > 0:
            known = len(self.counts)
            cells = self.cells.new_empty((known + more, self.frame_bytes))
            cells[:known] = self.cells
            self.cells = cells
            self.counts = np.pad(self.counts, (0, more))
            self.free = np.concatenate([np.arange(known + more - 1, known - 1, -1), self.free])

    def put(self, frames: Bytes, streams: Ints) -> Ids:
        """Store frames `[n, 1, frame_bytes]`; returns ids `[n, 1]`."""
        ids: Ids = self.put_blocks([frames], streams)[0]
        return ids

    def put_blocks(self, blocks: Sequence[Bytes], streams: Ints, gone: Sequence[Ids] = ()) -> Ids:
        """Release `gone` and store several blocks in one transfer; returns ids `[blocks, n, 1]`."""
        if gone:
            self.release(np.concatenate(gone))
        frames = np.stack(blocks)[:, :, 0]  # [blocks, n, frame_bytes]
        n = len(frames) * len(streams)
        if n > len(self.free):
            self.free = np.flatnonzero(self.counts == 0)[::-1]  # also those that an interrupted call has lost
            self.reserve(int(np.count_nonzero(self.counts)) - 1 + n)
        ids, self.free = self.free[len(self.free) - n :], self.free[: len(self.free) - n]
        places, values = to_device([ids, frames.reshape(n, self.frame_bytes)], self.cells.device)
        self.cells.index_copy_(0, places, values)
        self.counts[ids] = 1
        return ids.astype(np.uint32).reshape(len(blocks), len(streams), 1)

    def drop_held(self, n: int) -> None:
        """Nothing to do: no block is held, each is sent when it comes."""

    def take(self, ids: NDArray[Any], out: Bytes) -> None:
        """Read the frames `ids` into `out`; waits for the device."""
        (places,) = to_device([ids.astype(np.int64)], self.cells.device)
        out[...] = self.cells[places].cpu().numpy()

    def retain(self, ids: NDArray[Any]) -> None:
        """Count each of `ids` once more."""
        np.add.at(self.counts, ids.reshape(-1), 1)
        self.counts[0] = 1

    def release(self, ids: NDArray[Any]) -> None:
        """Count each of `ids` once less; the cells of those that nobody counts are free."""
        ids = ids.reshape(-1)
        np.subtract.at(self.counts, ids[ids > 0], 1)
        gone = np.unique(ids[self.counts[ids] == 0]).astype(np.int64)
        self.free = np.concatenate([self.free, gone])

    @property
    def n_frames(self) -> int:
        """How many frames are stored."""
        return len(self.counts) - 1 - len(self.free)

    @property
    def nbytes(self) -> int:
        """Every byte of cells and tables."""
        return self.cells.nbytes + self.counts.nbytes + self.free.nbytes
