"""Train DQN on an Atari game with a compressed replay buffer, then show the memory that the buffer takes.

Takes about two minutes on two CPU cores: long enough to fill part of the buffer, far too short to master the game.

    pip install "sb3-extra-buffers[fast,atari]" tqdm rich
    python examples/demo.py
"""

import argparse
import math

import ale_py
import gymnasium as gym
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_extra_buffers.compressed import CompressedReplayBuffer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train DQN on an Atari game with a compressed replay buffer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=40_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="Atari environment")
    parser.add_argument("--method", default="auto", help="compression method, such as delta, zstd-3 or lz4-block/1")
    parser.add_argument("--buffer-size", type=int, default=100_000, help="transitions that the buffer can hold")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()

    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(args.env, n_envs=4, seed=args.seed), n_stack=4)
    model = DQN(
        "CnnPolicy",
        env,
        # These two lines are all that differs from a training with SB3's own buffer.
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"compression_method": args.method},
        buffer_size=args.buffer_size,
        learning_starts=2_000,
        train_freq=4,  # in steps of the 4 envs: one update every 16 transitions
        target_update_interval=1_000,
        learning_rate=1e-4,
        seed=args.seed,
    )
    model.learn(args.steps, progress_bar=True)
    env.close()

    print(model.replay_buffer.memory_usage())
    space = model.observation_space  # SB3 keeps each transition's observation and its next observation
    sb3_bytes = args.buffer_size * 2 * math.prod(space.shape) * space.dtype.itemsize
    print(f"SB3's ReplayBuffer would have allocated {sb3_bytes / 1e9:.2f} GB for its {args.buffer_size:,} transitions.")


if __name__ == "__main__":
    main()
