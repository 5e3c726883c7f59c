"""Train DQN on an Atari game with a compressed replay buffer.

    make example NAME=train_replay ARGS="--steps 5000"

Without `make`: pip install "sb3-extra-buffers[fast,atari]" tqdm rich, then python examples/example_train_replay.py.
A million steps take hours on a CPU; the buffer of 100,000 transitions takes tens of MB where SB3's takes 5.6 GB.
"""

import argparse
from pathlib import Path

from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils import BufferStatsCallback
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.eval_model import eval_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="MsPacmanNoFrameskip-v4", help="Atari game")
    parser.add_argument("--method", default="auto", help="compression method, such as delta, zstd3 or lz4-block/1")
    parser.add_argument("--device", default="auto", help="where the network is trained: cpu, cuda, ...")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--buffer-size", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=8, help="episodes of the final evaluation, 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the model")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    vec_env_cls = SubprocVecEnv if args.envs > 1 else DummyVecEnv
    env = make_env(args.env, args.envs, vec_env_cls, seed=args.seed)
    model = DQN(
        "CnnPolicy",
        env,
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"compression_method": args.method},
        buffer_size=args.buffer_size,
        learning_starts=min(50_000, args.steps // 10),
        train_freq=4,
        target_update_interval=1_000,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        learning_rate=1e-4,
        seed=args.seed,
        device=args.device,
        verbose=1,
    )
    model.learn(args.steps, callback=BufferStatsCallback(), progress_bar=True)
    env.close()
    print(model.replay_buffer.memory_usage())
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"dqn-{args.env}.zip"
    model.save(file)
    print(f"Saved: {file}")
    if args.episodes:
        eval_model(args.episodes, make_env(args.env, args.envs, vec_env_cls, seed=args.seed + 100), model)


if __name__ == "__main__":
    main()
