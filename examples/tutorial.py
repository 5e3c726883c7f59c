"""The code of docs/tutorial.md: learn a game, save the replay buffer, go on from the file, record what the agent does.

    pip install "sb3-extra-buffers[fast,video]" tqdm rich
    python examples/tutorial.py                 # a few minutes on one core

Files go to runs/tutorial.
"""

import argparse
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.recording import RecordBuffer
from sb3_extra_buffers.training_utils.eval_model import eval_model


class Catch(gym.Env):
    """Ten balls fall, one after another; be below them. Pictures of 36 x 36, returns from -10 to 10."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.paddle, self.balls = 18, 0
        self.throw()
        return self.look(), {}

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + 3 * (int(action) - 1), 4, 31))
        self.y += 2
        landed = self.y >= 33
        reward = 0.0
        if landed:
            reward = 1.0 if abs(self.x - self.paddle) <= 5 else -1.0
            self.balls += 1
            self.throw()
        return self.look(), reward, self.balls == 10, False, {}

    def throw(self):
        self.x, self.y = int(self.np_random.integers(2, 34)), 1

    def look(self):
        screen = np.zeros((36, 36, 1), np.uint8)
        screen[self.y - 1 : self.y + 2, self.x - 1 : self.x + 2] = 255
        screen[34:, self.paddle - 4 : self.paddle + 5] = 160
        return screen


def make_env(n_envs: int, seed: int) -> VecEnv:
    """Stacks of four frames, channel-first, as for Atari."""
    return VecTransposeImage(VecFrameStack(make_vec_env(Catch, n_envs, seed=seed), n_stack=4))


def train(steps: int) -> DQN:
    """Only `replay_buffer_class` differs from a training with SB3's buffer."""
    model = DQN(
        "CnnPolicy",
        make_env(n_envs=4, seed=0),
        replay_buffer_class=CompressedReplayBuffer,
        buffer_size=50_000,
        learning_starts=2_000,
        train_freq=1,  # in steps of the four envs
        target_update_interval=500,
        exploration_fraction=0.3,
        exploration_final_eps=0.02,
        learning_rate=5e-4,
        gamma=0.95,
        seed=0,
        device="cpu",
    )
    print("Before: ", end="")
    eval_model(20, make_env(n_envs=4, seed=1000), model)
    model.learn(steps, progress_bar=sys.stdout.isatty())
    print("After:  ", end="")
    eval_model(20, make_env(n_envs=4, seed=1000), model)
    print(model.replay_buffer.memory_usage())
    return model


def save(model: DQN, folder: Path) -> None:
    """The model is SB3's file; the buffer is ours, compressed as it is."""
    model.save(folder / "catch.zip")
    model.replay_buffer.save(folder / "catch.buffer")
    size = (folder / "catch.buffer").stat().st_size
    print(f"catch.buffer: {size / 1e6:.1f} MB for {model.replay_buffer.size() * model.n_envs:,} transitions")


def go_on(folder: Path, steps: int) -> DQN:
    """Another day, another process: the agent goes on with everything that it has seen."""
    model = DQN.load(folder / "catch.zip", make_env(n_envs=4, seed=1))
    model.replay_buffer = CompressedReplayBuffer.load(folder / "catch.buffer")
    model.learn(steps, reset_num_timesteps=False)
    print(f"Went on to {model.num_timesteps:,} steps")
    return model


def record(model: DQN, folder: Path) -> None:
    """Keep what the agent saw and did; watch it; look it up later."""
    env = make_env(n_envs=1, seed=2000)
    recorder = RecordBuffer(res=(36, 36), ch_num=1, size=5_000, compression_method="auto")
    obs, episodes = env.reset(), 0
    while episodes < 3:
        action, _ = model.predict(obs, deterministic=True)
        frame = obs[0, -1, :, :, None]  # the newest of the stack, [height, width, 1]
        obs, rewards, dones, _ = env.step(action)
        recorder.add(frame, rewards[0], action[0], done=dones[0])
        episodes += int(dones[0])
    recorder.save(folder / "catch.record")
    recorder.export(folder / "catch.gif", recorder.episodes()[-1], fps=15, scale=4)
    for span in recorder.episodes(whole=True):
        steps = recorder[span]
        print(
            f"{len(steps.rewards)} steps, return {steps.rewards.sum():.0f}, went left {np.mean(steps.actions == 0):.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000, help="transitions to learn from")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial"), help="folder of the files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = train(args.steps)
    save(model, args.out)
    model = go_on(args.out, args.steps // 10)
    record(model, args.out)


if __name__ == "__main__":
    main()
