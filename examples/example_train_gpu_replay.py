"""Train DQN on an Atari game; the replay buffer keeps its observations compressed on the GPU.

pip install "sb3-extra-buffers[fast,atari]" tqdm rich
python examples/example_train_gpu_replay.py --steps 1000000
"""

import argparse

import ale_py
import gymnasium as gym
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="Atari environment")
    parser.add_argument("--method", default="delta", help="compression method: delta, rle, none or zstd3")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--buffer-size", type=int, default=100_000, help="transitions that the buffer can hold")
    parser.add_argument("--save", default="runs/gpu_replay", help="where the model goes")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(args.env, n_envs=4, seed=0), n_stack=4)
    model = DQN(
        "CnnPolicy",
        env,
        # These two lines are all that differs from a training with SB3's own buffer.
        replay_buffer_class=GpuReplayBuffer,
        replay_buffer_kwargs={"compression_method": args.method, "buffer_device": args.device},
        buffer_size=args.buffer_size,
        learning_starts=min(20_000, args.steps // 2),
        train_freq=4,
        target_update_interval=1_000,
        learning_rate=1e-4,
        seed=0,
        device=args.device,
    )
    model.learn(args.steps, progress_bar=True)
    model.save(args.save)
    env.close()
    print(model.replay_buffer.device_usage())


if __name__ == "__main__":
    main()
