"""Play episodes with a model, and keep what it saw: `eval_model`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import NStepReplayBuffer, RolloutBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, is_vecenv_wrapped, unwrap_vec_normalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.recording import BaseRecordBuffer, RecordBuffer

__all__ = ["eval_model", "report"]

Observation = Any  # [envs, ...], or a dict of these


class Transition(NamedTuple):
    """One step of all envs, as SB3's replay buffers take it."""

    obs: Observation
    next_obs: Observation
    action: NDArray[Any]
    reward: NDArray[Any]
    done: NDArray[np.bool_]
    infos: list[dict[str, Any]]


def eval_model(
    n_eps: int,
    eval_env: GymEnv,
    model: Any,
    close_env: bool = True,
    buffer: Any = None,
    *,
    deterministic: bool = True,
    verbose: bool = True,
) -> tuple[list[float], list[float]]:
    """Play `n_eps` episodes and report the returns; on the way, fill buffers with the transitions.

    Each env plays its share of the episodes, so that short ones do not count more often. Returns are those of the
    game where the env has a `Monitor` (lost lives and clipped rewards do not disturb them), else sums of rewards.

    Args:
        n_eps: episodes to play, at least one for each env.
        eval_env: where; its number of envs is a multiple of each buffer's.
        model: anything with SB3's `predict`.
        close_env: close `eval_env` at the end.
        buffer: a replay buffer, or a `RecordBuffer` where there is one env, or several of them.
        deterministic: whether the model takes its best action.
        verbose: show a progress bar with the running mean (where tqdm is installed), and print the report line.

    Returns:
        The return of each episode, and the seconds that each buffer has spent in `add`.

    Raises:
        ValueError: fewer episodes than envs, or a buffer that does not fit the env. Nothing is played then.
        TypeError: a buffer that takes no transitions.
    """
    try:
        env = _as_the_model_sees(eval_env, model)
        buffers = as_buffers(buffer)
        if n_eps < env.num_envs:
            raise ValueError(f"{env.num_envs} envs play at least {env.num_envs} episodes; got n_eps={n_eps}")
        for each in buffers:
            check_buffer(each, env)
        returns: list[float] = []
        seconds = [0.0] * len(buffers)
        with _progress(n_eps, verbose) as bar:
            for transition, ended in _play(n_eps, env, model, deterministic):
                for i, each in enumerate(buffers):
                    seconds[i] += _add(each, transition)
                returns += ended
                if ended and bar is not None:
                    bar.set_postfix_str(f"mean {np.mean(returns):.2f}", refresh=False)
                    bar.update(len(ended))
    finally:
        if close_env:
            eval_env.close()
    if verbose:
        print(report(returns))
    return returns, seconds


def report(returns: Iterable[float]) -> str:
    """Return one line about episode returns.

    >>> report([1, 2, 3, 4, 5])
    '3.00 +/- 1.41 | Q1 2.00 | Q2 3.00 | Q3 4.00 | relative IQR 0.67 | min 1.00 | max 5.00 | 5 episodes'
    """
    values = np.asarray(list(returns), np.float64)
    if not values.size:
        raise ValueError("no episodes to report")
    q1, q2, q3 = np.percentile(values, [25, 50, 75])
    relative = f"{(q3 - q1) / abs(q2):.2f}" if q2 else "n/a"
    parts = [
        f"{values.mean():.2f} +/- {values.std():.2f}",
        f"Q1 {q1:.2f}",
        f"Q2 {q2:.2f}",
        f"Q3 {q3:.2f}",
        f"relative IQR {relative}",
        f"min {values.min():.2f}",
        f"max {values.max():.2f}",
        f"{len(values)} episode{'s' if len(values) > 1 else ''}",
    ]
    return " | ".join(parts)


def as_buffers(buffer: Any) -> list[Any]:
    """Return the buffers that a caller gave: none, one, or several."""
    if buffer is None:
        return []
    return [buffer] if hasattr(buffer, "add") else list(buffer)


def check_buffer(buffer: Any, env: VecEnv) -> None:
    """Raise if `buffer` cannot take the transitions of `env`."""
    name = type(buffer).__name__
    if isinstance(buffer, BaseRecordBuffer):
        _check_record(buffer, env)
        return
    if isinstance(buffer, RolloutBuffer) or not all(hasattr(buffer, part) for part in ("add", "n_envs")):
        raise TypeError(f"replay buffers and record buffers take transitions; {name} does not")
    if env.num_envs % buffer.n_envs:
        raise ValueError(f"{name} has n_envs={buffer.n_envs}; {env.num_envs} envs are no multiple of that")
    if env.num_envs > buffer.n_envs:
        # Rows are then of different episodes, one after another, which these buffers take for one.
        ordered = isinstance(buffer, HerReplayBuffer | NStepReplayBuffer)
        if ordered or getattr(buffer, "optimize_memory_usage", False):
            why = "" if ordered else " with optimize_memory_usage"
            raise ValueError(
                f"{name}{why} needs rows in order: as many envs as its {buffer.n_envs}, not {env.num_envs}"
            )
    space = getattr(buffer, "observation_space", env.observation_space)
    if _shapes(space) != _shapes(env.observation_space):
        raise ValueError(f"{name} is for observations {space}; the env has {env.observation_space}")


def _check_record(buffer: BaseRecordBuffer, env: VecEnv) -> None:
    name, space = type(buffer).__name__, env.observation_space
    if env.num_envs != 1:
        raise ValueError(f"{name} records one env; {env.num_envs} are given")
    if not isinstance(env.action_space, spaces.Discrete):
        raise ValueError(f"{name} records discrete actions; the env has {env.action_space}")
    if getattr(buffer, "feature_dtypes", ()):
        raise ValueError(f"{name} records {len(buffer.feature_dtypes)} features; an env gives none")  # type: ignore[attr-defined]
    if isinstance(buffer, RecordBuffer):
        channels, *res = (space.shape or ()) if len(space.shape or ()) == 3 else (1, *(space.shape or ()))
        if (*res, channels) != buffer.frame_shape:
            raise ValueError(f"{name} records frames {buffer.frame_shape}; the env has {space}, channels first")


def _play(n_eps: int, env: VecEnv, model: Any, deterministic: bool) -> Iterator[tuple[Transition, list[float]]]:
    """Yield each step, with the returns of the episodes that ended in it."""
    n_envs = env.num_envs
    left = np.array([(n_eps + i) // n_envs for i in range(n_envs)])
    monitored = is_vecenv_wrapped(env, VecMonitor) or env.env_is_wrapped(Monitor)[0]
    normalized = unwrap_vec_normalize(env)
    sums = np.zeros(n_envs)
    state: Any = None
    seen = env.reset()
    obs = seen if normalized is None else normalized.get_original_obs()
    start = np.ones(n_envs, bool)
    while left.any():
        action, state = model.predict(seen, state=state, episode_start=start, deterministic=deterministic)
        seen, reward, done, infos = env.step(action)
        if normalized is None:
            new, earned = seen, reward
        else:
            new, earned = normalized.get_original_obs(), normalized.get_original_reward()
        next_obs = _with_terminal(new, done, infos, normalized)
        sums += earned
        ended: list[float] = []
        for i in np.flatnonzero(done):
            over = "episode" in infos[i] if monitored else True  # a lost life ends no game
            if over and left[i]:
                ended.append(float(infos[i]["episode"]["r"] if monitored else sums[i]))
                left[i] -= 1
            sums[i] = 0.0
        yield Transition(obs, next_obs, _as_stored(action, env.action_space), earned, done, infos), ended
        obs, start = new, done


def _with_terminal(new: Observation, done: NDArray[Any], infos: list[dict[str, Any]], normalized: Any) -> Observation:
    """Return the next observations: a vector env has already reset where an episode ended."""
    if not done.any():
        return new
    next_obs = deepcopy(new)
    for i in np.flatnonzero(done):
        last = infos[i].get("terminal_observation")
        if last is None:
            continue
        if normalized is not None:
            last = normalized.unnormalize_obs(last)
        if isinstance(next_obs, dict):
            for key, part in next_obs.items():
                part[i] = last[key]
        else:
            next_obs[i] = last
    return next_obs


def _as_stored(action: NDArray[Any], space: spaces.Space[Any]) -> NDArray[Any]:
    """Return actions as SB3 keeps them in replay buffers: bounded continuous ones scaled to [-1, 1]."""
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        return action
    scaled: NDArray[Any] = 2.0 * ((action - space.low) / (space.high - space.low)) - 1.0
    return scaled


def _add(buffer: Any, step: Transition) -> float:
    """Add a step to a buffer, in as many rows as it takes; return the seconds that took."""
    if isinstance(buffer, BaseRecordBuffer):
        frame = None if isinstance(step.obs, dict) else step.obs[0]
        if frame is not None and frame.ndim == 3:
            frame = np.moveaxis(frame, 0, -1)
        start = perf_counter()
        buffer.add(frame, step.reward[0], step.action[0], done=step.done[0])
        return perf_counter() - start
    seconds = 0.0
    for first in range(0, len(step.done), buffer.n_envs):
        envs = slice(first, first + buffer.n_envs)
        row = Transition(*(_part(value, envs) for value in step))
        start = perf_counter()
        buffer.add(*row)
        seconds += perf_counter() - start
    return seconds


def _part(value: Any, envs: slice) -> Any:
    return {key: part[envs] for key, part in value.items()} if isinstance(value, dict) else value[envs]


def _as_the_model_sees(env: GymEnv, model: Any) -> VecEnv:
    """Return `env` as SB3's algorithms wrap it: a vector env, with channel-first images if the model has those."""
    if not isinstance(env, VecEnv):
        plain = env
        env = DummyVecEnv([lambda: plain])
    wanted = getattr(model, "observation_space", env.observation_space)
    if _shapes(wanted) != _shapes(env.observation_space):
        env = BaseAlgorithm._wrap_env(env, monitor_wrapper=False)
    if _shapes(wanted) != _shapes(env.observation_space):
        raise ValueError(f"the model is for observations {wanted}; the env has {env.observation_space}")
    return env


def _shapes(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _shapes(part) for key, part in space.spaces.items()}
    return space.shape, space.dtype


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Any]:
    if not shown or not optional.has("tqdm"):
        yield None
        return
    with optional.require("tqdm", "a progress bar", "extra").tqdm(total=total, unit="episode") as bar:
        yield bar
