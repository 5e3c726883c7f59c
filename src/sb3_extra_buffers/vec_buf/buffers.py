"""`DummyVecRolloutBuffer`: the face of one rollout buffer over several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, RolloutBuffer

if TYPE_CHECKING:
    from sb3_extra_buffers.compressed.memory import MemoryUsage


class DummyVecRolloutBuffer(RolloutBuffer):
    """One rollout buffer over several, for PPO and A2C (experimental).

    - **Shares**: buffers whose envs add up to `n_envs` hold some envs each, in order. Minibatches are put together from
      all of them, with the draws and in the order of one buffer: training ends with the same weights.
    - **Mirrors**: buffers that have `n_envs` envs each get every step. Minibatches come from the first; the others can
      be compared with it after a rollout.

    Args:
        buffer_size: steps of a rollout.
        observation_space: as SB3's.
        action_space: as SB3's.
        device: where minibatches go.
        n_envs: envs of the training.
        use_threads: add to the buffers, and read from them, in a thread for each.
        buffers: rollout buffers of SB3 or of this package, of the same size and spaces.
        gae_lambda: as SB3's; it becomes that of all buffers.
        gamma: as SB3's; it becomes that of all buffers.

    Raises:
        ValueError: no buffers, or some that do not fit.
        TypeError: something else than rollout buffers, or recurrent ones.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        use_threads: bool = False,
        buffers: Iterable[RolloutBuffer] = (),
        *,
        gae_lambda: float = 1,
        gamma: float = 0.99,
    ) -> None:
        # Not RolloutBuffer's constructor: it would allocate the arrays that `buffers` have.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.generator_ready = False
        self.buffers = list(buffers)
        self.use_threads = use_threads
        self._pool: ThreadPoolExecutor | None = None
        for buffer in self.buffers:
            _check(buffer, buffer_size, observation_space, action_space)
        if len(set(map(id, self.buffers))) < len(self.buffers):
            raise ValueError("the same buffer is given twice")
        counts = [buffer.n_envs for buffer in self.buffers]
        self.mirrored = bool(counts) and all(count == n_envs for count in counts)
        if not self.mirrored and sum(counts) != n_envs:
            raise ValueError(
                f"buffers have n_envs={n_envs} each, or add up to {n_envs}; got {', '.join(map(str, counts)) or 'none'}"
            )
        stops = list(accumulate(counts))
        shares = [slice(stop - count, stop) for count, stop in zip(counts, stops, strict=True)]
        self._envs = [slice(0, n_envs)] * len(counts) if self.mirrored else shares
        for buffer in self.buffers:
            buffer.gamma, buffer.gae_lambda = gamma, gae_lambda
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pool": None}

    def reset(self) -> None:
        """Reset all buffers."""
        self._each(lambda buffer, envs: buffer.reset())
        self.generator_ready = False
        BaseBuffer.reset(self)

    def add(
        self, obs: Any, action: Any, reward: Any, episode_start: Any, value: th.Tensor, log_prob: th.Tensor
    ) -> None:
        """Add a step to all buffers; if one of them raises, none has it."""
        action = np.asarray(action).reshape(self.n_envs, self.action_dim)
        fields = (obs, action, np.asarray(reward), np.asarray(episode_start), value.flatten(), log_prob.flatten())
        for name, field in zip(("obs", "action", "reward", "episode_start", "value", "log_prob"), fields, strict=True):
            lengths = {len(part) for part in (field.values() if isinstance(field, dict) else [field])}
            if lengths != {self.n_envs}:
                raise ValueError(f"{name} is of {', '.join(map(str, lengths))} envs, not of {self.n_envs}")
        before = [(buffer.pos, buffer.full) for buffer in self.buffers]
        try:
            self._each(lambda buffer, envs: buffer.add(*(_part(field, envs) for field in fields)))
        except BaseException:
            for buffer, (pos, full) in zip(self.buffers, before, strict=True):
                buffer.pos, buffer.full = pos, full  # its row is written again
            raise
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: NDArray[Any]) -> None:
        """Compute returns and advantages in all buffers."""
        last_values = last_values.flatten()
        self._each(lambda buffer, envs: buffer.compute_returns_and_advantage(last_values[envs], dones[envs]))

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Yield minibatches: those of one buffer with all the envs, drawn by the same permutation."""
        if not self.full:
            raise ValueError(
                f"the rollout has {self.size()} of its {self.buffer_size} steps: add the others before get()"
            )
        if self.mirrored:
            self.generator_ready = True
            yield from self.buffers[0].get(batch_size)
            return
        total = self.buffer_size * self.n_envs
        indices = np.random.permutation(total)
        if not self.generator_ready:
            self._flatten()
        batch_size = total if batch_size is None else batch_size
        for start in range(0, total, batch_size):
            yield self._get_samples(indices[start : start + batch_size])

    def memory_usage(self) -> MemoryUsage:
        """Return how much memory the observations take in all buffers."""
        from sb3_extra_buffers.compressed.memory import MemoryUsage

        return MemoryUsage.total(type(self).__name__, [buffer.memory_usage() for buffer in self.buffers])  # type: ignore[attr-defined]

    # SB3 declares these as attributes; here they are put together when they are read.

    @property
    def observations(self) -> Any:  # type: ignore[override]
        """Observations of all envs, decompressed."""
        return self._joined("observations")

    @property
    def actions(self) -> Any:  # type: ignore[override]
        """Actions of all envs."""
        return self._joined("actions")

    @property
    def rewards(self) -> Any:  # type: ignore[override]
        """Rewards of all envs."""
        return self._joined("rewards", flattened=False)

    @property
    def advantages(self) -> Any:  # type: ignore[override]
        """Advantages of all envs."""
        return self._joined("advantages")

    @property
    def returns(self) -> Any:  # type: ignore[override]
        """Returns of all envs."""
        return self._joined("returns")

    @property
    def episode_starts(self) -> Any:  # type: ignore[override]
        """Whether an episode began, of all envs."""
        return self._joined("episode_starts", flattened=False)

    @property
    def log_probs(self) -> Any:  # type: ignore[override]
        """Log probabilities of the actions of all envs."""
        return self._joined("log_probs")

    @property
    def values(self) -> Any:  # type: ignore[override]
        """Values of all envs."""
        return self._joined("values")

    def _get_samples(self, batch_inds: NDArray[Any], env: Any = None) -> Any:
        """Return the samples of flattened indices; env by env they are in the order of the buffers."""
        if self.mirrored:
            return self.buffers[0]._get_samples(batch_inds, env)
        owners = [
            np.flatnonzero((batch_inds >= self.buffer_size * envs.start) & (batch_inds < self.buffer_size * envs.stop))
            for envs in self._envs
        ]
        order = th.from_numpy(np.argsort(np.concatenate(owners), kind="stable")).to(self.device)
        mine = {envs.start: owned for envs, owned in zip(self._envs, owners, strict=True)}

        def read(buffer: RolloutBuffer, envs: slice) -> Any:
            inds = batch_inds[mine[envs.start]] - self.buffer_size * envs.start
            return buffer._get_samples(inds, env) if len(inds) else None

        parts = [part for part in self._each(read) if part is not None]
        return _merged(parts, order, self.device)

    def _flatten(self) -> None:
        """Let each buffer prepare its arrays as SB3's `get` does, which draws a permutation that is not wanted here."""
        state = np.random.get_state()
        for buffer in self.buffers:
            next(buffer.get(1))
        np.random.set_state(state)
        self.generator_ready = True

    def _joined(self, name: str, flattened: bool = True) -> Any:
        parts = [getattr(buffer, name) for buffer in (self.buffers[:1] if self.mirrored else self.buffers)]
        axis = 0 if flattened and self.generator_ready else 1
        if isinstance(parts[0], dict):
            return {key: np.concatenate([part[key] for part in parts], axis) for key in parts[0]}
        return np.concatenate(parts, axis)

    def _each(self, work: Callable[[RolloutBuffer, slice], Any]) -> list[Any]:
        """Do `work` with each buffer and its envs, in threads where they are asked for; wait for all of them."""
        if not self.use_threads:
            return [work(buffer, envs) for buffer, envs in zip(self.buffers, self._envs, strict=True)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.buffers), "vec-buf")
        futures = [self._pool.submit(work, buffer, envs) for buffer, envs in zip(self.buffers, self._envs, strict=True)]
        problems = [future.exception() for future in futures]
        for problem in problems:
            if problem is not None:
                raise problem
        return [future.result() for future in futures]


def _check(buffer: Any, size: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    name = type(buffer).__name__
    if not isinstance(buffer, RolloutBuffer) or isinstance(buffer, DummyVecRolloutBuffer):
        raise TypeError(f"buffers are rollout buffers; got {name}")
    if hasattr(buffer, "hidden_state_shape"):
        raise TypeError(f"{name} reads whole sequences: it cannot be put together from several")
    if buffer.buffer_size != size:
        raise ValueError(f"{name} has buffer_size={buffer.buffer_size}, not {size}")
    if (buffer.observation_space, buffer.action_space) != (observation_space, action_space):
        raise ValueError(f"{name} is for {buffer.observation_space} and {buffer.action_space}: other spaces")


def _part(field: Any, envs: slice) -> Any:
    return {key: part[envs] for key, part in field.items()} if isinstance(field, dict) else field[envs]


def _merged(parts: list[Any], order: th.Tensor, device: th.device) -> Any:
    """Return samples put together field by field, in `order`."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: _merged([part[key] for part in parts], order, device) for key in first}
    if isinstance(first, tuple):
        return type(first)(*(_merged(list(fields), order, device) for fields in zip(*parts, strict=True)))
    return th.cat([part.to(device) for part in parts])[order]
