"""Small environments to train on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Catch(gym.Env[Any, Any]):
    """Catch a falling block: images of 36x36x1, three actions, or one continuous. Some episodes are cut off.

    Args:
        keyed: observe a Dict of the image and a vector.
        flat: observe a vector of 90 floats.
        continuous: one action in [-1, 1].
    """

    def __init__(self, *, keyed: bool = False, flat: bool = False, continuous: bool = False) -> None:
        image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        vector = spaces.Box(-np.inf, np.inf, (90,), np.float32)
        small = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.keyed, self.flat = keyed, flat
        self.observation_space = (
            spaces.Dict({"image": image, "vector": vector, "small": small}) if keyed else vector if flat else image
        )
        self.continuous = continuous
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)
        self.x = self.y = self.paddle = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.y, self.paddle, self.t = int(self.np_random.integers(2, 34)), 0, 18, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = int(np.round(float(np.asarray(action).reshape(-1)[0]))) if self.continuous else int(action) - 1
        self.paddle = int(np.clip(self.paddle + 4 * move, 2, 33))
        self.y, self.t = self.y + 3, self.t + 1
        landed = self.y >= 34
        reward = float(abs(self.paddle - self.x) < 4) if landed else 0.01 * move
        return self._observe(), reward, landed, self.t >= 9 and self.x % 2 == 0, {}

    def action_masks(self) -> Any:
        """Which actions are allowed, for MaskablePPO."""
        return np.array([self.paddle > 2, True, self.paddle < 33])

    def _observe(self) -> Any:
        image = np.zeros((36, 36, 1), np.uint8)
        image[::6] = 30
        image[max(self.y - 2, 0) : self.y + 1, self.x - 1 : self.x + 2] = 250
        image[34:, self.paddle - 2 : self.paddle + 3] = 120
        vector = np.cos(np.arange(90) * 0.1 + self.y).astype(np.float32)
        vector[:3] = self.x, self.y, self.paddle
        if self.keyed:
            return {"image": image, "vector": vector, "small": vector[:3]}
        return vector if self.flat else image
