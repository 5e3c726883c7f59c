"""ViZDoom as SB3's algorithms want it: segmentation masks (the labels buffer), RGB, or both."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import optional

__all__ = ["DoomEnv"]

HEIGHT, WIDTH = 120, 160


class DoomEnv(gym.Env[Any, Any]):
    """A scenario of ViZDoom, with one button pressed at a time.

    Args:
        scenario: one that comes with ViZDoom, such as `basic`, `defend_the_center` or `deathmatch`.
        observe: `"labels"` shows the labels buffer, in which each object has a value of its own, `[height, width, 1]`;
            `"rgb"` the screen, `[height, width, 3]`; `"both"` a Dict of the two.
        frame_skip: tics that an action lasts.
        shrink: keep every n-th row and column of 120 x 160.

    Raises:
        ImportError: vizdoom is missing; it holds the pip command.
        ValueError: an unknown scenario, or something else to observe.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 # as gymnasium declares it
    render_mode = "rgb_array"

    def __init__(
        self,
        scenario: str = "basic",
        observe: Literal["labels", "rgb", "both"] = "labels",
        frame_skip: int = 4,
        shrink: int = 1,
    ) -> None:
        vizdoom = optional.require("vizdoom", "DoomEnv", "vizdoom")
        path = Path(vizdoom.scenarios_path) / f"{scenario}.cfg"
        if not path.exists():
            known = ", ".join(sorted(each.stem for each in path.parent.glob("*.cfg")))
            raise ValueError(f"unknown scenario {scenario!r}; known: {known}")
        if observe not in ("labels", "rgb", "both"):
            raise ValueError(f"observe is 'labels', 'rgb' or 'both', not {observe!r}")
        if frame_skip < 1 or shrink < 1:
            raise ValueError(f"frame_skip and shrink are at least 1; got {frame_skip} and {shrink}")
        self.observe, self.frame_skip, self.shrink = observe, frame_skip, shrink
        self.game = vizdoom.DoomGame()
        self.game.load_config(str(path))
        self.game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self.game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        self.game.set_labels_buffer_enabled(True)
        self.game.set_window_visible(False)
        self.game.set_mode(vizdoom.Mode.PLAYER)
        buttons = [button for button in self.game.get_available_buttons() if not button.name.endswith("_DELTA")]
        self.game.set_available_buttons(buttons)
        self._folder = tempfile.TemporaryDirectory(prefix="vizdoom-")  # for the files that ViZDoom leaves
        self.game.set_doom_config_path(str(Path(self._folder.name) / "doom.ini"))
        self.game.init()
        labels, rgb = self._space(1), self._space(3)
        whole = spaces.Dict({"labels": labels, "rgb": rgb})
        self.observation_space = {"labels": labels, "rgb": rgb, "both": whole}[observe]
        self.action_space = spaces.Discrete(len(buttons))
        self._seen = np.zeros((HEIGHT, WIDTH, 3), np.uint8), np.zeros((HEIGHT, WIDTH), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.game.set_seed(seed % 2**31)
        self.game.new_episode()
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Press a button. Doom shows nothing after the end of an episode: the last screen stands for it."""
        pressed = [i == int(action) for i in range(int(self.action_space.n))]  # type: ignore[attr-defined]
        reward = float(self.game.make_action(pressed, self.frame_skip))
        over = bool(self.game.is_episode_finished())
        timeout = over and bool(self.game.is_episode_timeout_reached())
        return self._look(), reward, over and not timeout, timeout, {}

    def render(self) -> Any:
        """Return the screen, `[120, 160, 3]`."""
        return self._seen[0].copy()

    def close(self) -> None:
        """End the game."""
        self.game.close()
        self._folder.cleanup()

    def _space(self, channels: int) -> spaces.Box:
        rows, columns = (-(-n // self.shrink) for n in (HEIGHT, WIDTH))
        return spaces.Box(0, 255, (rows, columns, channels), np.uint8)

    def _look(self) -> Any:
        state = self.game.get_state()
        if state is not None:
            self._seen = np.array(state.screen_buffer), np.array(state.labels_buffer)
        screen, objects = (np.ascontiguousarray(seen[:: self.shrink, :: self.shrink]) for seen in self._seen)
        labels: NDArray[np.uint8] = objects[..., None]
        if self.observe == "both":
            return {"labels": labels, "rgb": screen}
        return labels if self.observe == "labels" else screen
