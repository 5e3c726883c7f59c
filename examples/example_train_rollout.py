"""Train PPO on an Atari game with a compressed rollout buffer.

    make example NAME=train_rollout ARGS="--steps 5000"

Without `make`: pip install "sb3-extra-buffers[fast,atari]" tqdm rich, then python examples/example_train_rollout.py.
"""

import argparse
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.compressed import CompressedRolloutBuffer
from sb3_extra_buffers.training_utils import BufferStatsCallback
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.eval_model import eval_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000_000, help="transitions to collect, over all envs")
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="Atari game")
    parser.add_argument("--method", default="auto", help="compression method, such as delta, zstd3 or rle-jit")
    parser.add_argument("--device", default="auto", help="where the network is trained: cpu, cuda, ...")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--n-steps", type=int, default=128, help="steps of each env in a rollout")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of the final evaluation, 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the model")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    vec_env_cls = SubprocVecEnv if args.envs > 1 else DummyVecEnv
    env = make_env(args.env, args.envs, vec_env_cls, seed=args.seed)
    model = PPO(
        "CnnPolicy",
        env,
        rollout_buffer_class=CompressedRolloutBuffer,
        rollout_buffer_kwargs={"compression_method": args.method},
        n_steps=args.n_steps,
        batch_size=min(256, args.n_steps * args.envs),
        n_epochs=4,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        ent_coef=0.01,
        vf_coef=0.5,
        seed=args.seed,
        device=args.device,
        verbose=1,
    )
    model.learn(args.steps, callback=BufferStatsCallback(), progress_bar=True)
    env.close()
    print(model.rollout_buffer.memory_usage())
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"ppo-{args.env}.zip"
    model.save(file)
    print(f"Saved: {file}")
    if args.episodes:
        eval_model(args.episodes, make_env(args.env, args.envs, vec_env_cls, seed=args.seed + 100), model)


if __name__ == "__main__":
    main()
