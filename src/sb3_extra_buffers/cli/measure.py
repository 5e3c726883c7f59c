"""Put the transitions of an env through SB3's buffer and ours, side by side."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.codecs import get_codec, optional
from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.frames.auto import SMALL

METHODS = ("auto", "delta", "delta/2", "near", "none", "rle-jit", "zstd-3", "zstd3", "lz4-block/1", "igzip1", "gzip1")
COLOURED = ("palette+near", "palette+none")
"""Measured as well if what is to be compressed are pictures of three channels."""
SB3 = "SB3"

_BLOCK = 20  # steps: buffers take turns after so many
_ROUNDS = 21
_LARGEST = 1 << 29  # bytes of observations in SB3's buffer


class Figures(NamedTuple):
    """What one method takes. Ratios are to SB3 in the same turns.

    To add, turns differ by what they show: medians. To sample, by what else the machine does: the best counts.
    """

    method: str
    codec: str
    bytes: int
    ratio: float
    add_us: float
    add_ratio: float
    sample_ms: float
    sample_ratio: float
    exact: bool


def arguments_of(method: str) -> dict[str, Any]:
    """Return the arguments of a buffer for a method, which may have a filter before it: `palette+zstd3`."""
    kind, _, codec = method.rpartition("+")
    return {"compression_method": codec, **({"compression_kwargs": {"filter": kind}} if kind else {})}


def check_methods(methods: Sequence[str]) -> None:
    """Raise if one of these cannot be measured.

    Raises:
        ValueError: an unknown method.
        ImportError: it needs a library that is missing.
    """
    for method in methods:
        if method != "auto":
            given = arguments_of(method)
            get_codec(given["compression_method"], given.get("compression_kwargs"), channels=3)


def usual_methods(space: spaces.Space[Any]) -> list[str]:
    """Return the methods to measure if none are asked for: those whose library is installed."""
    needed = {
        "delta/2": "numba",
        "near": "numba",
        "rle-jit": "numba",
        "zstd-3": "zstandard",
        "zstd3": "zstandard",
        "lz4-block/1": "lz4",
        "igzip1": "isal",
    }
    methods = [method for method in METHODS if method not in needed or optional.has(needed[method])]
    return [*methods, *COLOURED] if _are_pictures(space) else methods


def _are_pictures(space: spaces.Space[Any]) -> bool:
    """Tell whether all that is worth compressing are pictures of three channels, or stacks of them."""
    parts = list(space.values()) if isinstance(space, spaces.Dict) else [space]
    large = [part for part in parts if _observation_bytes(part) >= SMALL]
    return bool(large) and all(map(_is_picture, large))


def _is_picture(space: spaces.Space[Any]) -> bool:
    shape = space.shape or ()
    return space.dtype == np.uint8 and len(shape) == 3 and min(shape[0], shape[-1]) % 3 == 0


def measure(env: VecEnv, methods: Sequence[str], *, steps: int, batch_size: int, seed: int = 0) -> list[Figures]:
    """Return figures of SB3's buffer, first, and of each method: random actions in `env`, the same for all."""
    _keep_freed_memory()
    is_dict = isinstance(env.observation_space, spaces.Dict)
    sb3_class: Any = DictReplayBuffer if is_dict else ReplayBuffer
    our_class: Any = CompressedDictReplayBuffer if is_dict else CompressedReplayBuffer
    transition_bytes = 2 * env.num_envs * _observation_bytes(env.observation_space)
    rows = max(1, min(-(-steps // 2), _LARGEST // max(transition_bytes, 1)))  # so that the ring gets full on the way
    common = (rows * env.num_envs, env.observation_space, env.action_space, "cpu", env.num_envs)
    buffers: dict[str, Any] = {SB3: sb3_class(*common)}
    buffers.update({method: our_class(*common, **arguments_of(method)) for method in methods})
    adding: dict[str, list[float]] = {name: [] for name in buffers}
    for block in _blocks(_transitions(env, steps, seed), steps):
        for name, buffer in buffers.items():
            start = perf_counter()
            for transition in block:
                buffer.add(*transition)
            adding[name].append((perf_counter() - start) / len(block))
    sampling: dict[str, list[float]] = {name: [] for name in buffers}
    exact = dict.fromkeys(buffers, True)
    for turn in _shown(range(_ROUNDS), "sampling", "round"):
        expected = None
        for name, buffer in buffers.items():
            np.random.seed(seed + turn)
            start = perf_counter()
            batch = buffer.sample(batch_size)
            sampling[name].append(perf_counter() - start)
            expected = batch if expected is None else expected
            exact[name] = exact[name] and _same(batch, expected)
            del batch
    return [_figures(name, buffers, adding, sampling, exact[name]) for name in buffers]


def _keep_freed_memory() -> None:
    """Have glibc, where it is, give the memory of a batch to the next one: that is SB3 at its best.

    Else it may return each large block to the system, and SB3's `sample` takes several times as long, or it may not.
    """
    m_trim_threshold, m_mmap_max = -1, -4
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**30)


def _figures(
    name: str,
    buffers: dict[str, Any],
    adding: dict[str, list[float]],
    sampling: dict[str, list[float]],
    exact: bool,
) -> Figures:
    raw = _sb3_bytes(buffers[SB3])
    usage = None if name == SB3 else buffers[name].memory_usage()
    stored = raw if usage is None else usage.stored_bytes
    return Figures(
        method=name,
        codec="dense" if usage is None else usage.method,
        bytes=stored,
        ratio=stored / raw,
        add_us=1e6 * median(adding[name]),
        add_ratio=median(ours / theirs for ours, theirs in zip(adding[name], adding[SB3], strict=True)),
        sample_ms=1e3 * min(sampling[name]),
        sample_ratio=min(sampling[name]) / min(sampling[SB3]),
        exact=exact,
    )


def _sb3_bytes(buffer: ReplayBuffer) -> int:
    both: list[Any] = [buffer.observations, buffer.next_observations]
    arrays = [array for each in both for array in (each.values() if isinstance(each, dict) else [each])]
    return sum(array.nbytes for array in arrays)


def _transitions(env: VecEnv, steps: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Play random actions; yields the arguments of a replay buffer's `add`."""
    env.action_space.seed(seed)
    obs = env.reset()
    for _ in range(steps):
        actions = np.stack([np.asarray(env.action_space.sample()) for _ in range(env.num_envs)])
        new_obs, rewards, dones, infos = env.step(actions)
        next_obs = new_obs
        if dones.any():  # what followed the last action, not the first observation of the next episode
            next_obs = {k: v.copy() for k, v in new_obs.items()} if isinstance(new_obs, dict) else np.array(new_obs)
            for i in np.flatnonzero(dones):
                last = infos[i]["terminal_observation"]
                for key in next_obs if isinstance(next_obs, dict) else ():
                    next_obs[key][i] = last[key]
                if not isinstance(next_obs, dict):
                    next_obs[i] = last
        yield obs, next_obs, actions, rewards, dones, infos
        obs = new_obs


def _blocks(transitions: Iterator[tuple[Any, ...]], steps: int) -> Iterator[list[tuple[Any, ...]]]:
    block: list[tuple[Any, ...]] = []
    for i in _shown(range(steps), "playing", "step"):
        block.append(next(transitions))
        if len(block) == _BLOCK or i == steps - 1:
            yield block
            block = []


def _shown(work: Iterable[int], text: str, unit: str) -> Iterable[int]:
    """Return `work` with a progress bar, where tqdm is installed and someone looks."""
    if not optional.has("tqdm"):
        return work
    bar: Iterable[int] = optional.require("tqdm", "a progress bar", "extra").tqdm(
        work, text, unit=unit, disable=None, leave=False
    )
    return bar


def _observation_bytes(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Dict):
        return sum(map(_observation_bytes, space.values()))
    return int(np.prod(space.shape or (1,))) * np.dtype(space.dtype).itemsize


def _same(batch: Any, expected: Any) -> bool:
    if isinstance(batch, dict):
        return all(_same(batch[key], expected[key]) for key in expected)
    if isinstance(batch, torch.Tensor):
        same_bytes: bool = batch.numpy().tobytes() == expected.numpy().tobytes()
        return batch.dtype == expected.dtype and same_bytes
    return batch is expected or all(map(_same, batch, expected))
