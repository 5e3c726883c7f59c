"""Ctrl-C in the middle of an `add`, at any instruction: the step is in the buffer as a whole, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from interrupting import interrupts
from kinds import steps
from twins import TWINS, assert_same_arrays

ROWS, N_ENVS, BEFORE = 4, 2, 6


@pytest.mark.parametrize("method", ["delta", "zstd3"])
@pytest.mark.parametrize("name", ["replay", "dict-replay", "her"])
def test_a_step_is_added_or_not(name: str, method: str) -> None:
    """The ring is full, so each step overwrites one. What comes after the interrupt is right, too."""
    twin = TWINS[name]
    given = steps(twin.default_kind, N_ENVS, 14, end=0.3)
    where, interrupted, outcomes = 0, True, set()
    while interrupted:
        ours, sb3 = twin.make(twin.default_kind, ROWS, N_ENVS, compression_method=method)
        for step in given[:BEFORE]:
            twin.add(ours, step)
            twin.add(sb3, step)

        def add(buffer: Any = ours) -> None:
            twin.add(buffer, given[BEFORE])

        interrupted = interrupts(add, where, ("sb3_extra_buffers", "stable_baselines3"))
        added = ours.pos != sb3.pos
        outcomes.add((interrupted, added))
        if added:
            twin.add(sb3, given[BEFORE])
        for step in given[BEFORE + 1 :]:
            assert_same_arrays(ours, sb3)
            twin.add(ours, step)
            twin.add(sb3, step)
        assert_same_arrays(ours, sb3)
        where += 17
    assert outcomes == {(True, False), (True, True), (False, True)}
