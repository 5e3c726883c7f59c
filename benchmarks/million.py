"""A million transitions in one replay buffer: memory, adding over the fill, sampling when full.

    python benchmarks/million.py
    python benchmarks/million.py --transitions 40000 --method zstd3

Recorded frames are replayed again and again. In every pass each frame gets new values at a few random pixels, so that
no frame is stored once for several passes. At ten points of the fill: seconds per step of 4 envs, resident memory,
`sample(256)`. At the end `sample(256)` takes turns with that of a buffer of 20,000 transitions, and transitions that
were kept aside are compared with what the buffer returns.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import recordings
from about import about
from recordings import Recording, Step
from report import replace
from resident import resident_bytes, touch_memory
from subjects import Different, ours
from tqdm import tqdm

POINTS = 10
KEPT = 20  # steps that are kept aside
ROUNDS = 15
CALLS = 5


def main() -> None:
    options = parse_args()
    recording = recordings.load(options.recording, options.steps)
    rows = options.transitions // recording.n_envs
    stream = recording.endless(np.random.default_rng(0), options.pixels)
    filled(recording, 100, options.method, stream).sample(256)  # loads libraries and kernels: they are not counted
    before = resident_bytes()
    buffer = ours.replay(recording, rows, options.method)
    points, kept = [], {}
    bar = tqdm(total=rows * recording.n_envs, unit="transition", unit_scale=True)
    for i in range(POINTS):
        touch_memory(1 << 28)
        seconds, first, last = 0.0, rows * i // POINTS, rows * (i + 1) // POINTS
        for row, step in zip(range(first, last), stream, strict=False):
            start = perf_counter()
            buffer.add(*step)
            seconds += perf_counter() - start
            if row % max(rows // KEPT, 1) == 0:
                kept[row] = [np.array(part) for part in step[:2]]
            bar.update(recording.n_envs)
        points.append(
            {
                "transitions": last * recording.n_envs,
                "add_seconds": seconds / (last - first),
                "rss_bytes": resident_bytes() - before,
                "owned_bytes": ours.owned_bytes(buffer),
                "sample_256_seconds": time_samples(buffer),
            }
        )
    bar.close()
    compare(buffer, kept)
    small = filled(recording, options.small // recording.n_envs, options.method, stream)
    times: dict[str, list[float]] = {"small": [], "large": []}
    for _ in range(ROUNDS):
        for name, each in (("small", small), ("large", buffer)):
            times[name].append(time_samples(each))
    result = {
        "recording": options.recording,
        "method": options.method,
        "pixels_changed": options.pixels,
        "sb3_bytes": rows * recording.n_envs * 2 * recording.obs_bytes,
        "points": points,
        "sample_256": {
            "small_transitions": small.buffer_size * recording.n_envs,
            "small_seconds": median(times["small"]),
            "large_seconds": median(times["large"]),
            "ratio": median(times["large"]) / median(times["small"]),
        },
    }
    print(table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "million.json"
    replace(file, json.dumps({"about": about(), **result}, indent=1) + "\n")
    print(f"Written: {file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=20_000, help="transitions of the buffer to compare with")
    parser.add_argument("--recording", default="MsPacman")
    parser.add_argument("--steps", type=int, default=5000, help="steps of the recording that is replayed")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--pixels", type=int, default=4, help="pixels of each frame that are changed in every pass")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def filled(recording: Recording, rows: int, method: str, stream: Iterator[Step]) -> Any:
    buffer = ours.replay(recording, rows, method)
    for step in itertools.islice(stream, rows):
        buffer.add(*step)
    return buffer


def time_samples(buffer: Any) -> float:
    """Return seconds per `sample(256)`, after one that is not counted."""
    buffer.sample(256)
    start = perf_counter()
    for _ in range(CALLS):
        buffer.sample(256)
    return (perf_counter() - start) / CALLS


def compare(buffer: Any, kept: dict[int, list[np.ndarray]]) -> None:
    for row, (obs, next_obs) in kept.items():
        if not (
            np.array_equal(buffer.observations[row], obs) and np.array_equal(buffer.next_observations[row], next_obs)
        ):
            raise Different(f"row {row} differs from what was added")


def table(result: dict[str, Any]) -> str:
    first = result["points"][0]
    lines = [
        f"{'transitions':>12} {'add, us per step':>17} {'to first':>9} {'RSS':>9} {'owned':>9} {'sample(256)':>12}"
    ]
    for point in result["points"]:
        lines.append(
            f"{point['transitions']:12,} {point['add_seconds'] * 1e6:17.1f} "
            f"{point['add_seconds'] / first['add_seconds']:8.2f}x {point['rss_bytes'] / 1e6:6.0f} MB "
            f"{point['owned_bytes'] / 1e6:6.0f} MB {point['sample_256_seconds'] * 1e3:9.2f} ms"
        )
    sample = result["sample_256"]
    lines.append(
        f"sample(256): {sample['large_seconds'] * 1e3:.2f} ms, {sample['ratio']:.2f}x that of a buffer of "
        f"{sample['small_transitions']:,} transitions, in turns. SB3 would need {result['sb3_bytes'] / 1e9:.1f} GB."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
