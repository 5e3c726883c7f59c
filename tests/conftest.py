"""What all tests share: one torch thread, and the same random state at the start of each test."""

from __future__ import annotations

import pytest
import torch
from seeding import seed_all

torch.set_num_threads(1)  # pytest-xdist keeps every core busy already


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_all(0)
