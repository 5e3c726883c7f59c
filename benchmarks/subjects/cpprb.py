"""cpprb with `next_of` and, where observations are stacked, `stack_compress`.

Both assume one stream of observations, so each env has a buffer of its own and a batch is joined from all of them. It
is told the ends of episodes with `on_episode_end` and then returns what was added, with one exception: where an episode
ends in the first rows of a full ring, the next observation of the last row, whose frames lie there, is overwritten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cpprb import ReplayBuffer
from recordings import Recording
from stable_baselines3.common.buffers import ReplayBuffer as Sb3ReplayBuffer

from subjects import Different

NOTE = "one buffer per env, batches joined; memory computed; next_obs of its last row is wrong after some episodes"
FIELDS = ("obs", "action", "next_obs", "done", "reward")


class Replay:
    """One cpprb buffer per env behind SB3's `add` and `sample`."""

    def __init__(self, recording: Recording, rows: int) -> None:
        self.recording, self.rows, self.row = recording, rows, 0
        self.image = recording.observation_space.dtype == np.uint8
        channels, *size = recording.obs_shape
        obs = {"shape": (*size, channels), "dtype": recording.observation_space.dtype}
        action = {"shape": recording.action_space.shape or 1, "dtype": recording.action_space.dtype}
        fields = {"obs": obs, "action": action, "done": {"dtype": np.float32}, "reward": {"dtype": np.float32}}
        options = {"stack_compress": "obs"} if recording.stack > 1 else {}
        self.buffers = [ReplayBuffer(rows, dict(fields), next_of="obs", **options) for _ in range(recording.n_envs)]
        self.ends = np.zeros((rows, recording.n_envs), bool)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        if self.image:  # its stacks come last
            obs, next_obs = obs.transpose(0, 2, 3, 1), next_obs.transpose(0, 2, 3, 1)
        for env, buffer in enumerate(self.buffers):
            ended = done[env] and not infos[env]["TimeLimit.truncated"]
            buffer.add(obs=obs[env], action=action[env], next_obs=next_obs[env], done=ended, reward=reward[env])
            if done[env]:
                buffer.on_episode_end()
        self.ends[self.row] = done
        self.row = (self.row + 1) % self.rows

    def sample(self, batch_size: int) -> list[torch.Tensor]:
        parts = [buffer.sample(batch_size // len(self.buffers)) for buffer in self.buffers]
        return [self._joined(parts, field) for field in FIELDS]

    def _joined(self, parts: list[dict[str, np.ndarray]], field: str) -> torch.Tensor:
        batch = torch.from_numpy(np.concatenate([part[field] for part in parts]))
        return batch.permute(0, 3, 1, 2) if self.image and field.endswith("obs") else batch


def replay(recording: Recording, rows: int, method: str) -> Replay:
    return Replay(recording, rows)


def rollout(recording: Recording, rows: int, method: str) -> None:
    return None


def owned_bytes(buffer: Replay) -> int:
    """Return the bytes of its arrays, and of both observations of the transitions it copies at each episode's end."""
    recording = buffer.recording
    frame = recording.obs_bytes // recording.stack
    action = int(np.prod(recording.action_space.shape)) * recording.action_space.dtype.itemsize
    held = len(buffer.buffers) * ((buffer.rows + recording.stack) * frame + buffer.rows * (action + 8))
    return held + int(buffer.ends.sum()) * recording.stack * 2 * recording.obs_bytes


def same(buffer: Replay, reference: Sb3ReplayBuffer) -> None:
    """Compare all that it holds with SB3's buffer, but for the row that it is known to lose."""
    for env, each in enumerate(buffer.buffers):
        held = each.get_all_transitions()
        if buffer.image:
            held["obs"], held["next_obs"] = held["obs"].transpose(0, 3, 1, 2), held["next_obs"].transpose(0, 3, 1, 2)
        expected = {
            "obs": reference.observations[:, env],
            "action": reference.actions[:, env],
            "next_obs": reference.next_observations[:, env],
            "done": (reference.dones * (1 - reference.timeouts))[:, env, None],
            "reward": reference.rewards[:, env, None],
        }
        lost = int(reference.dones[: buffer.recording.stack, env].any())
        for field, wanted in expected.items():
            end = len(wanted) - lost if field == "next_obs" else len(wanted)
            if not np.array_equal(held[field].reshape(wanted.shape)[:end], wanted[:end]):
                raise Different(f"{field} differ from what was added")
