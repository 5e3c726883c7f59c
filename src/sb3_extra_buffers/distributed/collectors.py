"""Collectors: vector envs on any node that play with the newest weights and write to the shards."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from sb3_extra_buffers.distributed.buffer import DistributedReplayBuffer, Target
from sb3_extra_buffers.distributed.shards import Shards
from sb3_extra_buffers.distributed.writer import Writer

log = logging.getLogger(__name__)

MakeEnv = Callable[[int], VecEnv]
"""Makes the vector env of a collector, given a seed."""

_TRIES = 3  # collectors in a row that end before their first report: then something is wrong with the env


class Report(NamedTuple):
    """What a collector has done since its last report.

    Attributes:
        transitions: that it has played.
        returns: of the episodes that have ended.
        chunks: numbers of the chunks that shards have acknowledged.
        sent_bytes: that it has sent, ever.
        version: of the weights it plays with.
        writer: as whom it writes.
        waited: seconds in which `samples_per_insert` held it back.
    """

    transitions: int
    returns: list[float]
    chunks: list[int]
    sent_bytes: int
    version: int
    writer: int
    waited: float


class CollectorActor:
    """Plays in a vector env and adds what it sees to a distributed buffer, as a Ray actor; see `Collectors`.

    Args:
        target: of the buffer.
        make_env: makes the env; it must have as many envs as the buffer has `n_envs`.
        policy: the class of the policy, and the arguments of its constructor.
        seed: of the env and of random actions.
    """

    def __init__(
        self, target: Target, make_env: MakeEnv, policy: tuple[type[BasePolicy], Mapping[str, Any]], seed: int
    ) -> None:
        torch.set_num_threads(1)
        self.settings, self.limiter = target.writer, target.limiter
        self.env = self._wrapped(make_env(seed))
        self.env.action_space.seed(seed)
        self.random = np.random.default_rng(seed)
        self.policy = policy[0](**policy[1])
        self.policy.set_training_mode(False)
        self.writer = Writer(target.writer, Shards(target.shards, quiet=True))
        self.version, self.epsilon = -1, 0.0
        self._newest: tuple[int, Any, float] | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._transitions, self._returns, self._waited = 0, [], 0.0  # type: ignore[var-annotated]
        self._playing = np.zeros(self.settings.n_envs)

    def set_weights(self, version: int, weights: Mapping[str, NDArray[Any]], epsilon: float) -> None:
        """Play with these weights from the next chunk on, and with a share `epsilon` of random actions."""
        with self._lock:
            if version > max(self.version, -1 if self._newest is None else self._newest[0]):
                self._newest = version, weights, epsilon

    def run(self) -> None:
        """Play until `stop`."""
        obs = self.env.reset()
        while not self._stop.is_set():
            self._load_newest()
            if self.version < 0:  # calls may overtake each other: the first weights are still to come
                self._stop.wait(0.02)
                continue
            if not self._may_insert():
                continue
            self._load_newest()
            for _ in range(self.settings.chunk_steps):
                obs = self._step(obs)
            with self._lock:
                self.writer.hear()
        with self._lock:
            self.writer.flush()

    def stop(self) -> None:
        """End `run`, after what was played is stored."""
        self._stop.set()

    def report(self) -> Report:
        """Return what was done since the last report."""
        with self._lock:
            chunks, self.writer.acknowledged = self.writer.acknowledged, []
            transitions, self._transitions = self._transitions, 0
            returns, self._returns = self._returns, []
            waited, self._waited = self._waited, 0.0
            writer = self.writer
            return Report(transitions, returns, chunks, writer.sent_bytes, self.version, writer.ident, waited)

    def _wrapped(self, env: VecEnv) -> VecEnv:
        space = self.settings.observation_space
        if is_image_space(env.observation_space) and not is_image_space_channels_first(env.observation_space):  # type: ignore[arg-type]
            env = VecTransposeImage(env)  # as SB3's algorithms do
        if env.num_envs != self.settings.n_envs or env.observation_space != space:
            raise ValueError(
                f"the env has {env.num_envs} envs of {env.observation_space}; the buffer is for "
                f"{self.settings.n_envs} of {space}"
            )
        return env

    def _load_newest(self) -> None:
        with self._lock:
            newest, self._newest = self._newest, None
        if newest is not None:
            self.version, weights, self.epsilon = newest
            self.policy.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in weights.items()})

    def _may_insert(self) -> bool:
        if self.limiter is None:
            return True
        began = time.monotonic()
        try:
            granted: bool = ray.get(self.limiter.insert.remote(self.settings.chunk_steps * self.settings.n_envs, 1.0))
        except RayActorError:  # it is being started again
            time.sleep(0.1)
            granted = False
        with self._lock:
            self._waited += time.monotonic() - began
        return granted

    def _step(self, obs: Any) -> Any:
        actions, _ = self.policy.predict(obs, deterministic=False)
        explore = self.random.random(len(actions)) < self.epsilon
        if explore.any():
            actions = np.array(actions)
            actions[explore] = [self.env.action_space.sample() for _ in range(int(explore.sum()))]
        new_obs, rewards, dones, infos = self.env.step(actions)
        stored = self.policy.scale_action(actions) if isinstance(self.env.action_space, spaces.Box) else actions
        with self._lock:
            self.writer.add(obs, _with_terminal(new_obs, dones, infos), stored, rewards, dones, infos)
            self._transitions += len(dones)
            self._playing += rewards
            self._returns += self._playing[dones].tolist()
            self._playing[dones] = 0
        return new_obs


def _with_terminal(new_obs: Any, dones: NDArray[Any], infos: list[dict[str, Any]]) -> Any:
    """Return the next observations: the last ones of episodes that have ended, not the first of the next."""
    if not dones.any():
        return new_obs
    if isinstance(new_obs, Mapping):
        last = {key: np.array(part) for key, part in new_obs.items()}
        for i in np.flatnonzero(dones):
            for key, part in last.items():
                part[i] = infos[i]["terminal_observation"][key]
        return last
    whole = np.array(new_obs)
    for i in np.flatnonzero(dones):
        whole[i] = infos[i]["terminal_observation"]
    return whole


class Collectors:
    """Several collectors for one learner. One that dies is replaced.

    Args:
        buffer: they add to it.
        model: the SB3 algorithm that learns; its policy is theirs.
        make_env: makes the vector env of a collector, given a seed.
        n: how many.
        seed: of the first; replacements count on.
        options: Ray's options for the actors, such as `num_cpus`, `resources`.
    """

    def __init__(
        self,
        buffer: DistributedReplayBuffer,
        model: Any,
        make_env: MakeEnv,
        n: int,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"there is at least 1 collector, not {n}")
        self._buffer, self._model, self.next_seed = buffer, model, seed
        policy = type(model.policy), model.policy._get_constructor_parameters()
        self._arguments = buffer.target, make_env, policy
        settings = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(options or {})}
        self._actor: Any = ray.remote(CollectorActor).options(max_concurrency=4, **settings)
        self._version, self._epsilon = -1, 0.0
        self._weights: Any = None
        self._failed = 0
        self.replaced = 0
        self._members: list[_Member] = []
        self._reports: list[Report] = []
        self.publish()
        for _ in range(n):
            self._members.append(self._start())
        buffer.while_waiting = self.tend

    def __len__(self) -> int:
        return len(self._members)

    @property
    def members(self) -> list[tuple[int, Any]]:
        """Seed and handle of each collector."""
        return [(member.seed, member.actor) for member in self._members]

    def publish(self, epsilon: float | None = None) -> None:
        """Send the model's weights to all collectors.

        Args:
            epsilon: share of random actions from now on. None: the model's `exploration_rate`, if it has one.
        """
        rate = getattr(self._model, "exploration_rate", 0.0) if epsilon is None else epsilon
        state = self._model.policy.state_dict()
        self._version, self._epsilon = self._version + 1, float(rate)
        self._weights = ray.put({name: value.detach().cpu().numpy() for name, value in state.items()})
        for member in self._members:
            self._send_weights(member.actor)

    def poll(self) -> list[Report]:
        """Return the reports that have come, without waiting. Collectors that have died are replaced.

        Raises:
            RuntimeError: several in a row have died before they reported anything.
        """
        self.tend()
        reports, self._reports = self._reports, []
        return reports

    def tend(self) -> None:
        """Take the reports that have come, and replace collectors that have died. `buffer.sample` does it, too."""
        for i, member in enumerate(self._members):
            refs = [member.running, member.report]
            for ref in ray.wait(refs, num_returns=2, timeout=0)[0]:
                try:
                    found = ray.get(ref)
                except RayError as error:
                    self._replace(i, error)
                    break
                if found is not None:
                    self._reports.append(found)
                    self._failed = 0
                    member.report = member.actor.report.remote()

    def stop(self, timeout: float = 60.0) -> list[Report]:
        """End all collectors, after what they have played is stored; returns their last reports."""
        self._buffer.while_waiting = None
        for member in self._members:
            member.actor.stop.remote()
        reports, self._reports = self._reports, []
        for member in self._members:
            try:
                reports.append(ray.get(member.report, timeout=timeout))
                ray.get(member.running, timeout=timeout)
                reports.append(ray.get(member.actor.report.remote(), timeout=timeout))
            except (RayError, TimeoutError) as error:
                log.warning("a collector has died or hangs at its end: %s", _line(error))
            ray.kill(member.actor)
        self._members = []
        return reports

    def _start(self) -> _Member:
        actor: Any = self._actor.remote(*self._arguments, self.next_seed)
        self.next_seed += 1
        self._send_weights(actor)
        return _Member(self.next_seed - 1, actor, actor.run.remote(), actor.report.remote())

    def _send_weights(self, actor: Any) -> None:
        actor.set_weights.remote(self._version, self._weights, self._epsilon)

    def _replace(self, i: int, error: Exception) -> None:
        self._failed += 1
        if self._failed > _TRIES * len(self._members):
            raise RuntimeError(f"collectors die before they report anything: {error}") from error
        log.warning("collector %d has died and is replaced: %s", i, _line(error))
        ray.kill(self._members[i].actor)
        self._members[i] = self._start()
        self.replaced += 1


@dataclass
class _Member:
    """A collector, and the calls to it that are under way."""

    seed: int
    actor: Any
    running: Any
    report: Any


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
