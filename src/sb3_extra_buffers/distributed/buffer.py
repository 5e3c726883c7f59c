"""`DistributedReplayBuffer`: SB3's replay buffer over shards that are Ray actors."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import ray
from gymnasium import spaces
from numpy.typing import NDArray
from ray.exceptions import RayActorError
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed import MemoryUsage, saving
from sb3_extra_buffers.distributed import wire
from sb3_extra_buffers.distributed.limiter import RateLimiter
from sb3_extra_buffers.distributed.shard import Shard, ShardSettings, Status
from sb3_extra_buffers.distributed.shards import Shards
from sb3_extra_buffers.distributed.writer import Writer, WriterSettings
from sb3_extra_buffers.frames import saving as frames_saving
from sb3_extra_buffers.frames.lock import Lock

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

_SETTINGS = "settings.buffer"
_LEAST = 128  # transitions to ask a shard for at once: with fewer, the call and the first frame cost too much


class Target(NamedTuple):
    """What a collector needs to add to a buffer from anywhere."""

    writer: WriterSettings
    shards: list[Any]
    limiter: Any


class DistributedReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` over several processes or machines; each part of it is compressed in the memory of a Ray actor.

    What is added is compressed here and sent in chunks; it can be sampled when its shard has stored it. Samples come
    from all shards, each transition with the same chance, and are asked for ahead. A shard that dies is started again,
    from its last checkpoint if there is one; until then samples come from the others.

    Args:
        buffer_size: transitions, of all shards together.
        observation_space: also a Dict.
        action_space: as of SB3's buffer.
        device: where batches go.
        n_envs: envs of each writer.
        optimize_memory_usage: accepted and of no effect: next observations are shared by content.
        handle_timeout_termination: as of SB3's buffer.
        shards: how many parts.
        chunk_steps: steps of all envs that are sent together.
        in_flight: chunks that may be on their way to each shard; beyond that `add` waits.
        prefetch: batches to ask for ahead, at least.
        samples_per_insert: how often each transition is sampled on average, as of Reverb. It holds collectors and
            `sample` back, not `add`. None: no limit.
        min_size: transitions to insert before the first is sampled, where `samples_per_insert` is given.
        error_buffer: how far sampling and inserting may be apart, in samples. None: a tenth of what `min_size`
            transitions are, and at least what chunks and batches need.
        checkpoint_dir: an existing folder that every node reaches; shards write their checkpoints there.
        checkpoint_every: seconds between checkpoints of a shard, made while `add` or `sample` is called. None: only
            when `checkpoint` is called.
        resume: go on from the checkpoints of an earlier run, with as many shards, instead of refusing its folder.
        timeout: seconds after which waiting for shards is an error.
        shard_options: Ray's options for the actors, such as `num_cpus`, `resources`, `scheduling_strategy`.
        buffer_kwargs: further arguments of the `CompressedReplayBuffer` in each shard, such as `compression_method`.

    Raises:
        ValueError: an argument that cannot be; it says what can.
        RuntimeError: Ray is not connected; call `ray.init()` before.
    """

    shard_class: type[Shard] = Shard
    """What the actors are."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        shards: int = 2,
        chunk_steps: int = 64,
        in_flight: int = 2,
        prefetch: int = 2,
        samples_per_insert: float | None = None,
        min_size: int = 1,
        error_buffer: float | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float | None = None,
        resume: bool = False,
        timeout: float = 300.0,
        shard_options: Mapping[str, Any] | None = None,
        buffer_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        numbers = {"shards": shards, "chunk_steps": chunk_steps, "in_flight": in_flight, "prefetch": prefetch}
        for name, value in {**numbers, "n_envs": n_envs, "buffer_size": buffer_size}.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} is a number of at least 1, not {value!r}")
        if checkpoint_dir is None and (resume or checkpoint_every is not None):
            raise ValueError("checkpoint_every and resume need a checkpoint_dir")
        if checkpoint_dir is not None:
            _check_folder(Path(checkpoint_dir), shards if resume else None)
        if not ray.is_initialized():
            raise RuntimeError("a distributed buffer needs a cluster: call ray.init() before")
        # SB3's own constructor would allocate the arrays: its base's does all else.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        rows = -(-buffer_size // (shards * n_envs))
        self.buffer_size = rows * shards
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._timeout = timeout
        self._prefetch = prefetch
        self._folder = None if checkpoint_dir is None else Path(checkpoint_dir).absolute()
        self._every = checkpoint_every
        writing = WriterSettings(observation_space, action_space, n_envs, chunk_steps, in_flight, timeout)
        run = f"sb3-extra-buffers-{secrets.token_hex(8)}-"
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(shard_options or {})}
        actor = ray.remote(self.shard_class).options(max_restarts=-1, **options)
        handles = []
        for i in range(shards):
            name = file_name(i)
            settings = ShardSettings(
                name if self._folder is not None else run + name,
                rows * n_envs,
                observation_space,
                action_space,
                n_envs,
                handle_timeout_termination,
                dict(buffer_kwargs or {}),
                self._folder,
                resume,
            )
            if i == 0:
                settings.new_buffer(n_envs)  # for its errors
            handles.append(actor.remote(settings.packed()))
        self._shards = Shards(handles)
        if self._folder is not None:
            save_settings(self, self._folder / _SETTINGS)
        self._shards.all("status", timeout=timeout)
        self._writer = Writer(writing, self._shards)
        self._limiter: Any = None
        self._counted = 0  # transitions that the limiter was told of
        if samples_per_insert is not None:
            least = samples_per_insert * chunk_steps * n_envs + 1024
            error = max(0.1 * samples_per_insert * min_size, least) if error_buffer is None else error_buffer
            RateLimiter(samples_per_insert, min_size, error)  # for its errors
            # In the learner's node: it is lost only together with the learner.
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            limiter = ray.remote(RateLimiter).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
            self._limiter = limiter.remote(samples_per_insert, min_size, error)
        self._requests: deque[_Request] = deque()
        self._saves: dict[Any, tuple[int, int | None]] = {}  # call: shard, and its life as known then
        self._next_save, self._saved_last = time.monotonic(), -1
        self.received = self.received_bytes = 0
        self.while_waiting: Callable[[], object] | None = None
        """Called again and again while `sample` waits for transitions that others insert. None: nobody does."""

    @property
    def target(self) -> Target:
        """What a collector needs to add to this buffer; it can be sent to other processes."""
        return Target(self._writer.settings, self._shards.handles, self._limiter)

    @property
    def lost(self) -> int:
        """Transitions that died with shards and were not in a checkpoint."""
        return self._shards.lost

    @property
    def traffic(self) -> dict[str, int]:
        """Transitions and bytes that this process has sent to shards and received from them."""
        sent = {"sent": self._writer.stored, "sent_bytes": self._writer.sent_bytes}
        return {**sent, "received": self.received, "received_bytes": self.received_bytes}

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a step of all envs. It is sent with the chunk it belongs to.

        Raises:
            ValueError: observations that the space cannot hold.
            TimeoutError: no shard has answered for a long time.
        """
        before = self._writer.sent
        self._writer.add(obs, next_obs, action, reward, done, infos)
        if self._writer.sent > before:
            self._count_inserts()
            self._checkpoint_if_due()

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample `batch_size` transitions, each with the same chance. Batches are asked for ahead.

        Raises:
            ValueError: the buffer is empty.
            TimeoutError: no shard answers, or `samples_per_insert` does not allow it and nobody inserts.
        """
        self._checkpoint_if_due()
        if self._limiter is not None:
            self._ask_limiter(batch_size)
        if self._requests and self._requests[0].batch_size != batch_size:
            self._requests.clear()
        while len(self._requests) < 2:  # one to take from, one on its way
            self._requests.append(self._ask(batch_size))
        request = self._requests[0]
        try:
            self._receive(request)
        except BaseException:
            self._requests.clear()  # some of its answers are missing
            raise
        arrays = request.batch()
        if request.taken == request.batches:
            self._requests.popleft()
            self._requests.append(self._ask(batch_size))
        return self._samples(arrays, env)

    def size(self) -> int:
        """Return the steps that can be sampled, as far as known here."""
        return int(self._shards.sizes.sum()) // self.n_envs

    def reset(self) -> None:
        """Empty all shards, and delete their checkpoints."""
        self.flush()
        self._saves.clear()
        self._shards.forget()
        self._shards.all("reset", timeout=self._timeout)

    def refresh(self) -> list[Status]:
        """Ask all shards how they are, and wait for their answers."""
        return self._shards.all("status", timeout=self._timeout)

    def flush(self) -> None:
        """Send what was added and wait until it is stored.

        Raises:
            TimeoutError: a shard does not answer.
        """
        self._writer.flush()
        self._count_inserts()
        self._requests.clear()

    def memory_usage(self) -> MemoryUsage:
        """Return how much memory the observations take, shard by shard. Prints as a table."""
        parts = self._shards.all("memory_usage", timeout=self._timeout)
        return MemoryUsage.total(type(self).__name__, parts)

    def checkpoint(self) -> None:
        """Let every shard write its checkpoint now, and wait.

        Raises:
            ValueError: there is no `checkpoint_dir`.
        """
        self._writer.flush()
        self._count_inserts()
        self._shards.all("save", timeout=self._timeout)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the buffer to a folder that every node reaches; each shard writes its own file there.

        `CompressedReplayBuffer.load` reads such a file, too.
        """
        where = Path(folder).absolute()
        where.mkdir(parents=True, exist_ok=True)
        self._writer.flush()
        self._count_inserts()
        paths = [where / f"{file_name(i)}.buffer" for i in range(len(self._shards))]
        self._shards.all("save", paths, timeout=self._timeout)
        save_settings(self, where / _SETTINGS)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: Any = "auto", **settings: Any) -> Self:
        """Return the buffer that was saved to a folder, or whose checkpoints are there, with as many shards.

        Args:
            folder: the folder.
            device: where batches go.
            **settings: of the constructor, those by keyword but `shards`.

        Raises:
            ValueError: there is no buffer in the folder.
            DamagedFileError: a file is damaged.
        """
        where = Path(folder).absolute()
        if not (where / _SETTINGS).exists():
            raise ValueError(f"{folder} holds no distributed buffer: {_SETTINGS} is missing")
        known = load_settings(where / _SETTINGS)
        given = settings.get("checkpoint_dir")
        if given is not None and Path(given).absolute() == where:
            return cls(**known, device=device, resume=True, **settings)
        buffer = cls(**known, device=device, **settings)
        paths = [where / f"{file_name(i)}.buffer" for i in range(len(buffer._shards))]
        buffer._shards.all("load", paths, timeout=buffer._timeout)
        if given is not None:
            buffer.checkpoint()
        return buffer

    def close(self) -> None:
        """End the shards. Files stay."""
        closing = [handle.close.remote() for handle in self._shards.handles]
        ray.wait(closing, num_returns=len(closing), timeout=5.0)
        for handle in (*self._shards.handles, self._limiter):
            if handle is not None:
                ray.kill(handle)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a distributed buffer cannot be pickled or copied: use save(folder) and load(folder)")

    def _ask(self, batch_size: int) -> _Request:
        """Ask the shards for some batches."""
        self._writer.hear()
        self._shards.refresh()
        if not self._shards.sizes.any():
            self._writer.send()  # what is waiting for its chunk to be full
            self._count_inserts()
        n = max(self._prefetch, -(-_LEAST * len(self._shards) // batch_size))
        request = _Request(batch_size, n)
        self._spread(request, np.full(n, batch_size))
        return request

    def _spread(self, request: _Request, wanted: NDArray[Any]) -> None:
        """Ask for `wanted` [batches] transitions more, of each shard in proportion to its size."""
        end = time.monotonic() + self._timeout
        while not (sizes := self._shards.sizes).any():
            if not self._may_come():
                raise ValueError("cannot sample from an empty buffer: add transitions first")
            if time.monotonic() > end:
                raise TimeoutError(f"no shard with transitions has answered for {self._timeout:.0f} s")
            self._shards.refresh(0.5)
            if self.while_waiting is not None:
                self.while_waiting()
        counts = np.array([np.random.multinomial(n, sizes / sizes.sum()) for n in wanted])  # [batches, shards]
        for i in np.flatnonzero(counts.sum(axis=0)).tolist():
            ref = self._shards.handles[i].sample.remote(int(counts[:, i].sum()))
            request.pending[ref] = i, self._shards.life(i), counts[:, i]

    def _may_come(self) -> bool:
        """Tell whether an empty buffer need not stay so: somebody inserts, or a shard may be back with something."""
        others = self._limiter is not None or self.while_waiting is not None
        return others or self._writer.is_waiting or None in self._shards.statuses

    def _receive(self, request: _Request) -> None:
        """Wait for what was asked for; what a dead shard does not give is asked of the others."""
        end = time.monotonic() + self._timeout
        while request.pending:
            ready, late = ray.wait(list(request.pending), num_returns=len(request.pending), timeout=1.0)
            missing = np.zeros(request.batches, np.int64)
            if not ready and time.monotonic() > end:
                ready = late
            for ref in ready:
                shard, life, counts = request.pending.pop(ref)
                try:
                    status, parcel = ray.get(ref, timeout=0.1)
                except (RayActorError, ray.exceptions.GetTimeoutError):
                    self._shards.down(shard)
                    missing += counts
                    continue
                self._shards.heard(shard, status, life)
                if parcel is None:
                    missing += counts
                    continue
                self.received += int(counts.sum())
                self.received_bytes += parcel.nbytes
                request.parts.append((counts, wire.Rows(parcel)))
            if missing.any():
                self._shards.refresh()
                self._spread(request, missing)

    def _samples(self, arrays: Mapping[str, NDArray[Any]], env: VecNormalize | None) -> Any:
        def observations(i: int) -> Any:
            pairs = {name: array for name, array in arrays.items() if name.startswith("observations")}
            if not isinstance(self.observation_space, spaces.Dict):
                obs: Any = self._normalize_obs(pairs[f"observations.{i}"], env)
                return self._tensor(obs)
            found = {key: pairs[f"observations/{key}.{i}"] for key in self.observation_space.spaces}
            return {key: self._tensor(obs) for key, obs in self._normalize_obs(found, env).items()}  # type: ignore[union-attr]

        kind = DictReplayBufferSamples if isinstance(self.observation_space, spaces.Dict) else ReplayBufferSamples
        return kind(
            observations=observations(0),
            actions=self._tensor(arrays["actions"]),
            next_observations=observations(1),
            dones=self._tensor(arrays["dones"]),
            rewards=self._tensor(self._normalize_reward(arrays["rewards"], env)),
        )

    def _tensor(self, array: NDArray[Any]) -> Any:
        return self.to_torch(array, copy=False)  # it was made for this batch

    def _count_inserts(self) -> None:
        """Tell the limiter what was sent since it was told last."""
        new, self._counted = self._writer.sent_transitions - self._counted, self._writer.sent_transitions
        if self._limiter is not None and new:
            self._limiter.count.remote(new)

    def _ask_limiter(self, batch_size: int) -> None:
        end = time.monotonic() + self._timeout
        while (left := end - time.monotonic()) > 0:
            try:
                if ray.get(self._limiter.sample.remote(batch_size, min(0.5, left))):
                    return
            except RayActorError:
                time.sleep(0.1)  # it is being started again
            if self.while_waiting is not None:
                self.while_waiting()
        raise TimeoutError(
            f"samples_per_insert has not allowed a sample for {self._timeout:.0f} s: too few transitions are inserted"
        )

    def _checkpoint_if_due(self) -> None:
        """Let the next shard write its checkpoint when it is time, without waiting for it."""
        if self._every is None or time.monotonic() < self._next_save:
            return
        ready = ray.wait(list(self._saves), num_returns=len(self._saves), timeout=0)[0] if self._saves else []
        for ref in ready:
            shard, life = self._saves.pop(ref)
            try:
                self._shards.heard(shard, ray.get(ref), life)
            except RayActorError:
                self._shards.down(shard)
            except OSError as error:
                log.error("shard %d could not write its checkpoint: %s", shard, error)
        self._saved_last = (self._saved_last + 1) % len(self._shards)
        if self._saved_last not in (shard for shard, _ in self._saves.values()):
            ref = self._shards.handles[self._saved_last].save.remote()
            self._saves[ref] = self._saved_last, self._shards.life(self._saved_last)
        self._next_save = time.monotonic() + self._every / len(self._shards)


class _Request:
    """Batches that were asked for together.

    Attributes:
        batches: how many.
        pending: shard, its life as known then, and transitions for each batch, by the reference of the call.
        parts: for each answer how many of its rows are for each batch, and the rows.
        taken: batches that were taken.
    """

    def __init__(self, batch_size: int, batches: int) -> None:
        self.batch_size = batch_size
        self.batches = batches
        self.pending: dict[Any, tuple[int, int | None, NDArray[Any]]] = {}
        self.parts: list[tuple[NDArray[Any], wire.Rows]] = []
        self.taken = 0

    def batch(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the next batch; observations and next observations end in `.0` and `.1`."""
        b, self.taken = self.taken, self.taken + 1
        parts = [rows.take(int(counts[b])) for counts, rows in self.parts if counts[b]]
        found: dict[str, NDArray[Any]] = {}
        for name in parts[0]:
            if name.startswith("observations"):
                for i in (0, 1):
                    found[f"{name}.{i}"] = np.concatenate([part[name][:, i] for part in parts])
            else:
                found[name] = np.concatenate([part[name] for part in parts])
        return found


def _check_folder(folder: Path, shards: int | None) -> None:
    """Raise if a folder cannot hold checkpoints, or has some; with `shards`, if it has those of other shards."""
    if not folder.is_dir():
        raise ValueError(f"checkpoint_dir is an existing folder; {folder} is none")
    found = len(list(folder.glob("shard-*.buffer")))
    if shards is None and found:
        raise ValueError(f"{folder} has checkpoints of another run: resume it, or give an empty folder")
    if shards is not None and found > shards:
        raise ValueError(f"{folder} has checkpoints of {found} shards: resume with as many, not {shards}")


def file_name(shard: int) -> str:
    """Return the name of a shard, and of its files."""
    return f"shard-{shard:04d}"


def save_settings(buffer: DistributedReplayBuffer, path: Path) -> None:
    """Write what the shards of a buffer have in common."""
    settings = {
        "shards": len(buffer._shards),
        "buffer_size": buffer.buffer_size * buffer.n_envs,
        "observation_space": buffer.observation_space,
        "action_space": buffer.action_space,
        "n_envs": buffer.n_envs,
        "handle_timeout_termination": buffer.handle_timeout_termination,
    }
    frames_saving.save(path, Lock(), [], lambda encoder: encoder.value(settings, "settings"), saving.encode)


def load_settings(path: Path) -> dict[str, Any]:
    """Return what `save_settings` wrote."""
    with frames_saving.loading(path, saving.decode) as (document, decoder, _):
        settings: dict[str, Any] = decoder.value(document["content"])
    return settings
