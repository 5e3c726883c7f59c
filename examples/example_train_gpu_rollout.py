"""Train PPO on an Atari game; the rollout buffer keeps its observations compressed on the GPU.

pip install "sb3-extra-buffers[fast,atari]" tqdm rich
python examples/example_train_gpu_rollout.py --steps 10000000
"""

import argparse

import ale_py
import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_extra_buffers.gpu_buffers import GpuRolloutBuffer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="Atari environment")
    parser.add_argument("--method", default="delta", help="compression method: delta, rle, none or zstd3")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", default="runs/gpu_rollout", help="where the model goes")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(args.env, n_envs=8, seed=0), n_stack=4)
    model = PPO(
        "CnnPolicy",
        env,
        # These two lines are all that differs from a training with SB3's own buffer.
        rollout_buffer_class=GpuRolloutBuffer,
        rollout_buffer_kwargs={"compression_method": args.method, "buffer_device": args.device},
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        seed=0,
        device=args.device,
    )
    model.learn(args.steps, progress_bar=True)
    model.save(args.save)
    env.close()
    print(model.rollout_buffer.device_usage())


if __name__ == "__main__":
    main()
