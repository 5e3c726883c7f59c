"""`BufferStatsCallback`: figures of the buffer in SB3's log."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from envs import Catch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils import BufferStatsCallback

NAMES = ["buffer/stored_mb", "buffer/raw_mb", "buffer/ratio", "buffer/unique_frames"]


def images() -> Any:
    return VecFrameStack(DummyVecEnv([Catch] * 2), 4)


def logged(model: Any, steps: int, folder: Path) -> list[dict[str, str]]:
    model.set_logger(configure(str(folder), ["csv", "tensorboard"]))
    model.learn(steps, callback=BufferStatsCallback(), log_interval=1)
    model.logger.close()
    with (folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row[NAMES[0]]]  # SB3 writes twice where two episodes end in one step


def test_replay_buffers(tmp_path: Path) -> None:
    model = DQN("CnnPolicy", images(), replay_buffer_class=CompressedReplayBuffer, buffer_size=400, learning_starts=999)
    rows = logged(model, 200, tmp_path)
    assert len(rows) > 5
    raw = [float(row["buffer/raw_mb"]) for row in rows]
    assert raw == sorted(raw)
    for row in rows:
        assert float(row["buffer/ratio"]) == pytest.approx(
            float(row["buffer/stored_mb"]) / max(float(row["buffer/raw_mb"]), 1e-9)
        )
    usage = model.replay_buffer.memory_usage()
    assert 0 < float(rows[-1]["buffer/unique_frames"]) <= usage.unique_frames
    assert 0 < raw[-1] <= usage.raw_bytes / 1e6


def test_rollout_buffers_and_tensorboard(tmp_path: Path) -> None:
    model = PPO("CnnPolicy", images(), rollout_buffer_class=CompressedRolloutBuffer, n_steps=32, batch_size=32)
    rows = logged(model, 128, tmp_path)
    raw = 32 * 2 * 4 * 36 * 36 / 1e6
    assert [float(row["buffer/raw_mb"]) for row in rows] == [raw] * 2
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(NAMES) <= set(events.Tags()["scalars"])
    assert [event.value for event in events.Scalars("buffer/raw_mb")] == pytest.approx([raw] * 2)


def test_dict_observations(tmp_path: Path) -> None:
    model = DQN(
        "MultiInputPolicy",
        DummyVecEnv([lambda: Catch(keyed=True)]),
        replay_buffer_class=CompressedDictReplayBuffer,
        buffer_size=100,
        learning_starts=999,
    )
    assert float(logged(model, 60, tmp_path)[-1]["buffer/raw_mb"]) > 0


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_a_buffer_that_knows_nothing_of_its_memory(algorithm: Any) -> None:
    options = {"buffer_size": 100} if algorithm is DQN else {"n_steps": 8, "batch_size": 8}
    model = algorithm("MlpPolicy", "CartPole-v1", **options)
    with pytest.raises(TypeError, match=r"(Replay|Rollout)Buffer"):
        model.learn(20, callback=BufferStatsCallback())
