"""Envs whose frames say which step of which env they are, and what checks that of a batch."""

from __future__ import annotations

import secrets
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv

STACK, SIDE, ACTIONS = 4, 36, 5
OBSERVATIONS = spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
EPISODE = 37
"""Steps of an episode; every third one is truncated, the others terminate."""


def frames(players: NDArray[Any], steps: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the frame of each step of each player, `[n, SIDE, SIDE]`: both numbers, and a pattern made of them."""
    numbers = np.stack([players, steps], axis=-1).astype("<i8")  # [n, 2]
    found = np.zeros((len(numbers), SIDE * SIDE), np.uint8)
    found[:, :16] = numbers.view(np.uint8)
    found[:, 16:] = (np.arange(SIDE * SIDE - 16) // 40 + players[:, None]) % 7 * 30
    moving = 16 + (steps * 11) % (SIDE * SIDE - 40)
    found[np.arange(len(found))[:, None], moving[:, None] + np.arange(8)] = (steps[:, None] * 3) % 256
    return found.reshape(-1, SIDE, SIDE)


def stacks(players: NDArray[Any], steps: NDArray[Any]) -> NDArray[np.uint8]:
    """Return observations `[n, STACK, SIDE, SIDE]`: a step and those before it, as far as its episode goes."""
    first = steps // EPISODE * EPISODE
    each = [frames(players, np.maximum(steps - STACK + 1 + i, first)) for i in range(STACK)]
    return np.stack(each, axis=1)


def rewards(players: NDArray[Any], steps: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.float32]:
    return ((players % 97) * 10_000 + steps % 997 * 10 + actions).astype(np.float32)


def dones(steps: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which steps end an episode, and which of these by truncation."""
    ends = steps % EPISODE == EPISODE - 2
    return ends, ends & (steps // EPISODE % 3 == 0)


def read(obs: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return players and steps of observations."""
    numbers = np.ascontiguousarray(obs[:, -1].reshape(len(obs), SIDE * SIDE)[:, :16]).view("<i8")
    return numbers[:, 0], numbers[:, 1]


def check(batch: Any) -> NDArray[np.int64]:
    """Raise unless every transition of a batch is one that a player made, whole; returns `[n, 2]` players and steps."""
    obs, next_obs = (np.asarray(part.cpu()) for part in (batch.observations, batch.next_observations))
    actions, got, ends = (np.asarray(part.cpu()).reshape(-1) for part in (batch.actions, batch.rewards, batch.dones))
    players, steps = read(obs)
    np.testing.assert_array_equal(obs, stacks(players, steps))
    np.testing.assert_array_equal(next_obs, stacks(players, steps + 1))
    np.testing.assert_array_equal(got, rewards(players, steps, actions))
    done, truncated = dones(steps)
    np.testing.assert_array_equal(ends.astype(bool), done & ~truncated)
    return np.stack([players, steps], axis=1)


def nth(number: int) -> int:
    """Return the step of a player's n-th transition: the last observation of an episode has none."""
    episode, place = divmod(number, EPISODE - 1)
    return episode * EPISODE + place


def held(handles: list[Any]) -> list[tuple[int, int]]:
    """Return the player and step of every transition in the shards, after checking its pixels."""
    import ray

    def content(shard: Any) -> Any:
        inner = shard.buffer
        rows, envs = np.arange(inner.size())[:, None], np.arange(inner.n_envs)[None]
        return [
            part[rows, envs].reshape(-1, *inner.obs_shape) for part in (inner.observations, inner.next_observations)
        ]

    found: list[tuple[int, int]] = []
    for handle in handles:
        obs, next_obs = ray.get(handle.__ray_call__.options(max_task_retries=-1).remote(content))
        players, steps = read(obs)
        np.testing.assert_array_equal(obs, stacks(players, steps))
        np.testing.assert_array_equal(next_obs, stacks(players, steps + 1))
        found += zip(players.tolist(), steps.tolist(), strict=True)
    return found


def step(players: NDArray[Any], number: int, random: np.random.Generator) -> tuple[Any, ...]:
    """Return the arguments of `add` for one step of all players; `number` counts steps that have a next one."""
    steps = np.full(len(players), nth(number))
    actions = random.integers(ACTIONS, size=len(players))
    done, truncated = dones(steps)
    infos = [{"TimeLimit.truncated": bool(flag)} for flag in truncated]
    return stacks(players, steps), stacks(players, steps + 1), actions, rewards(players, steps, actions), done, infos


class FingerprintEnv(gym.Env):
    """A player whose steps can be told from all others."""

    observation_space = OBSERVATIONS
    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, player: int | None = None) -> None:
        self.player, self.at = secrets.randbits(40) if player is None else player, -1

    def _seen(self) -> NDArray[np.uint8]:
        return stacks(np.array([self.player]), np.array([self.at]))[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        self.at = (self.at // EPISODE + 1) * EPISODE if self.at >= 0 else 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        before = np.array([self.at])
        reward = rewards(np.array([self.player]), before, np.array([action]))[0]
        done, truncated = dones(before)
        self.at += 1
        return self._seen(), float(reward), bool(done[0] & ~truncated[0]), bool(truncated[0]), {}


def make_env(seed: int) -> DummyVecEnv:
    """Return two players whose numbers follow from the seed."""
    return DummyVecEnv([lambda player=player: FingerprintEnv(player) for player in players_of(seed)])


def players_of(seed: int) -> list[int]:
    return [1000 + 2 * seed, 1001 + 2 * seed]
