"""Measure `add` and `sample` as a training calls them: after a step of the network, whose data fill the caches.

    python benchmarks/beside_training.py       # a minute; writes benchmarks/results/beside_training.json and .txt
    python benchmarks/beside_training.py --recordings Pong --rounds 10

In the loops of `run.py` a buffer finds its code and data where it has left them. Here a small network is trained for a
step before every single call; buffers take turns, all in one process. `ours, one thread` decodes without helpers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from about import about
from recordings import Recording, load
from stable_baselines3.common.buffers import ReplayBuffer
from tqdm import tqdm

from sb3_extra_buffers.codecs import parallel
from sb3_extra_buffers.compressed import CompressedReplayBuffer

RESULTS = Path(__file__).parent / "results" / "beside_training.json"
BATCHES = (32, 128, 256)
ALONE = "ours, one thread"
ADDS = 10
ROWS = 8_192  # of the ring


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", nargs="+", default=["MsPacman", "Seaquest", "doom-deathmatch-labels"])
    parser.add_argument("--rounds", type=int, default=60, help="calls of each buffer at each measure")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    where, results, tables = about(), {}, []
    for name in options.recordings:
        results[name] = measure(load(name, 840 if name.startswith("doom") else 3_000), options.rounds)
        tables.append(table(name, results[name]))
        print(tables[-1], flush=True)
        options.results.write_text(json.dumps({"about": where, "recordings": results}, indent=2) + "\n")
        options.results.with_suffix(".txt").write_text("\n".join(tables))


def measure(recording: Recording, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each buffer's calls, by measure."""
    rows, n_envs = ROWS, recording.n_envs
    given = (rows * n_envs, recording.observation_space, recording.action_space, "cpu", n_envs)
    sb3, ours = ReplayBuffer(*given), CompressedReplayBuffer(*given)
    stream = recording.endless()
    for step in itertools.islice(stream, rows + 50):
        sb3.add(*step)
        ours.add(*step)
    train = network()

    def alone(n: int) -> None:
        with one_thread():
            ours.sample(n)

    measures: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
        "add": lambda: dict(zip(("sb3", "ours"), adds(next(stream), sb3, ours), strict=True)),
    }
    for n in BATCHES:
        measures[f"sample({n})"] = lambda n=n: {  # type: ignore[misc]
            "sb3": lambda: sb3.sample(n),
            "ours": lambda: ours.sample(n),
            ALONE: lambda: alone(n),
        }
    results = {}
    for name, calls in measures.items():
        times: dict[str, list[float]] = {}
        for _ in tqdm(range(rounds), desc=name, leave=False):
            for subject, call in calls().items():
                train()
                start = time.perf_counter()
                call()
                times.setdefault(subject, []).append(time.perf_counter() - start)
        calls_at_once = ADDS if name == "add" else 1  # of several adds one stores what waits
        results[name] = {
            subject: statistics.median(
                statistics.mean(values[i : i + calls_at_once]) for i in range(0, len(values), calls_at_once)
            )
            for subject, values in times.items()
        }
    return results


def adds(step: Any, *buffers: Any) -> list[Callable[[], None]]:
    """Return what adds the same step to each buffer."""
    return [lambda buffer=buffer: buffer.add(*step) for buffer in buffers]  # type: ignore[misc]


def network() -> Callable[[], None]:
    """Return what trains a small convolutional network for a step."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(4, 32, 8, 4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 4, 2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(5184, 256),
    )
    batch = torch.rand(32, 4, 84, 84)
    return lambda: layers(batch).sum().backward()  # type: ignore[no-any-return]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have no other thread help."""
    usual = parallel.n_threads
    parallel.n_threads = lambda: 1
    try:
        yield
    finally:
        parallel.n_threads = usual


def table(name: str, results: dict[str, dict[str, float]]) -> str:
    lines = [f"{name:24}{'SB3':>10}{'ours':>10}{'ratio':>8}{'one thread':>12}"]
    for measure, seconds in results.items():
        one = f"{seconds[ALONE] * 1e3:9.2f} ms" if ALONE in seconds else "-"
        times = f"{seconds['sb3'] * 1e3:7.2f} ms{seconds['ours'] * 1e3:7.2f} ms"
        lines.append(f"  {measure:22}{times}{seconds['ours'] / seconds['sb3']:7.2f}x{one:>12}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
