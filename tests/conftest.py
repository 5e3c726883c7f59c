"""What all tests share: one torch thread, the same random state and generated data in every run, rows that wait."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from seeding import seed_all

from sb3_extra_buffers.compressed import observations

torch.set_num_threads(1)  # pytest-xdist keeps every core busy already
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("other", deadline=None)  # --hypothesis-profile=other tries other data each time
settings.load_profile("same")
observations.WAITING = {"replay": 16, "rollout": 16}  # rows wait in small buffers, too


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_all(0)
