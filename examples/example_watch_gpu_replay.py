"""Watch the agent that example_train_gpu_replay.py has trained, or measure it without a window.

python examples/example_watch_gpu_replay.py --render human
"""

import argparse

import ale_py
import gymnasium as gym
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_extra_buffers.compressed import DummyCls


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="Atari environment")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="runs/gpu_replay", help="where the model is")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--render", choices=["human"], help="open a window")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(args.env, env_kwargs={"render_mode": args.render}), n_stack=4)
    # Watching needs no buffer: an empty class stands in for the one the model was saved with.
    model = DQN.load(args.model, device=args.device, custom_objects={"replay_buffer_class": DummyCls})
    returns, _ = evaluate_policy(model, env, args.episodes, return_episode_rewards=True)
    env.close()
    print(f"returns of {args.episodes} episodes: {returns}")


if __name__ == "__main__":
    main()
