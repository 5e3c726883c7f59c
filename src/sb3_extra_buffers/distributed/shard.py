"""`Shard`: one part of a distributed buffer. A Ray actor that owns a compressed replay buffer."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import warnings
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    DamagedFileError,
    MemoryUsage,
)
from sb3_extra_buffers.distributed import wire
from sb3_extra_buffers.distributed.journal import BASE, LOST, Chunk, Journal
from sb3_extra_buffers.distributed.wire import Parcel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardSettings:
    """What a shard is made of.

    Attributes:
        name: unique; also of its files.
        buffer_size: transitions.
        observation_space: of the envs.
        action_space: of the envs.
        n_envs: envs of each writer.
        handle_timeout_termination: as of SB3's `ReplayBuffer`.
        buffer_kwargs: further arguments of the compressed buffer.
        folder: where checkpoints go. None: there are none.
        resume: whether to begin with the checkpoint of an earlier run.
    """

    name: str
    buffer_size: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    handle_timeout_termination: bool = True
    buffer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    resume: bool = False

    def packed(self) -> bytes:
        """Return the settings as a few bytes; the bounds of a space alone may be a megabyte."""
        return zlib.compress(ray.cloudpickle.dumps(self))  # type: ignore[no-untyped-call]

    @staticmethod
    def unpacked(packed: bytes) -> ShardSettings:
        """Return the settings that `packed` returned."""
        settings: ShardSettings = ray.cloudpickle.loads(zlib.decompress(packed))
        return settings

    @property
    def buffer_class(self) -> type[CompressedReplayBuffer] | type[CompressedDictReplayBuffer]:
        """The class for this kind of observations."""
        return CompressedDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else CompressedReplayBuffer

    @property
    def checkpoint(self) -> Path | None:
        """The file that a shard which died is restored from."""
        return None if self.folder is None else self.folder / f"{self.name}.buffer"

    def new_buffer(self, buffer_size: int | None = None) -> Any:
        """Return an empty buffer."""
        return self.buffer_class(
            self.buffer_size if buffer_size is None else buffer_size,
            self.observation_space,
            self.action_space,
            device="cpu",
            n_envs=self.n_envs,
            handle_timeout_termination=self.handle_timeout_termination,
            **self.buffer_kwargs,
        )


class Status(NamedTuple):
    """How a shard is.

    Attributes:
        life: differs after the shard was started again.
        size: transitions it holds.
        lost: transitions that it held when it died, and did not get back, ever.
        lost_bytes: their size on the way here.
        journal: differs after the shard was started again without its journal: what it lost then is not in `lost`.
        began: size and lost as this life began.
    """

    life: int
    size: int
    lost: int
    lost_bytes: int
    journal: int
    began: int


class Shard:
    """A part of a distributed buffer, as a Ray actor. Started again after it died, it goes on from its checkpoint.

    Args:
        packed: its settings. Small enough for Ray to remember: a shard can then always be started again.
    """

    def __init__(self, packed: bytes) -> None:
        self.settings = settings = ShardSettings.unpacked(packed)
        self.life = secrets.randbits(62)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray uses a name there that it deprecates
            again = ray.get_runtime_context().was_current_actor_reconstructed
        folder = Path(tempfile.gettempdir()) if settings.folder is None else settings.folder
        self.journal = Journal(folder, settings.name)
        goes_on = again or settings.resume
        if not goes_on:
            self.journal.forget()  # of another run
        lives = self.journal.read()
        restored = self._restored(again) if goes_on else None
        self._begin(settings.new_buffer() if restored is None else restored)
        self.ident = lives[0][1].number if lives else secrets.randbits(62)
        self.saved = getattr(restored, "checkpoint_number", max((life[0].number for life in lives), default=0))
        self.journal.begin(*self._header())
        self._count_lost(lives, restored is None)
        self.began = self.size + sum(chunk.transitions for chunk in self.lost.values())
        if goes_on:
            log.warning(
                "%s was started again with %d transitions; %d (%d bytes) are lost so far",
                *(settings.name, *self.status()[1:4]),
            )

    def _begin(self, buffer: Any) -> None:
        held, lost = getattr(buffer, "held_chunks", []), getattr(buffer, "lost_chunks", [])
        self.buffer = buffer
        self.chunks = deque(Chunk(*row) for row in np.asarray(held).tolist())  # what the buffer holds, oldest first
        self.lost = {chunk.key: chunk for chunk in (Chunk(*row) for row in np.asarray(lost).tolist())}
        self.known = {chunk.key for chunk in self.chunks}
        self.size = sum(chunk.transitions for chunk in self.chunks)

    def add(self, writer: int, number: int, parcel: Parcel) -> Status:
        """Store a chunk; one that is stored already is not stored again, so a call may be repeated."""
        if (writer, number) in self.known:
            return self.status()
        arrays = wire.unpack(parcel)
        rewards, dones, timeouts = (arrays[name] for name in ("rewards", "dones", "timeouts"))
        truncated = ({"TimeLimit.truncated": False}, {"TimeLimit.truncated": True})
        step = 0
        try:
            while step < len(rewards):  # SB3 adds step by step
                obs, next_obs = (self._observations(arrays, (slice(None), step, i)) for i in (0, 1))
                infos = [truncated[timeout] for timeout in timeouts[step].tolist()]
                self.buffer.add(obs, next_obs, arrays["actions"][step], rewards[step], dones[step], infos)
                step += 1
        finally:  # also where `max_bytes` ends it
            self._count(Chunk(writer, number, rewards[:step].size, parcel.nbytes))
        return self.status()

    def _count(self, chunk: Chunk) -> None:
        self.lost.pop(chunk.key, None)  # it was sent again
        self.chunks.append(chunk)
        self.known.add(chunk.key)
        self.size += chunk.transitions
        while self.size > self.buffer.buffer_size * self.buffer.n_envs:  # older rows were overwritten
            self._drop_rows()
        self.journal.append(chunk)
        self._end_if_replaced()  # before it is acknowledged

    def sample(self, n: int) -> tuple[Status, Parcel | None]:
        """Return `n` transitions, each drawn from all with the same chance; none if there are none."""
        if n == 0 or self.size == 0:
            return self.status(), None
        found = self.buffer.sample(n)
        arrays: dict[str, NDArray[Any]] = {}
        for name, obs, next_obs in _pairs(found.observations, found.next_observations):
            arrays[name] = np.stack([obs.numpy(), next_obs.numpy()], axis=1)
        arrays |= {name: getattr(found, name).numpy() for name in ("actions", "rewards", "dones")}
        return self.status(), wire.pack(arrays)

    def status(self) -> Status:
        """Return how it is."""
        lost = self.lost.values()
        transitions, nbytes = sum(chunk.transitions for chunk in lost), sum(chunk.nbytes for chunk in lost)
        return Status(self.life, self.size, transitions, nbytes, self.ident, self.began)

    def table(self) -> tuple[list[Chunk], list[Chunk]]:
        """Return the chunks it holds, and those it has lost."""
        return list(self.chunks), list(self.lost.values())

    def save(self, path: Path | None = None) -> Status:
        """Write the buffer to a file; by default that is the checkpoint it is restored from.

        `CompressedReplayBuffer.load` reads it, too.
        """
        where = self.settings.checkpoint if path is None else path
        if where is None:
            raise ValueError("this shard has no folder for checkpoints: give the buffer a checkpoint_dir")
        self._end_if_replaced()
        self.buffer.held_chunks, self.buffer.lost_chunks = _table(self.chunks), _table(self.lost.values())
        self.buffer.checkpoint_number = self.saved + 1
        self.buffer.save(where)
        if self.settings.checkpoint is not None and where.resolve() == self.settings.checkpoint.resolve():
            self._forget()
        return self.status()

    def load(self, path: Path) -> Status:
        """Begin anew with a file that `save` wrote."""
        self._begin(self.settings.buffer_class.load(path))
        self._forget()
        return self.status()

    def reset(self) -> Status:
        """Begin anew, empty; the checkpoint goes, too."""
        if self.settings.checkpoint is not None:
            self.settings.checkpoint.unlink(missing_ok=True)
        self._begin(self.settings.new_buffer())
        self._forget()
        return self.status()

    def memory_usage(self) -> MemoryUsage:
        """Return how much memory its observations take."""
        usage: MemoryUsage = self.buffer.memory_usage()
        return usage

    def close(self) -> None:
        """Delete what is of no use any more when the shard is ended on purpose."""
        self.journal.remove()

    def __ray_shutdown__(self) -> None:
        """Do that also when nobody has a handle any more. Ray calls this then, but not when the process is killed."""
        if self.settings.folder is None:
            self.close()

    def _observations(self, arrays: Mapping[str, NDArray[Any]], index: Any) -> Any:
        if not isinstance(self.settings.observation_space, spaces.Dict):
            return arrays["observations"][index]
        return {key: arrays[f"observations/{key}"][index] for key in self.settings.observation_space.spaces}

    def _drop_rows(self) -> None:
        """Count what a full ring has overwritten: the oldest chunk, whole or its first rows."""
        capacity = self.buffer.buffer_size * self.buffer.n_envs
        oldest = self.chunks.popleft()
        rest = min(oldest.transitions, self.size - capacity)
        self.size -= rest
        if rest < oldest.transitions:
            self.chunks.appendleft(oldest._replace(transitions=oldest.transitions - rest))
        else:
            self.known.discard(oldest.key)

    def _restored(self, again: bool) -> Any:
        """Return the buffer of the checkpoint, or None if there is none, or it cannot be read by who must go on."""
        path = self.settings.checkpoint
        if path is None or not path.exists():
            return None
        try:
            return self.settings.buffer_class.load(path)
        except DamagedFileError as error:
            if not again:
                raise
            log.error("%s begins empty: %s", self.settings.name, error)
            return None

    def _count_lost(self, lives: list[list[Chunk]], empty: bool) -> None:
        """Find out what the ring held whenever the process died, and does not hold now.

        Args:
            lives: what earlier processes wrote to the journal.
            empty: whether there was no checkpoint to begin with.
        """
        for base, before, *chunks in lives:
            if base.number < self.saved and not empty:
                continue  # that process ended after it had saved all, and before it could say so
            gone = empty or base.number > self.saved  # what it began with
            room = self.buffer.buffer_size * self.buffer.n_envs
            for chunk in (*reversed(chunks), base):
                held = min(room, chunk.transitions)
                room -= held
                if held and (gone if chunk is base else chunk.key not in self.known):
                    self.lost.setdefault(chunk.key, chunk._replace(transitions=held))
            if gone and before.transitions:
                self.lost.setdefault(before.key, before)

    def _header(self) -> tuple[Chunk, Chunk]:
        """Return what stands for all that it holds and has lost, in the journal."""
        lost = self.lost.values()
        return (
            Chunk(BASE, self.saved, self.size, sum(chunk.nbytes for chunk in self.chunks)),
            Chunk(LOST, self.ident, sum(chunk.transitions for chunk in lost), sum(chunk.nbytes for chunk in lost)),
        )

    def _forget(self) -> None:
        """Begin the journal anew: what it says is in a checkpoint, or is of no interest any more."""
        self.saved += 1
        self.journal.forget()
        self.journal.begin(*self._header())

    def _end_if_replaced(self) -> None:
        """End the process if there is another one for this shard: the node was taken for dead, and is not."""
        if self.journal.is_replaced:
            log.error("%s was started again elsewhere: this process ends", self.settings.name)
            os._exit(1)


def _table(chunks: Any) -> NDArray[np.int64]:
    return np.array(list(chunks), np.int64).reshape(-1, len(Chunk._fields))


def _pairs(obs: Any, next_obs: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(obs, Mapping):
        return [(f"observations/{key}", obs[key], next_obs[key]) for key in obs]
    return [("observations", obs, next_obs)]
