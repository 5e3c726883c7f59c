"""ViZDoom scenes: 160 x 120 RGB frames, and the labels buffer (segmentation masks) of the same session.

`doom-<scenario>-rgb` is played with six buttons in every scenario, so that the player can go anywhere;
`doom-<scenario>-own-rgb` with the buttons that the scenario itself has, as everybody trains on it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import vizdoom
from recordings import Recording
from stable_baselines3.common.env_util import make_vec_env

from recorders.playing import play

BUTTONS = ("MOVE_FORWARD", "MOVE_LEFT", "MOVE_RIGHT", "TURN_LEFT", "TURN_RIGHT", "ATTACK")
FRAME_SKIP = 4


class Doom(gym.Env):
    """A scenario with one button pressed at a time. An observation is RGB and labels together, `[120, 160, 4]`."""

    def __init__(self, scenario: str) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (120, 160, 4), np.uint8)
        self.game = vizdoom.DoomGame()
        self.game.load_config(str(Path(vizdoom.scenarios_path) / f"{scenario.removesuffix('-own')}.cfg"))
        self.game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self.game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        self.game.set_labels_buffer_enabled(True)
        buttons = [getattr(vizdoom.Button, name) for name in BUTTONS]
        if scenario.endswith("-own"):  # but those that take a number
            buttons = [each for each in self.game.get_available_buttons() if not each.name.endswith("_DELTA")]
        self.game.set_available_buttons(buttons)
        self.action_space = gym.spaces.Discrete(len(buttons))
        self.game.set_window_visible(False)
        self.game.set_mode(vizdoom.Mode.PLAYER)
        self.game.init()

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.game.set_seed(seed)
        self.game.new_episode()
        self.seen = self._look()
        return self.seen, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = self.game.make_action([i == action for i in range(int(self.action_space.n))], FRAME_SKIP)
        over = self.game.is_episode_finished()
        timeout = over and not self.game.is_player_dead()
        if not over:  # Doom shows nothing after the end: the last frame stands for it
            self.seen = self._look()
        return self.seen, reward, over and not timeout, timeout, {}

    def close(self) -> None:
        self.game.close()

    def _look(self) -> np.ndarray:
        state = self.game.get_state()
        return np.concatenate([state.screen_buffer, state.labels_buffer[..., None]], axis=-1)


def record(name: str, steps: int, n_envs: int) -> dict[str, Recording]:
    """Play the scenario of `doom-<scenario>-<rgb or labels>`; both recordings come of it."""
    scenario = name.removeprefix("doom-").rpartition("-")[0]
    env = make_vec_env(Doom, n_envs=n_envs, seed=0, env_kwargs={"scenario": scenario})
    both = play(env, f"doom-{scenario}", steps, stack=1)
    return {
        f"doom-{scenario}-{kind}": replace(
            both, first=both.first[..., part], frames=both.frames[..., part], resets=both.resets[..., part]
        )
        for kind, part in (("rgb", slice(3)), ("labels", slice(3, 4)))
    }
