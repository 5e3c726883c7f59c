"""One seed for every random generator."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Set every global random generator that SB3, gymnasium or a test draws from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
