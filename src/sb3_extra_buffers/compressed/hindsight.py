"""What SB3's `HerReplayBuffer.add` writes outside its row: lengths of episodes. And how to put them back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer


class Episodes(NamedTuple):
    """Of each env, as an `add` finds them.

    Attributes:
        begun: the row that the running episode began in.
        start: the first row of the episode that is about to be overwritten.
        length: its length; 0 if there is none.
    """

    begun: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]


def episodes(buffer: Any) -> Episodes | None:
    """Return what `put_back` needs; None for buffers that know no episodes."""
    if not isinstance(buffer, HerReplayBuffer):
        return None
    row = buffer.pos
    return Episodes(buffer._current_ep_start.copy(), buffer.ep_start[row].copy(), buffer.ep_length[row].copy())


def put_back(buffer: Any, row: int, before: Episodes) -> None:
    """Undo what an `add` to `row` has done to other rows.

    SB3 sets the lengths in the rest of an overwritten episode to 0: all of them were `length`. Where an episode ends it
    writes the length to all its rows, which had none.
    """
    for env, (begun, start, length) in enumerate(zip(*(part.tolist() for part in before), strict=True)):
        if buffer._current_ep_start[env] != begun:
            stop = row + 1 if begun <= row else row + 1 + buffer.buffer_size
            buffer.ep_length[np.arange(begun, stop) % buffer.buffer_size, env] = 0
        if length > 0:
            buffer.ep_length[np.arange(row, start + length) % buffer.buffer_size, env] = length
    buffer._current_ep_start[:] = before.begun
