"""Memory of a replay buffer by method, and the time that `add` takes, beside the figures published for 0.5.0.

    make example NAME=eval_memory_saving ARGS="--steps 4000 --method auto zstd3 lz4-block/1"

All buffers get the same transitions of random play, in turns. Shares are of one raw copy of the observations: SB3's
buffer keeps two. Seconds depend on the machine and its load: compare them within a column, not across.
"""

import argparse
from collections.abc import Iterator
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np
from published import METHODS, published
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from tqdm import tqdm

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000, help="transitions, over all envs")
    parser.add_argument("--env", default="MsPacmanNoFrameskip-v4", help="Atari game")
    parser.add_argument(
        "--method", nargs="+", default=METHODS, help="compression methods; default: all but zstd15 and 22"
    )
    parser.add_argument("--device", default="cpu", help="where samples go")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def play(env: VecEnv, steps: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of `add`. A vector env resets by itself: the last observation of an episode is in `infos`."""
    rng = np.random.default_rng(seed)
    obs = env.reset()
    for _ in tqdm(range(steps // env.num_envs), unit="step"):
        action = rng.integers(env.action_space.n, size=env.num_envs)
        new_obs, reward, done, infos = env.step(action)
        next_obs = deepcopy(new_obs)
        for i in np.flatnonzero(done):
            next_obs[i] = infos[i]["terminal_observation"]
        yield obs, next_obs, action, reward, done, infos
        obs = new_obs


def make_buffers(methods: list[str], *given: Any) -> dict[str, Any]:
    return {
        "sb3": ReplayBuffer(*given),
        **{method: CompressedReplayBuffer(*given, compression_method=method) for method in methods},
    }


def fill(buffers: dict[str, Any], steps: Iterator[tuple[Any, ...]]) -> dict[str, float]:
    """Add each step to all buffers; return the seconds that each has spent in `add`."""
    seconds = dict.fromkeys(buffers, 0.0)
    for step in steps:
        for name, buffer in buffers.items():
            start = perf_counter()
            buffer.add(*step)
            seconds[name] += perf_counter() - start
    return seconds


def main() -> None:
    args = parse_args()
    env = make_env(args.env, args.envs, DummyVecEnv, seed=args.seed)
    spaces = (env.observation_space, env.action_space, args.device, args.envs)
    fill(make_buffers(args.method, 200, *spaces), play(env, 200, args.seed))  # compiles what is to be compiled
    buffers = make_buffers(args.method, args.steps, *spaces)
    seconds = fill(buffers, play(env, args.steps, args.seed))
    env.close()

    sb3 = buffers["sb3"]
    raw = sb3.observations[: sb3.pos or None].nbytes
    print(f"\n{args.env}, {args.steps:,} transitions: {raw / 1e6:,.0f} MB in one raw copy")
    print(f"{'':13} {'memory':>9} {'share':>8} {'add':>8}   {'published':>17}")
    for name, buffer in buffers.items():
        stored = 2 * raw if buffer is sb3 else buffer.memory_usage().stored_bytes
        print(f"{name:13} {stored / 1e6:6.1f} MB {stored / raw:7.2%} {seconds[name]:6.2f} s   {published(name)}")


if __name__ == "__main__":
    main()
