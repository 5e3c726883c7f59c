"""Memory of ViZDoom frames by method: segmentation masks (the labels buffer) and RGB of the same session.

    make example NAME=eval_memory_vizdoom ARGS="--steps 2000"

One Dict replay buffer for each method gets every transition of random play; its account is kept key by key. Shares are
of what SB3's `DictReplayBuffer` keeps for the same key, which is each observation and its next.
"""

import argparse
from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecTransposeImage

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer
from sb3_extra_buffers.training_utils.doom import DoomEnv
from sb3_extra_buffers.training_utils.eval_model import eval_model

METHODS = ["auto", "delta", "zstd3", "zstd-3", "lz4-block/1", "rle-jit", "igzip1", "gzip1", "none"]


class RandomPlay:
    """A model that chooses any action."""

    def __init__(self, n_actions: int, seed: int) -> None:
        self.n_actions, self.rng = n_actions, np.random.default_rng(seed)

    def predict(self, obs: Any, episode_start: Any, **others: Any) -> tuple[Any, None]:
        return self.rng.integers(self.n_actions, size=len(episode_start)), None


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="transitions that each buffer keeps, over all envs")
    parser.add_argument("--env", default="deathmatch", help="a scenario that comes with ViZDoom")
    parser.add_argument("--method", nargs="+", default=METHODS, help="compression methods")
    parser.add_argument("--device", default="cpu", help="where samples go")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    env = VecTransposeImage(
        make_vec_env(DoomEnv, args.envs, seed=args.seed, env_kwargs={"scenario": args.env, "observe": "both"})
    )
    given = (args.steps, env.observation_space, env.action_space, args.device, args.envs)
    buffers = {method: CompressedDictReplayBuffer(*given, compression_method=method) for method in args.method}
    model = RandomPlay(env.action_space.n, args.seed)
    while not next(iter(buffers.values())).full:
        eval_model(args.envs, env, model, close_env=False, buffer=buffers.values(), verbose=False)
    env.close()

    print(f"{args.env}, {args.steps:,} transitions of random play")
    print(f"{'':12} {'labels':>9} {'share':>7}   {'rgb':>9} {'share':>7}")
    for method, buffer in buffers.items():
        labels, rgb = buffer.memory_usage().parts
        print(
            f"{method:12} {labels.stored_bytes / 1e6:6.1f} MB {labels.ratio:7.2%}   "
            f"{rgb.stored_bytes / 1e6:6.1f} MB {rgb.ratio:7.2%}"
        )
    print(f"{'SB3':12} {labels.raw_bytes / 1e6:6.0f} MB {1:7.0%}   {rgb.raw_bytes / 1e6:6.0f} MB {1:7.0%}")


if __name__ == "__main__":
    main()
