"""A game of balls and a paddle, in pixels: learned in minutes on one CPU core."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZE, PADDLE, BALLS = 36, 9, 10


class Catch(gym.Env[Any, Any]):
    """Catch ten balls, one after another: 36 x 36 grey pixels, three actions, return from -10 to 10.

    Balls fall aslant and bounce off the walls, so one frame does not tell where they go. One episode in four is cut
    off before its last ball (truncated), so that the data has ends of both kinds.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.paddle, self.balls = SIZE // 2, 0
        self.last = BALLS - 1 if self.np_random.random() < 0.25 else BALLS
        self._throw()
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + 3 * (int(action) - 1), PADDLE // 2, SIZE - 1 - PADDLE // 2))
        self.x, self.y = self.x + self.drift, self.y + 3
        if not 1 <= self.x <= SIZE - 2:
            self.x, self.drift = float(np.clip(self.x, 1, SIZE - 2)), -self.drift
        reward = 0.0
        if self.y >= SIZE - 4:
            reward = 1.0 if abs(self.x - self.paddle) <= PADDLE // 2 + 1 else -1.0
            self.balls += 1
            self._throw()
        return self._look(), reward, self.balls == BALLS, self.balls == self.last < BALLS, {}

    def _throw(self) -> None:
        self.x, self.y = float(self.np_random.integers(1, SIZE - 1)), 1
        self.drift = float(self.np_random.uniform(-0.5, 0.5))

    def _look(self) -> Any:
        screen = np.zeros((SIZE, SIZE, 1), np.uint8)
        screen[:, [0, -1]] = 80
        x = round(self.x)
        screen[self.y - 1 : self.y + 2, max(x - 1, 0) : x + 2] = 250
        screen[-2:, self.paddle - PADDLE // 2 : self.paddle + PADDLE // 2 + 1] = 160
        return screen
