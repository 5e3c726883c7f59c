"""`DoomEnv`: masks, RGB, or both, as SB3 takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env

from sb3_extra_buffers.training_utils.doom import DoomEnv


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # ViZDoom makes a folder where it runs


def play(steps: int, seed: int = 3, **options: Any) -> list[Any]:
    """Return what the env shows for some fixed actions."""
    env = DoomEnv(**options)
    seen = [env.reset(seed=seed)[0]]
    for t in range(steps):
        obs, _, over, timeout, _ = env.step(t % env.action_space.n)
        seen.append(obs)
        if over or timeout:
            seen.append(env.reset()[0])
    env.close()
    return seen


def test_both_are_views_of_one_session() -> None:
    both = play(30, observe="both")
    for labels, rgb, together in zip(play(30), play(30, observe="rgb"), both, strict=True):
        assert np.array_equal(together["labels"], labels)
        assert np.array_equal(together["rgb"], rgb)
    assert len(np.unique(np.array([each["labels"] for each in both]))) > 2  # floor, monster, player
    assert len(np.unique(np.array([each["rgb"] for each in both]))) > 50


@pytest.mark.parametrize(("shrink", "rows", "columns"), [(1, 120, 160), (2, 60, 80), (7, 18, 23)])
def test_spaces(shrink: int, rows: int, columns: int) -> None:
    env = DoomEnv(shrink=shrink)
    assert env.observation_space.shape == (rows, columns, 1)
    assert env.observation_space.contains(env.reset(seed=0)[0])
    assert env.render().shape == (120, 160, 3)
    env.close()


def test_shrinking_keeps_values() -> None:
    whole, small = play(10, observe="rgb"), play(10, observe="rgb", shrink=3)
    for one, other in zip(whole, small, strict=True):
        assert np.array_equal(one[::3, ::3], other)


def test_it_is_an_env_for_sb3() -> None:
    env = DoomEnv(observe="labels")
    assert isinstance(env.action_space, spaces.Discrete)
    check_env(env)
    env.close()


def test_episodes_are_cut_off_at_the_timeout() -> None:
    """Who does not shoot does not win: 300 tics, 4 in each step."""
    env = DoomEnv("basic")
    env.reset(seed=1)
    ends = []
    for _ in range(76):
        _, _, over, timeout, _ = env.step(0)
        if over or timeout:
            ends.append((over, timeout))
            break
    env.close()
    assert ends == [(False, True)]


def test_scenarios_with_other_buttons() -> None:
    env = DoomEnv("deathmatch", observe="rgb")
    assert env.action_space.n == 17  # those that are pressed, not turned
    env.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"scenario": "basics"}, "known: basic,"),
        ({"observe": "depth"}, "labels"),
        ({"shrink": 0}, "at least 1"),
        ({"frame_skip": 0}, "at least 1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DoomEnv(**options)


def test_without_vizdoom() -> None:
    code = """
import sys
sys.modules["vizdoom"] = None
from sb3_extra_buffers.training_utils.doom import DoomEnv
try:
    DoomEnv()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "sb3-extra-buffers[vizdoom]"' in done.stdout
