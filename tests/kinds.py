"""Observations of every kind that a space allows, and streams of transitions made of them."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces


@dataclass(frozen=True)
class Kind:
    """One kind of observation: its space, and how an env draws the newest frame of it.

    `draw(rng, start, t)` gives the frame at time t of the episode whose number is `start`. With `stack` frames along
    `axis`, observations are the last `stack` frames. `view` hands them out as `VecTransposeImage` does: channel-first
    views of channel-last memory.
    """

    name: str
    space: spaces.Space[Any]
    draw: Callable[[np.random.Generator, int, int], Any]
    stack: int = 1
    axis: int = 0
    view: bool = False

    def __str__(self) -> str:
        return self.name


def game_frame(shape: tuple[int, ...], dtype: Any = np.uint8) -> Callable[..., Any]:
    """A background that depends on the episode, with a few moving values: what codecs are made for."""

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        size = int(np.prod(shape))
        flat = (np.arange(size) // 40 * 7 + start % 3).astype(dtype)
        flat[(t * 5 + start) % size] = 99
        flat[(t * 11 + 3) % size] = rng.integers(0, 100)
        return flat.reshape(shape)

    return draw


def noise_frame(shape: tuple[int, ...], dtype: Any = np.uint8) -> Callable[..., Any]:
    """Every value of the dtype equally likely: what no codec can compress."""

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        if np.dtype(dtype) == bool:
            return rng.integers(0, 2, shape).astype(bool)
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    return draw


def picture_frame(shape: tuple[int, ...], axis: int, colours: int) -> Callable[..., Any]:
    """Pixels of at most so many colours, other ones each time: what palettes are made for. Some frames have more."""
    palette = np.random.default_rng(0).integers(0, 256, (colours, shape[axis]), np.uint8)
    others = [n for i, n in enumerate(shape) if i != axis % len(shape)]

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        pixels = palette[rng.integers(0, colours, others)]
        if t % 13 == 12:
            pixels = rng.integers(0, 256, pixels.shape, np.uint8)
        return np.ascontiguousarray(np.moveaxis(pixels, -1, axis))

    return draw


def view_frame(height: int, width: int) -> Callable[..., Any]:
    """Six views that come back, of 30 colours, with something else before them each time."""
    palette = np.random.default_rng(0).integers(0, 256, (3, 30), np.uint8)
    views = np.random.default_rng(1).integers(0, 30, (6, height, width))

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        view = views[t % 6].copy()
        y, x = rng.integers(0, height), rng.integers(0, width)
        view[y : y + 4, x : x + 4] = rng.integers(0, 30)
        return palette[:, view]

    return draw


def mask_frame(height: int, width: int) -> Callable[..., Any]:
    """Rectangles of labels, elsewhere each time."""

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        frame = np.zeros((1, height, width), np.uint8)
        for label in rng.integers(1, 9, 3):
            y, x = rng.integers(0, height), rng.integers(0, width)
            frame[0, y : y + 9, x : x + 7] = label
        return frame

    return draw


def float_bits(n: int, dtype: Any) -> Callable[..., Any]:
    """Floats of every sort: NaN with payloads, infinities, -0.0, subnormal numbers, runs of equal values."""
    dtype = np.dtype(dtype)
    bits = np.dtype(f"u{dtype.itemsize}")
    quiet = np.array(np.nan, dtype).view(bits)
    specials = np.concatenate(
        [
            np.array([0.0, -0.0, np.inf, -np.inf, 1.5, -2.25, np.finfo(dtype).smallest_subnormal], dtype),
            np.array([quiet | 1, quiet | 77, quiet | bits.type(1 << (bits.itemsize * 8 - 1))], bits).view(dtype),
        ]
    )

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        out = np.full(n, specials[(t + start) % len(specials)], dtype)
        some = rng.integers(0, n, n // 3)
        out[some] = specials[rng.integers(0, len(specials), some.size)]
        out[rng.integers(0, n, 4)] = rng.normal(size=4).astype(dtype)
        return out

    return draw


def smooth_floats(n: int, dtype: Any = np.float32) -> Callable[..., Any]:
    """Ordinary finite floats, most of which stay for some steps."""

    def draw(rng: np.random.Generator, start: int, t: int) -> Any:
        out = np.sin(np.arange(n) + start).astype(dtype)
        out[rng.integers(0, n, 2)] = rng.normal(size=2)
        return out

    return draw


def box(shape: Sequence[int], dtype: Any) -> spaces.Box:
    """A Box that holds every value of `dtype`, or every image for uint8."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, tuple(shape), dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, tuple(shape), dtype.type)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, tuple(shape), dtype.type)


def _flag(n: Any) -> Callable[..., Any]:
    return lambda rng, start, t: rng.integers(0, 2, n).astype(np.int8)


def _choices(nvec: Any, low: int = 0) -> Callable[..., Any]:
    return lambda rng, start, t: np.asarray(rng.integers(0, nvec) + low, np.int64)


_MANY = np.array([3, 5, 1000, 2] * 25)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("image", box((1, 20, 20), np.uint8), game_frame((1, 20, 20))),
        Kind("odd-image", box((1, 17, 19), np.uint8), game_frame((1, 17, 19))),
        Kind("channel-last", box((17, 19, 1), np.uint8), game_frame((17, 19, 1))),
        Kind("noise", box((1, 20, 20), np.uint8), noise_frame((1, 20, 20))),
        Kind("noise-of-4-channels", box((4, 16, 16), np.uint8), noise_frame((4, 16, 16))),
        Kind("stack", box((4, 18, 18), np.uint8), game_frame((1, 18, 18)), stack=4),
        Kind("stack-view", box((4, 18, 18), np.uint8), game_frame((1, 18, 18)), stack=4, view=True),
        Kind("stack-last", box((18, 18, 4), np.uint8), game_frame((18, 18, 1)), stack=4, axis=-1),
        Kind("noise-stack", box((4, 17, 17), np.uint8), noise_frame((1, 17, 17)), stack=4),
        Kind("rgb-stack", box((12, 11, 13), np.uint8), game_frame((3, 11, 13)), stack=4, view=True),
        Kind("rgb-stack-last", box((11, 13, 12), np.uint8), game_frame((11, 13, 3)), stack=4, axis=-1),
        Kind("pictures", box((3, 21, 20), np.uint8), picture_frame((3, 21, 20), 0, 40), view=True),
        Kind("pictures-last", box((19, 20, 3), np.uint8), picture_frame((19, 20, 3), -1, 250)),
        Kind("picture-stack", box((9, 20, 20), np.uint8), picture_frame((3, 20, 20), 0, 60), stack=3, view=True),
        Kind("picture-stack-last", box((20, 20, 6), np.uint8), picture_frame((20, 20, 3), -1, 60), stack=2, axis=-1),
        Kind("few-colours", box((3, 12, 66), np.uint8), picture_frame((3, 12, 66), 0, 14), view=True),
        Kind("views", box((3, 24, 40), np.uint8), view_frame(24, 40), view=True),
        Kind("masks", box((1, 30, 35), np.uint8), mask_frame(30, 35)),
        Kind("float-stack", box((3, 9, 9), np.float32), game_frame((1, 9, 9), np.float32), stack=3),
        Kind("int16", box((3, 7, 9), np.int16), noise_frame((3, 7, 9), np.int16)),
        Kind("uint16", box((200,), np.uint16), game_frame((200,), np.uint16)),
        Kind("int64", box((40,), np.int64), noise_frame((40,), np.int64)),
        Kind("float16", box((150,), np.float16), float_bits(150, np.float16)),
        Kind("float32", box((80,), np.float32), float_bits(80, np.float32)),
        Kind("float64", box((51,), np.float64), float_bits(51, np.float64)),
        Kind("bool", box((300,), bool), noise_frame((300,), bool)),
        Kind("small-float32", box((4,), np.float32), float_bits(4, np.float32)),
        Kind("small-uint8", box((1, 5, 5), np.uint8), noise_frame((1, 5, 5))),
        Kind("discrete", spaces.Discrete(7), _choices(7)),
        Kind("discrete-from-minus-3", spaces.Discrete(7, start=-3), _choices(7, -3)),
        Kind("multi-discrete", spaces.MultiDiscrete([3, 5]), _choices([3, 5])),
        Kind("large-multi-discrete", spaces.MultiDiscrete(_MANY), _choices(_MANY)),
        Kind("multi-binary", spaces.MultiBinary(9), _flag(9)),
        Kind("large-multi-binary", spaces.MultiBinary(300), _flag(300)),
    )
}

FLAT_KINDS = list(KINDS)

DICT_KINDS = {
    "image+vector": {"image": KINDS["image"], "vector": KINDS["small-float32"]},
    "stack+large-vector": {"stack": KINDS["stack-view"], "vector": KINDS["float32"]},
    "mixed": {
        "discrete": KINDS["discrete"],
        "image": KINDS["rgb-stack"],
        "flags": KINDS["large-multi-binary"],
        "choices": KINDS["multi-discrete"],
        "vector": KINDS["float64"],
        "numbers": KINDS["int16"],
    },
    "small": {"vector": KINDS["small-float32"], "flags": KINDS["multi-binary"]},
}

GOAL_KIND = {
    "observation": KINDS["stack"],
    "achieved_goal": Kind("goal", box((80,), np.float32), smooth_floats(80)),
    "desired_goal": Kind("goal", box((80,), np.float32), smooth_floats(80)),
}

AnyKind = Kind | dict[str, Kind]


def space_of(kind: AnyKind) -> Any:
    """Return the observation space of a kind."""
    if isinstance(kind, Kind):
        return kind.space
    return spaces.Dict({key: part.space for key, part in kind.items()})


class _Stream:
    """Observations of one kind from several envs, with resets."""

    def __init__(self, kind: Kind, n_envs: int, rng: np.random.Generator) -> None:
        self.kind, self.rng = kind, rng
        self.frames: list[list[Any]] = [[] for _ in range(n_envs)]
        self.starts = [0] * n_envs
        self.t = 0

    def reset(self, env: int) -> None:
        self.starts[env] = int(self.rng.integers(0, 1000))
        frame = self.kind.draw(self.rng, self.starts[env], 0)
        self.frames[env] = [np.zeros_like(frame)] * (self.kind.stack - 1) + [frame]

    def step(self) -> None:
        self.t += 1
        for env, frames in enumerate(self.frames):
            self.frames[env] = [*frames[1:], self.kind.draw(self.rng, self.starts[env], self.t)]

    def observe(self) -> Any:
        obs = np.stack(
            [frames[0] if len(frames) == 1 else np.concatenate(frames, self.kind.axis) for frames in self.frames]
        )
        if self.kind.view:
            obs = np.ascontiguousarray(np.moveaxis(obs, 1, -1))
            obs = np.moveaxis(obs, -1, 1)
        obs.flags.writeable = False
        return obs


@dataclass(frozen=True)
class Step:
    """One transition of all envs. Arrays are read-only: a buffer that writes to its input fails."""

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    infos: list[dict[str, Any]]
    episode_start: Any
    value: torch.Tensor
    log_prob: torch.Tensor

    def replay(self) -> tuple[Any, ...]:
        """Arguments of a replay buffer's `add`."""
        infos = copy.deepcopy(self.infos)
        return copy.copy(self.obs), copy.copy(self.next_obs), self.action, self.reward, self.done, infos

    def rollout(self) -> tuple[Any, ...]:
        """Arguments of a rollout buffer's `add`."""
        return copy.copy(self.obs), self.action, self.reward, self.episode_start, self.value, self.log_prob


def steps(
    kind: AnyKind, n_envs: int, n: int, *, seed: int = 0, end: float = 0.12, action_space: Any = None
) -> list[Step]:
    """Return `n` transitions: `next_obs` is the following `obs`, except where an episode ends.

    About half of the ends are truncations; `next_obs` is then the terminal observation, as SB3's algorithms store it.
    """
    return list(itertools.islice(endless_steps(kind, n_envs, seed=seed, end=end, action_space=action_space), n))


def endless_steps(
    kind: AnyKind, n_envs: int, *, seed: int = 0, end: float = 0.12, action_space: Any = None
) -> Iterator[Step]:
    """Yield transitions, see `steps`."""
    rng = np.random.default_rng(seed)
    parts = {None: kind} if isinstance(kind, Kind) else kind
    streams = {key: _Stream(part, n_envs, rng) for key, part in parts.items()}

    def observe() -> Any:
        obs = {key: stream.observe() for key, stream in streams.items()}
        return obs[None] if isinstance(kind, Kind) else obs

    for stream in streams.values():
        for env in range(n_envs):
            stream.reset(env)
    obs, start = observe(), np.ones(n_envs, bool)
    action_space = spaces.Discrete(4) if action_space is None else action_space
    action_space.seed(seed)
    while True:
        for stream in streams.values():
            stream.step()
        next_obs = observe()
        done = rng.random(n_envs) < end
        truncated = done & (rng.random(n_envs) < 0.5)
        yield Step(
            obs,
            next_obs,
            np.stack([np.asarray(action_space.sample()) for _ in range(n_envs)]),
            rng.normal(size=n_envs),
            done,
            [{"TimeLimit.truncated": bool(cut), "note": int(rng.integers(9))} for cut in truncated],
            start,
            torch.from_numpy(rng.normal(size=(n_envs, 1)).astype(np.float32)),
            torch.from_numpy(rng.normal(size=n_envs).astype(np.float32)),
        )
        for env in np.flatnonzero(done):
            for stream in streams.values():
                stream.reset(env)
        obs, start = (observe() if done.any() else next_obs), done


@functools.cache
def cached_steps(kind: str, n_envs: int, n: int) -> list[Step]:
    """Return the steps of a named kind, made once in each process."""
    named = KINDS.get(kind) or DICT_KINDS.get(kind) or GOAL_KIND
    return steps(named, n_envs, n)


def kind_named(name: str) -> AnyKind:
    """Return a kind by its name."""
    return KINDS.get(name) or DICT_KINDS.get(name) or GOAL_KIND
