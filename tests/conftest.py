"""What all tests share: one torch thread, and the same random state and generated data in every run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from seeding import seed_all

torch.set_num_threads(1)  # pytest-xdist keeps every core busy already
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("other", deadline=None)  # --hypothesis-profile=other tries other data each time
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_all(0)
