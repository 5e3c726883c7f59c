"""Train PPO on a ViZDoom scenario, seeing segmentation masks (the labels buffer), RGB, or both.

    make example NAME=train_vizdoom ARGS="--steps 8000 --observe labels"

Without `make`: pip install "sb3-extra-buffers[fast,vizdoom]" tqdm rich, then python examples/example_train_vizdoom.py.
"""

import argparse
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.compressed import CompressedDictRolloutBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils import BufferStatsCallback
from sb3_extra_buffers.training_utils.doom import DoomEnv
from sb3_extra_buffers.training_utils.eval_model import eval_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="basic", help="a scenario that comes with ViZDoom")
    parser.add_argument("--observe", default="labels", choices=["labels", "rgb", "both"])
    parser.add_argument("--method", default="auto", help="compression method, such as rle-jit, zstd3 or delta")
    parser.add_argument("--device", default="auto", help="where the network is trained: cpu, cuda, ...")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--n-steps", type=int, default=128, help="steps of each env in a rollout")
    parser.add_argument("--shrink", type=int, default=2, help="keep every n-th row and column of 120 x 160")
    parser.add_argument("--episodes", type=int, default=16, help="episodes of the final evaluation, 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the model")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    options = {"scenario": args.env, "observe": args.observe, "shrink": args.shrink}
    env = make_vec_env(
        DoomEnv,
        args.envs,
        seed=args.seed,
        env_kwargs=options,
        vec_env_cls=SubprocVecEnv if args.envs > 1 else DummyVecEnv,
    )
    both = args.observe == "both"
    model = PPO(
        "MultiInputPolicy" if both else "CnnPolicy",
        env,
        rollout_buffer_class=CompressedDictRolloutBuffer if both else CompressedRolloutBuffer,
        rollout_buffer_kwargs={"compression_method": args.method},
        n_steps=args.n_steps,
        batch_size=min(256, args.n_steps * args.envs),
        n_epochs=4,
        learning_rate=2.5e-4,
        ent_coef=0.01,
        seed=args.seed,
        device=args.device,
        verbose=1,
    )
    model.learn(args.steps, callback=BufferStatsCallback(), progress_bar=True)
    env.close()
    print(model.rollout_buffer.memory_usage())
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"ppo-doom-{args.env}-{args.observe}.zip"
    model.save(file)
    print(f"Saved: {file}")
    if args.episodes:
        eval_env = make_vec_env(DoomEnv, 1, seed=args.seed + 100, env_kwargs=options)
        eval_model(args.episodes, eval_env, model, deterministic=False)


if __name__ == "__main__":
    main()
