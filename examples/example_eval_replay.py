"""Evaluate a DQN model on an Atari game, and keep every transition in a compressed replay buffer on the way.

    make example NAME=eval_replay ARGS="--episodes 4"

Plays what example_train_replay.py has saved, or an untrained model if there is none.
"""

import argparse
from pathlib import Path

from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.eval_model import eval_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=27_000, help="cut episodes off after this many steps")
    parser.add_argument("--env", default="MsPacmanNoFrameskip-v4", help="Atari game")
    parser.add_argument("--method", default="auto", help="compression method, such as delta, zstd3 or lz4-block/1")
    parser.add_argument("--device", default="auto", help="where the network runs: cpu, cuda, ...")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--buffer-size", type=int, default=40_000, help="transitions to keep")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--model", type=Path, help="default: runs/dqn-ENV.zip")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # A step is 4 frames of the game; rewards are those of the game, and losing a life is not the end.
    env = make_env(
        args.env,
        args.envs,
        SubprocVecEnv if args.envs > 1 else DummyVecEnv,
        seed=args.seed,
        max_episode_steps=4 * args.steps,
        wrapper_kwargs={"terminal_on_life_loss": False, "clip_reward": False},
    )
    file = args.model or Path("runs") / f"dqn-{args.env}.zip"
    if file.exists():
        model = DQN.load(file, device=args.device)
    else:
        print(f"No model at {file}: an untrained one plays.")
        model = DQN("CnnPolicy", env, buffer_size=1, device=args.device, seed=args.seed)
    buffer = CompressedReplayBuffer(
        args.buffer_size,
        env.observation_space,
        env.action_space,
        "cpu",
        n_envs=args.envs,
        compression_method=args.method,
    )
    _, (seconds,) = eval_model(args.episodes, env, model, buffer=buffer)
    print(buffer.memory_usage())
    print(
        f"{seconds:.2f} s in add, {1e6 * seconds / max(buffer.size(), 1) / args.envs:.0f} us for each transition kept"
    )


if __name__ == "__main__":
    main()
