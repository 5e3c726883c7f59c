"""Time to read a rollout buffer by method (`get`), with its memory, beside the figures published for 0.5.0.

    make example NAME=eval_memory_loading ARGS="--steps 4000 --method auto zstd3 lz4-block/1"

One `DummyVecRolloutBuffer` hands each step of random play to all buffers; then each is read, minibatch by minibatch,
in turns. Seconds depend on the machine and its load: compare them within a column, not across.
"""

import argparse
from time import perf_counter
from typing import Any

import numpy as np
import torch
from published import METHODS, published
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv
from tqdm import tqdm

from sb3_extra_buffers.compressed import CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.vec_buf import DummyVecRolloutBuffer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000, help="transitions of the rollout, over all envs")
    parser.add_argument("--env", default="MsPacmanNoFrameskip-v4", help="Atari game")
    parser.add_argument(
        "--method", nargs="+", default=METHODS, help="compression methods; default: all but zstd15 and 22"
    )
    parser.add_argument("--device", default="cpu", help="where minibatches go")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3, help="how often to read everything")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    env = make_env(args.env, args.envs, DummyVecEnv, seed=args.seed)
    rows = args.steps // args.envs
    given = (rows, env.observation_space, env.action_space, args.device)
    buffers: dict[str, Any] = {"sb3": RolloutBuffer(*given, n_envs=args.envs)}
    for method in args.method:
        buffers[method] = CompressedRolloutBuffer(*given, n_envs=args.envs, compression_method=method)
    all_of_them = DummyVecRolloutBuffer(*given, n_envs=args.envs, buffers=buffers.values())

    rng = np.random.default_rng(args.seed)
    obs, start = env.reset(), np.ones(args.envs, bool)
    value, log_prob = torch.zeros(args.envs, 1), torch.zeros(args.envs)
    for _ in tqdm(range(rows), unit="step"):
        action = rng.integers(env.action_space.n, size=args.envs)
        new_obs, reward, done, _ = env.step(action)
        all_of_them.add(obs, action, reward, start, value, log_prob)
        obs, start = new_obs, done
    all_of_them.compute_returns_and_advantage(value, start)
    env.close()

    seconds: dict[str, list[float]] = {name: [] for name in buffers}
    for epoch in range(args.epochs):
        for name, buffer in buffers.items():
            np.random.seed(epoch)  # the same minibatches for all
            begin = perf_counter()
            for _ in buffer.get(args.batch_size):
                pass
            seconds[name].append(perf_counter() - begin)

    raw = buffers["sb3"].observations.nbytes
    print(f"\n{args.env}, {args.steps:,} transitions: {raw / 1e6:,.0f} MB raw")
    print(f"get({args.batch_size}), best of {args.epochs}")
    print(f"{'':13} {'memory':>9} {'share':>8} {'get':>8} {'of sb3':>7}   {'published: share, add':>21}")
    for name, buffer in buffers.items():
        stored = raw if name == "sb3" else buffer.memory_usage().stored_bytes
        best = min(seconds[name])
        print(
            f"{name:13} {stored / 1e6:6.1f} MB {stored / raw:7.2%} {best:6.2f} s {best / min(seconds['sb3']):6.2f}x"
            f"   {published(name):>21}"
        )


if __name__ == "__main__":
    main()
