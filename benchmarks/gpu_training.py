"""Train DQN and PPO with device buffers and with SB3's, in turns: same weights, how many steps per second.

The env plays back recorded observations of Pong and ignores actions, so that the machine needs no emulator and the
time is that of collecting, storing, sampling and learning.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from recordings import Recording, Step, load
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, GpuRolloutBuffer


class Playback(VecEnv):
    """A vector env that shows a recording.

    Args:
        recording: what its envs show.
        times: so many times the recording's envs; the others begin in its middle, or so.
    """

    def __init__(self, recording: Recording, times: int = 1) -> None:
        super().__init__(times * recording.n_envs, recording.observation_space, recording.action_space)
        self.recording = recording
        self.begins = [len(recording) * i // times for i in range(times)]
        self.render_mode = None

    def reset(self) -> np.ndarray:
        shown = [itertools.islice(self.recording.endless(), begin, None) for begin in self.begins]
        self.steps = map(joined, zip(*shown, strict=True)) if len(shown) > 1 else shown[0]
        self.following = next(self.steps)
        return self.following[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Ignore the actions."""

    def step_wait(self) -> Any:
        _, terminal, _, rewards, dones, infos = self.following
        self.following = next(self.steps)
        infos = [
            {**info, "terminal_observation": terminal[env]} if dones[env] else dict(info)
            for env, info in enumerate(infos)
        ]
        return self.following[0], np.asarray(rewards, np.float32), np.asarray(dones, bool), infos

    def close(self) -> None:
        """Nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def joined(steps: tuple[Step, ...]) -> Step:
    """Return the steps of several groups of envs as one step."""
    obs, following, actions, rewards, dones, infos = zip(*steps, strict=True)
    pictures = (np.concatenate([each.transpose(0, 2, 3, 1) for each in group]) for group in (obs, following))
    first, second = (picture.transpose(0, 3, 1, 2) for picture in pictures)  # channel-last in memory, as they were
    rest = (np.concatenate(group) for group in (actions, rewards, dones))
    return first, second, *rest, [info for group in infos for info in group]


def compare_training(device: torch.device, *, quick: bool = False) -> dict[str, Any]:
    """Return the steps per second of both buffers for each algorithm, and whether the weights are the same."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    recording = load("Pong", 300 if quick else 2_000)

    def dqn(batch_size: int) -> Callable[[Any], Any]:
        return lambda buffer_class: DQN(
            "CnnPolicy",
            Playback(recording),
            replay_buffer_class=buffer_class,
            buffer_size=8_000,
            learning_starts=512,
            batch_size=batch_size,
            train_freq=1,
            seed=0,
            device=device,
        )

    def ppo(times: int) -> Callable[[Any], Any]:
        return lambda buffer_class: PPO(
            "CnnPolicy",
            Playback(recording, times),
            rollout_buffer_class=buffer_class,
            n_steps=128,
            batch_size=256,
            n_epochs=4,
            seed=0,
            device=device,
        )

    settings = {"DQN": dqn(32), "DQN, batches of 256": dqn(256), "PPO, 8 envs": ppo(2), "PPO, 4 envs": ppo(1)}
    return {
        name: _compare(make, {"sb3": None, "ours": GpuRolloutBuffer if "PPO" in name else GpuReplayBuffer}, quick)
        for name, make in settings.items()
    }


def _compare(make: Callable[[Any], Any], classes: dict[str, Any], quick: bool) -> dict[str, Any]:
    steps = (130 if quick else 640) * make(None).n_envs  # of PPO five rollouts
    speeds: dict[str, list[float]] = {name: [] for name in classes}
    weights: dict[str, Any] = {}
    for i in range(1 if quick else 16):  # the first round warms up
        for name, buffer_class in list(classes.items())[:: 1 if i % 2 else -1]:
            model = make(buffer_class)
            start = time.perf_counter()
            model.learn(steps)
            weights[name] = {key: value.cpu() for key, value in model.policy.state_dict().items()}
            speeds[name].append(steps / (time.perf_counter() - start))
    same = all(torch.equal(weights["ours"][key], value) for key, value in weights["sb3"].items())
    speeds = {name: values[1:] or values for name, values in speeds.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return {
        "steps": steps,
        **{f"{name}_steps_per_s": value for name, value in medians.items()},
        "speed_up": statistics.median(ours / sb3 for ours, sb3 in zip(speeds["ours"], speeds["sb3"], strict=True)),
        "same_weights": same,
    }
