"""A script as users write it: `mypy --strict` must have nothing to say about it (`make type`). It also runs."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    DamagedFileError,
    MemoryUsage,
    compressed_class,
    find_buffer_dtypes,
    find_smallest_dtype,
    has_igzip,
    has_lz4,
    has_numba,
    has_zstd,
)
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, find_gpu_buffer_dtypes
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch
from sb3_extra_buffers.recording import BaseRecordBuffer, DummyRecordBuffer, RecordBuffer, Steps
from sb3_extra_buffers.training_utils import BufferStatsCallback
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.buffer_warmup import warm_up
from sb3_extra_buffers.training_utils.eval_model import eval_model

IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)


def make_buffer(rows: int) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(rows, IMAGE, spaces.Discrete(3), "cpu", n_envs=1, compression_method="auto")


def fill(buffer: ReplayBuffer, n_steps: int) -> None:
    obs = np.zeros((1, 4, 36, 36), np.uint8)
    for t in range(n_steps):
        obs[0, :, t % 36] = t % 256
        buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])


def save_and_load(buffer: CompressedReplayBuffer, path: Path) -> CompressedReplayBuffer:
    buffer.save(path)
    try:
        return CompressedReplayBuffer.load(path)
    except DamagedFileError as error:
        raise SystemExit(str(error)) from error


def figures(buffer: CompressedReplayBuffer) -> tuple[int, float]:
    usage: MemoryUsage = buffer.memory_usage()
    return usage.stored_bytes, usage.ratio


def record(frames: np.ndarray[Any, np.dtype[np.uint8]], keep: bool) -> Steps:
    buffer: BaseRecordBuffer = RecordBuffer(res=(36, 36), ch_num=1, size=10) if keep else DummyRecordBuffer()
    for frame in frames:
        buffer.add(frame, 0.0, 1)
    return buffer[-5:]


def train(steps: int) -> DQN:
    env = make_env("PongNoFrameskip-v4", n_envs=1, framestack=4)
    dtypes = find_buffer_dtypes(obs_shape=(4, 84, 84), elem_dtype=np.uint8, compression_method="zstd3")
    model = DQN(
        "CnnPolicy",
        env,
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"dtypes": dtypes, "compression_method": "zstd3"},
    )
    if model.replay_buffer is not None:
        warm_up(model.replay_buffer, 1, env, model, warmup_episodes=1)
    model.learn(steps, callback=BufferStatsCallback())
    eval_model(1, env, model, close_env=True)
    return model


def main() -> None:
    buffer = make_buffer(40)
    fill(buffer, 40)
    with TemporaryDirectory() as folder:
        again = save_and_load(buffer, Path(folder) / "some.buffer")
    stored, ratio = figures(again)
    batch = again.sample(8)
    print(stored, f"{ratio:.2%}", batch.observations.shape, repr(again))

    array = CompressedArray((10, 2), np.uint8, (36, 36), compression_method="rle")
    array[0] = 1
    print(array[0].sum(), array.shape, find_smallest_dtype(300), has_numba(), has_zstd(), has_lz4(), has_igzip())
    print(record(np.zeros((10, 36, 36, 1), np.uint8), keep=True).rewards)

    keyed = spaces.Dict({"image": IMAGE})
    print(CompressedDictReplayBuffer(4, keyed, spaces.Discrete(3), "cpu").memory_usage())
    print(CompressedRolloutBuffer(4, IMAGE, spaces.Discrete(3), "cpu").memory_usage().ratio)
    print(compressed_class(ReplayBuffer).__name__)
    kinds = find_gpu_buffer_dtypes((4, 36, 36), numpy_dtype_to_torch(np.uint8), "rle")
    print(GpuReplayBuffer(4, IMAGE, spaces.Discrete(3), "cpu", dtypes=kinds, compression_method="rle").device_usage())


if __name__ == "__main__":
    main()
