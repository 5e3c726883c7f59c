"""Agents learn: train with SB3's buffer and with ours, same seed, to a learned policy; the curves are one curve.

    python benchmarks/learning.py                                   # PPO and DQN on Catch, ten minutes on one core
    python benchmarks/learning.py --algorithms ppo --env PongNoFrameskip-v4 --steps 2000000

Each episode's return is kept with its step. Writes `results/learning.json` and a plot of the curves, and prints the
report line of a final evaluation on seeds that were not trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from about import about
from catch import Catch
from report import digest, replace
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.eval_model import eval_model, report

STEPS = {"ppo": 100_000, "dqn": 80_000}
ENVS = {"ppo": 8, "dqn": 4}
BUFFERS = ("sb3", "compressed")
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 64, "batch_size": 128, "n_epochs": 4, "learning_rate": 5e-4, "ent_coef": 0.003},
    "dqn": {
        "buffer_size": 50_000,
        "learning_starts": 2_000,
        "train_freq": 1,  # in steps of the 4 envs
        "target_update_interval": 500,
        "exploration_fraction": 0.3,
        "exploration_final_eps": 0.02,
        "learning_rate": 5e-4,
    },
}
ATARI: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01},
    "dqn": {"buffer_size": 100_000, "learning_starts": 50_000, "target_update_interval": 1_000, "learning_rate": 1e-4},
}


class Episodes(BaseCallback):
    """Keeps `(step, return)` of each episode of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.curve.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def make(env: str, n_envs: int, seed: int) -> VecEnv:
    if env == "catch":
        return VecTransposeImage(VecFrameStack(make_vec_env(Catch, n_envs, seed=seed), n_stack=4))
    return make_env(env, n_envs, SubprocVecEnv if n_envs > 1 else DummyVecEnv, seed=seed)


def train(algorithm: str, buffer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train one model and return its curve, a hash of its weights, and how well it plays."""
    env = make(options.env, ENVS[algorithm], options.seed)
    compressed = buffer == "compressed"
    settings = {**SETTINGS[algorithm], **({"gamma": 0.95} if options.env == "catch" else ATARI[algorithm])}
    settings |= {"seed": options.seed, "device": options.device}
    if algorithm == "dqn":
        cls = CompressedReplayBuffer if compressed else None
        model: Any = DQN("CnnPolicy", env, replay_buffer_class=cls, **settings)
    else:
        cls = CompressedRolloutBuffer if compressed else None
        model = PPO("CnnPolicy", env, rollout_buffer_class=cls, **settings)
    episodes = Episodes()
    model.learn(options.steps or STEPS[algorithm], callback=episodes, progress_bar=options.progress)
    env.close()
    weights = hashlib.sha256()
    for tensor in model.policy.state_dict().values():
        weights.update(tensor.cpu().numpy().tobytes())
    np.random.seed(options.seed)
    returns, _ = eval_model(options.episodes, make(options.env, 4, options.seed + 1000), model, verbose=False)
    used = model.replay_buffer if algorithm == "dqn" else model.rollout_buffer
    usage = used.memory_usage() if compressed else None
    return {
        "algorithm": algorithm,
        "buffer": type(used).__name__,
        "steps": model.num_timesteps,
        "curve": episodes.curve,
        "weights": weights.hexdigest(),
        "report": report(returns),
        "returns": returns,
        "stored_bytes": usage.stored_bytes if usage else None,
        "raw_bytes": usage.raw_bytes if usage else None,
    }


def plot(rows: list[dict[str, Any]], env: str, file: Path, window: int = 50) -> None:
    """Draw the mean return of the last `window` episodes over steps: SB3's broad and pale, ours thin on top."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    figure, panels = plt.subplots(1, len(algorithms), figsize=(5.5 * len(algorithms), 3.6), squeeze=False)
    for axes, algorithm in zip(panels[0], algorithms, strict=True):
        for row in (row for row in rows if row["algorithm"] == algorithm):
            ours = row["buffer"].startswith("Compressed")
            steps, returns = np.array(row["curve"]).T
            mean = np.convolve(returns, np.ones(window) / window, mode="valid")
            style = {"color": "black", "linewidth": 1.2} if ours else {"color": "tab:orange", "linewidth": 6}
            axes.plot(steps[window - 1 :], mean, label=row["buffer"], alpha=1 if ours else 0.5, **style)
        axes.set_title(f"{algorithm.upper()} on {env}")
        axes.set_xlabel("steps")
        axes.set_ylabel(f"return, mean of {window} episodes")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    shown = digest([[row["buffer"], row["curve"]] for row in rows])
    figure.savefig(file, dpi=110, metadata={"Description": shown})


def main() -> None:
    options = parse_args()
    torch.set_num_threads(1)
    if options.device != "cpu":
        torch.backends.cudnn.deterministic = True
    rows = []
    for algorithm in options.algorithms:
        pair = []
        for buffer in BUFFERS:
            pair.append(train(algorithm, buffer, options))
            print(f"{algorithm.upper()} {pair[-1]['buffer']:24} {pair[-1]['report']}", flush=True)
        rows += pair
        same = all(pair[0][part] == pair[1][part] for part in ("curve", "weights", "returns"))
        print(f"Same curve, point for point, weights and evaluation: {'yes' if same else 'NO'}")
        print(f"{len(pair[0]['curve'])} episodes; weights {pair[0]['weights'][:12]}")
    plot(rows, options.env, options.plot)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "learning.json"
    replace(file, json.dumps({"about": about(), "env": options.env, "seed": options.seed, "rows": rows}) + "\n")
    print(f"Written: {file} and {options.plot}")


def parse_args() -> argparse.Namespace:
    root = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--env", default="catch", help="catch, or an Atari game such as PongNoFrameskip-v4")
    parser.add_argument("--steps", type=int, help="transitions to collect")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of the final evaluation")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--progress", action="store_true", help="show progress bars")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=root / "results")
    parser.add_argument("--plot", type=Path, default=root.parent / "docs" / "images" / "learning.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
