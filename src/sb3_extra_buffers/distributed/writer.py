"""`Writer`: collects steps, compresses them chunk by chunk, and sends the chunks without waiting."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
from gymnasium import spaces
from numpy.typing import NDArray
from ray.exceptions import RayActorError
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape

from sb3_extra_buffers.distributed import wire
from sb3_extra_buffers.distributed.shards import Shards
from sb3_extra_buffers.frames.cast import checked_values

log = logging.getLogger(__name__)

_PATIENCE = 2.0  # seconds to wait for a shard before the others get its share


@dataclass(frozen=True)
class WriterSettings:
    """What writers of one buffer have in common.

    Attributes:
        observation_space: of the envs.
        action_space: of the envs.
        n_envs: envs that a writer adds steps of.
        chunk_steps: steps of all envs that are sent together.
        in_flight: chunks that may be on their way to each shard.
        timeout: seconds to wait for shards, all of which are busy or dead.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    chunk_steps: int = 64
    in_flight: int = 2
    timeout: float = 300.0

    @property
    def parts(self) -> dict[str, spaces.Space[Any]]:
        """The spaces of the observations, by the names they have in a parcel."""
        if not isinstance(self.observation_space, spaces.Dict):
            return {"observations": self.observation_space}
        return {f"observations/{key}": part for key, part in self.observation_space.spaces.items()}


class _Chunk(NamedTuple):
    number: int
    transitions: int
    parcel: wire.Parcel


class _Call(NamedTuple):
    shard: int
    life: int | None  # of the shard, as known then
    chunk: _Chunk


class Writer:
    """Adds steps to the shards.

    Each shard is sent as many chunks as the others. One that dies before it has answered gets its chunks again when it
    is back; the others get the next ones meanwhile.
    """

    def __init__(self, settings: WriterSettings, shards: Shards) -> None:
        self.settings = settings
        self.shards = shards
        self.ident = secrets.randbits(62)
        self.sent = 0  # chunks
        self.sent_transitions = 0
        self.sent_bytes = 0
        self.acknowledged: list[int] = []  # numbers of chunks, since they were asked for last
        self.stored = 0  # transitions that shards have acknowledged
        self._pending: dict[Any, _Call] = {}
        self._again: deque[_Chunk] = deque()  # of shards that are gone
        self._gone: set[int] = set()  # shards that will not come back
        self._sent_to = np.zeros(len(shards), np.int64)
        self._first = secrets.randbelow(len(shards))  # so that writers do not all begin with the same
        self._silent: set[int] = set()  # shards that take longer than `_PATIENCE`
        self._begin()

    def _begin(self) -> None:
        steps, envs = self.settings.chunk_steps, self.settings.n_envs
        self._obs = {}
        for name, space in self.settings.parts.items():
            self._obs[name] = np.empty((envs, steps, 2, *get_obs_shape(space)), space.dtype)
        action = get_action_dim(self.settings.action_space)
        self._actions = np.empty((steps, envs, action), self.settings.action_space.dtype)
        self._rewards = np.empty((steps, envs), np.float32)
        self._dones, self._timeouts = np.empty((2, steps, envs), np.bool_)
        self._step = 0

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a step of all envs, as to SB3's `ReplayBuffer`. If it raises, the step was not added.

        Raises:
            ValueError: observations of another shape, or that the space cannot hold.
            TimeoutError: no shard has answered for a long time.
        """
        row, envs = self._step, self.settings.n_envs
        if len(infos) != envs:
            raise ValueError(f"infos is a list of dicts, one for each of {envs} envs, not {len(infos)}")
        for name, space in self.settings.parts.items():
            key = name.partition("/")[2]
            for i, given in enumerate((obs, next_obs)):
                self._obs[name][:, row, i] = self._checked(given[key] if key else given, space)
        self._actions[row] = np.asarray(action).reshape(envs, -1)
        self._rewards[row] = reward
        self._dones[row] = done
        self._timeouts[row] = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        self._step += 1
        if self._step == self.settings.chunk_steps:
            try:
                self.send()
            except BaseException:
                if self._step:
                    self._step = row
                raise

    def send(self) -> None:
        """Send the steps that were added since the last chunk, if any. Waits only while all shards are busy."""
        n = self._step
        if n == 0:
            return
        self.hear()
        shard = self._choose()
        arrays = {name: array[:, :n] for name, array in self._obs.items()}
        arrays |= {"actions": self._actions[:n], "rewards": self._rewards[:n]}
        arrays |= {"dones": self._dones[:n], "timeouts": self._timeouts[:n]}
        self._call(shard, _Chunk(self.sent, self._rewards[:n].size, wire.pack(arrays)))
        self.sent += 1
        self.sent_transitions += self._rewards[:n].size
        self._step = 0

    def _call(self, shard: int, chunk: _Chunk) -> None:
        # Ray repeats the call after the shard was started again; the shard stores each chunk once.
        add = self.shards.handles[shard].add.options(max_task_retries=-1)
        ref = add.remote(self.ident, chunk.number, chunk.parcel)
        self._pending[ref] = _Call(shard, self.shards.life(shard), chunk)
        self.sent_bytes += chunk.parcel.nbytes

    @property
    def is_waiting(self) -> bool:
        """Whether chunks are on their way."""
        return bool(self._pending or self._again)

    def flush(self, timeout: float | None = None) -> None:
        """Send what is left and wait until every chunk is stored.

        Raises:
            TimeoutError: some are not.
        """
        self.send()
        end = time.monotonic() + (self.settings.timeout if timeout is None else timeout)
        while self.is_waiting:
            self.hear(1.0)
            if time.monotonic() > end and self.is_waiting:
                left = len(self._pending) + len(self._again)
                raise TimeoutError(f"{left} chunks are not stored yet: their shards do not answer")

    def hear(self, timeout: float = 0.0) -> None:
        """Take the answers that have come, or wait for one."""
        self._take_answers(timeout)
        while self._again:
            shard = self._choose()
            self._call(shard, self._again.popleft())

    def _take_answers(self, timeout: float) -> None:
        if not self._pending:
            return
        refs = list(self._pending)
        ready, _ = ray.wait(refs, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            shard, life, chunk = self._pending.pop(ref)
            self._silent.discard(shard)
            try:
                self.shards.heard(shard, ray.get(ref), life)
            except RayActorError:  # it will not be started again, whatever it held: another one gets the chunk
                self._gone.add(shard)
                self.shards.gone(shard)
                self._again.append(chunk)
            else:
                self.acknowledged.append(chunk.number)
                self.stored += chunk.transitions

    def _choose(self) -> int:
        """Return the shard that was sent least, after waiting until it may be sent more; a dead one is left out."""
        began = time.monotonic()
        while True:
            if len(self._gone) == len(self.shards):
                raise RuntimeError("all shards are gone for good")
            busy = np.bincount([call.shard for call in self._pending.values()], minlength=len(self.shards))
            for place in np.argsort(np.roll(self._sent_to, -self._first), kind="stable"):
                shard = int(place + self._first) % len(self.shards)
                if shard in self._gone:
                    continue
                if busy[shard] < self.settings.in_flight:
                    self._sent_to[shard] += 1
                    return shard
                if shard not in self._silent:
                    break
            self._take_answers(0.2)
            waited = time.monotonic() - began
            if waited > _PATIENCE * (1 + len(self._silent)):
                self._silent.add(shard)
            if waited > self.settings.timeout:
                raise TimeoutError(f"no shard has answered for {self.settings.timeout:.0f} s: is the cluster alive?")

    def _checked(self, obs: Any, space: spaces.Space[Any]) -> NDArray[Any]:
        full: tuple[int, ...] = (self.settings.n_envs, *get_obs_shape(space))
        if isinstance(space, spaces.Discrete) and np.size(obs) == self.settings.n_envs:
            obs = np.asarray(obs).reshape(full)  # as SB3 does: one number per env
        return checked_values(obs, full, space.dtype)  # type: ignore[arg-type] # these spaces have one
