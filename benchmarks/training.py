"""Train with SB3's buffer and with ours, same seed: wall clock as a ratio, and the same weights at the end.

    python benchmarks/training.py
    python benchmarks/training.py --algorithms ppo --subjects sb3 sb3:again ours:auto published:rle-jit --repeats 5

Each training is a process of its own. One is busy at a time: they take turns every few hundred steps, with the same
work in each turn, and the waiting is not counted. `sb3:tuned` is SB3's buffer with the settings of malloc that
ours makes for its process (`frames/allocator.py`): what is left of the difference is the buffers' own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from about import about
from report import replace
from tqdm import tqdm
from turns import Player

STEPS = {"dqn": 10_000, "ppo": 16_384}
TURN = {"dqn": 500, "ppo": 128}  # calls of the env in a turn; of PPO one rollout and its training
ENVIRONMENT = {
    "sb3:tuned": {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        "MALLOC_TOP_PAD_": str(1 << 27),
    }
}


def train(connection: Connection, algorithm: str, subject: str, steps: int) -> None:
    """Train in this process; answer each of the parent's questions with the seconds of a turn, at last with the end."""
    from resource import RUSAGE_SELF, getrusage

    import ale_py
    import gymnasium as gym
    import subjects
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

    class Turns(BaseCallback):
        """Stops the training whenever a turn is over, until the parent asks for the next."""

        def _on_training_start(self) -> None:
            connection.recv()
            self.answer({})  # ready

        def _on_step(self) -> bool:
            if self.n_calls % TURN[algorithm] == 0:
                self.answer(self.spent())
            return True

        def spent(self) -> dict[str, float]:
            """Return what the turn took: seconds, and pages that were faulted in."""
            return {"seconds": perf_counter() - self.start, "faults": getrusage(RUSAGE_SELF).ru_minflt - self.faults}

        def answer(self, answer: dict[str, float]) -> None:
            connection.send((answer, ""))
            connection.recv()
            self.faults = getrusage(RUSAGE_SELF).ru_minflt
            self.start = perf_counter()

    gym.register_envs(ale_py)
    n_envs = 8 if algorithm == "ppo" else 1
    env = VecTransposeImage(VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=n_envs, seed=0), n_stack=4))
    package, method = subjects.find(subject), subjects.split(subject)[1]
    buffer = package.options(env.observation_space, method)
    if algorithm == "ppo":
        model: Any = PPO(
            "CnnPolicy",
            env,
            n_steps=128,
            batch_size=256,
            n_epochs=4,
            rollout_buffer_class=package.ROLLOUT,
            rollout_buffer_kwargs=buffer,
            seed=0,
            device="cpu",
        )
    else:
        model = DQN(
            "CnnPolicy",
            env,
            buffer_size=100_000,
            learning_starts=1_000,
            train_freq=4,
            replay_buffer_class=package.REPLAY,
            replay_buffer_kwargs=buffer,
            seed=0,
            device="cpu",
        )
    callback = Turns()
    model.learn(steps, callback=callback)
    spent = callback.spent()
    weights = hashlib.sha256()
    for tensor in model.policy.state_dict().values():
        weights.update(tensor.numpy().tobytes())
    connection.send(({**spent, "weights": weights.hexdigest()}, ""))


def repeat(algorithm: str, names: list[str], steps: int, bar: tqdm, order: random.Random) -> dict[str, dict[str, Any]]:
    """Train once with each subject, in turns; return `{subject: {turns, faults, weights}}`, turns in seconds."""
    players = {
        name: Player([__file__, "--train", algorithm, name, str(steps)], ENVIRONMENT.get(name, {})) for name in names
    }
    results: dict[str, dict[str, Any]] = {name: {"turns": [], "faults": 0, "weights": ""} for name in names}
    try:
        for player in players.values():
            player.ask("ready")
        while not all(result["weights"] for result in results.values()):
            for name in order.sample(names, len(names)):
                if not results[name]["weights"]:
                    answer = players[name].ask("turn")
                    results[name]["turns"].append(answer["seconds"])
                    results[name]["faults"] += answer["faults"]
                    results[name]["weights"] = answer.get("weights", "")
                    bar.update()
    finally:
        for player in players.values():
            player.close()
    return results


def main() -> None:
    options = parse_args()
    rows = []
    for algorithm in options.algorithms:
        steps = options.steps or STEPS[algorithm]
        turns = 1 + steps // (TURN[algorithm] * (8 if algorithm == "ppo" else 1))
        bar = tqdm(total=options.repeats * len(options.subjects) * turns, desc=algorithm, unit="turn")
        order = random.Random(0)
        repeats = [repeat(algorithm, options.subjects, steps, bar, order) for _ in range(options.repeats)]
        bar.close()
        rows += [row(algorithm, steps, name, options.subjects[0], repeats) for name in options.subjects]
    print(
        f"{'Pong':5} {'steps':>7}  {'buffer':20} {'median':>9} {'ratio':>7} {'by turn':>8} {'faults':>10}  same weights"
    )
    for each in rows:
        print(
            f"{each['algorithm'].upper():5} {each['steps']:7,}  {each['subject']:20} {median(each['seconds']):7.1f} s "
            f"{each['median_ratio']:7.3f} {each['median_ratio_of_turns']:8.3f} {median(each['faults']):10,.0f}  "
            f"{'yes' if each['same_weights'] else 'NO'}"
        )
    print("ratio: of the whole trainings, median of the repeats; by turn: median over all turns; faults: of pages")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "training.json"
    replace(file, json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    print(f"Written: {file}")


def row(algorithm: str, steps: int, name: str, base: str, repeats: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of one subject."""
    seconds = [sum(each[name]["turns"]) for each in repeats]
    ratios = [total / sum(each[base]["turns"]) for total, each in zip(seconds, repeats, strict=True)]
    pairs = [pair for each in repeats for pair in zip(each[name]["turns"], each[base]["turns"], strict=True)]
    return {
        "algorithm": algorithm,
        "steps": steps,
        "subject": name,
        "seconds": [round(total, 3) for total in seconds],
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median_ratio": median(ratios),
        "median_ratio_of_turns": median(ours / theirs for ours, theirs in pairs),
        "faults": [each[name]["faults"] for each in repeats],
        "same_weights": all(each[name]["weights"] == repeats[0][base]["weights"] for each in repeats),
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument(
        "--subjects",
        nargs="+",
        default=["sb3", "sb3:again", "sb3:tuned", "ours:auto"],
        help="the first is the yardstick",
    )
    parser.add_argument("--steps", type=int, help="transitions to collect")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[2:3] == ["--train"]:  # Player puts the handle of the connection first
        train(Connection(int(sys.argv[1])), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        main()
