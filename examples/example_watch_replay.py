"""Watch a DQN model play an Atari game: one episode as a video, recorded compressed.

    make example NAME=watch_replay ARGS="--out episode.gif"

Plays what example_train_replay.py has saved, or an untrained model if there is none.
"""

import argparse
from pathlib import Path

from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.recording import RecordBuffer
from sb3_extra_buffers.training_utils.atari import make_env


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5_000, help="stop after this many steps")
    parser.add_argument("--env", default="MsPacmanNoFrameskip-v4", help="Atari game")
    parser.add_argument("--method", default="auto", help="compression method of the record, such as delta or zstd3")
    parser.add_argument("--device", default="auto", help="where the network runs: cpu, cuda, ...")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--model", type=Path, help="default: runs/dqn-ENV.zip")
    parser.add_argument("--out", type=Path, default=Path("dqn.mp4"), help="video: .mp4 or .gif")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    env = make_env(
        args.env,
        n_envs=1,
        vec_env_cls=DummyVecEnv,
        seed=args.seed,
        render_mode="rgb_array",
        wrapper_kwargs={"terminal_on_life_loss": False, "clip_reward": False},
    )
    file = args.model or Path("runs") / f"dqn-{args.env}.zip"
    if file.exists():
        model = DQN.load(file, device=args.device)
    else:
        print(f"No model at {file}: an untrained one plays.")
        model = DQN("CnnPolicy", env, buffer_size=1, device=args.device, seed=args.seed)

    obs = env.reset()
    screen = env.render()
    record = RecordBuffer(screen.shape[:2], 3, size=args.steps, compression_method=args.method)
    for _ in range(args.steps):
        action, _ = model.predict(obs, deterministic=False)  # with a little chance, as it was trained
        obs, rewards, dones, _ = env.step(action)
        record.add(screen, rewards[0], action[0], done=dones[0])
        screen = env.render()
        if dones[0]:
            break
    env.close()

    steps = record[:]
    print(f"{len(record)} steps, return {steps.rewards.sum():.0f}")
    print(record.memory_usage())
    n = record.export(args.out, fps=15)
    print(f"{n} frames written: {args.out}")


if __name__ == "__main__":
    main()
