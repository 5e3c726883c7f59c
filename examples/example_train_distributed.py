"""Train DQN on Pong with several collectors and one learner, over a replay buffer on Ray.

    make example NAME=train_distributed ARGS="--steps 20000 --collectors 2"

Without `make`: pip install "sb3-extra-buffers[fast,atari,ray]" tqdm, then python examples/example_train_distributed.py.
By default everything runs on this machine. On a cluster, start the script on one of its nodes with `--address auto`, or
give the address of the head node: collectors and shards then run on any of the nodes.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.common.vec_env import DummyVecEnv
from tqdm import tqdm

from sb3_extra_buffers.distributed import Collectors, DistributedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.eval_model import eval_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of a Ray cluster; a local one is started by default")
    parser.add_argument("--steps", type=int, default=1_000_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="Atari game")
    parser.add_argument("--collectors", type=int, default=2)
    parser.add_argument("--envs", type=int, default=4, help="of each collector")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--buffer-size", type=int, default=200_000)
    parser.add_argument("--learning-starts", type=int, default=10_000, help="transitions before the first update")
    parser.add_argument(
        "--samples-per-insert", type=float, default=8.0, help="how often each transition is learned from"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="auto", help="where the network is trained: cpu, cuda, ...")
    parser.add_argument("--checkpoints", type=Path, help="a folder that every node reaches; shards save there")
    parser.add_argument("--episodes", type=int, default=4, help="episodes of the final evaluation, 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the model")
    return parser.parse_args()


def connect(args: argparse.Namespace) -> bool:
    """Connect to the cluster, or start one of this machine alone; returns whether that is to be ended here."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return False
    if args.address:
        ray.init(address=args.address)
    else:
        ray.init(
            address="local",
            num_cpus=args.collectors + args.shards,
            object_store_memory=500_000_000,
            include_dashboard=False,
            logging_level="error",
        )
    return True


def main() -> None:
    args = parse_args()
    started = connect(args)
    if args.checkpoints is not None:
        args.checkpoints.mkdir(parents=True, exist_ok=True)

    def game(seed: int) -> Any:
        return make_env(args.env, args.envs, DummyVecEnv, seed=seed)

    model = DQN(
        "CnnPolicy",
        game(args.seed),  # for its spaces: the learner does not play
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={
            "shards": args.shards,
            "samples_per_insert": args.samples_per_insert,
            "min_size": args.learning_starts,
            "checkpoint_dir": args.checkpoints,
            "checkpoint_every": None if args.checkpoints is None else 300.0,
        },
        buffer_size=args.buffer_size,
        batch_size=args.batch_size,
        learning_rate=1e-4,
        seed=args.seed,
        device=args.device,
    )
    model.set_logger(configure(None, []))
    buffer = model.replay_buffer
    collectors = Collectors(buffer, model, game, args.collectors, seed=args.seed + 1)
    train(model, collectors, args)
    collectors.stop()
    print(buffer.memory_usage())
    print(f"Lost with shards that died: {buffer.lost:,} transitions")
    buffer.close()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"dqn-distributed-{args.env}.zip"
    model.save(file)
    print(f"Saved: {file}")
    if started:
        import ray

        ray.shutdown()
    if args.episodes:
        eval_model(args.episodes, make_env(args.env, 1, DummyVecEnv, seed=args.seed + 100), model)


def train(model: Any, collectors: Any, args: argparse.Namespace) -> None:
    """Learn while the collectors play, until they have played enough."""
    played, updates, returns = 0, 0, []
    began = time.monotonic()
    with tqdm(total=args.steps, unit=" transitions") as bar:
        while played < args.steps:
            # `sample` waits until the collectors have played enough for it.
            model.train(gradient_steps=1, batch_size=args.batch_size)
            updates += 1
            if updates % 1000 == 0:
                polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)
            if updates % 50:
                continue
            for report in collectors.poll():
                played += report.transitions
                returns += report.returns
            collectors.publish(epsilon=max(0.02, 1.0 - played / (0.1 * args.steps)))
            bar.update(played - bar.n)
            bar.set_postfix(updates=updates, episodes=len(returns), last=np.mean(returns[-20:]) if returns else None)
    seconds = time.monotonic() - began
    traffic = model.replay_buffer.traffic
    print(
        f"{played / seconds:,.0f} transitions/s played, {updates / seconds:,.1f} updates/s, "
        f"{traffic['received_bytes'] / seconds / 1e6:.2f} MB/s of samples for the learner"
    )


if __name__ == "__main__":
    main()
