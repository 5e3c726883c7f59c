"""Checkpoints of a million transitions: seconds, bytes on the disk, memory; and those of a save soon after.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --transitions 40000 --more 400

Recorded frames are replayed as in `million.py`. Saved: the full buffer for the first time, then several times after
`--more` transitions each, to the same file; beside it SB3's way, `pickle`. What was loaded is compared, all of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import recordings
from about import about
from report import replace
from resident import resident_bytes
from stable_baselines3.common.save_util import save_to_pkl
from subjects import Different, ours
from tqdm import tqdm

ROUNDS = 5


def main() -> None:
    options = parse_args()
    recording = recordings.load(options.recording, options.steps)
    rows, more = options.transitions // recording.n_envs, options.more // recording.n_envs
    stream = recording.endless(np.random.default_rng(0), options.pixels)
    buffer = ours.replay(recording, rows, options.method)
    for step in tqdm(itertools.islice(stream, rows), total=rows, unit="step"):
        buffer.add(*step)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "buffer"
        first = [measured(lambda: fresh(buffer, path)) for _ in range(ROUNDS)]
        first_bytes = path.stat().st_size
        later, grown = [], []
        for _ in range(ROUNDS):
            for step in itertools.islice(stream, more):
                buffer.add(*step)
            before = path.stat().st_size
            later.append(measured(lambda: buffer.save(path)))
            grown.append(path.stat().st_size - before)
        pickled = [measured(lambda: save_to_pkl(Path(folder) / "pickled", buffer)) for _ in range(2)]
        pickled_bytes = (Path(folder) / "pickled.pkl").stat().st_size
        os.unlink(Path(folder) / "pickled.pkl")
        start = perf_counter()
        loaded = type(buffer).load(path)
        load_seconds = perf_counter() - start
        compare(buffer, loaded)
    result = {
        "recording": options.recording,
        "method": options.method,
        "transitions": rows * recording.n_envs,
        "more": more * recording.n_envs,
        "owned_bytes": ours.owned_bytes(buffer),
        "sb3_bytes": rows * recording.n_envs * 2 * recording.obs_bytes,
        "first": {
            "seconds": median(s for s, _ in first),
            "file_bytes": first_bytes,
            "memory": max(m for _, m in first),
        },
        "later": {
            "seconds": median(s for s, _ in later),
            "all_seconds": [s for s, _ in later],
            "written_bytes": median(grown),
            "memory": max(m for _, m in later),
        },
        "pickle": {
            "seconds": median(s for s, _ in pickled),
            "file_bytes": pickled_bytes,
            "memory": max(m for _, m in pickled),
        },
        "load_seconds": load_seconds,
        "later_to_first": median(s for s, _ in later) / median(s for s, _ in first),
    }
    print(table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "checkpoint.json"
    replace(file, json.dumps({"about": about(), **result}, indent=1) + "\n")
    print(f"Written: {file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--more", type=int, default=10_000, help="transitions between saves")
    parser.add_argument("--recording", default="MsPacman")
    parser.add_argument("--steps", type=int, default=5000, help="steps of the recording that is replayed")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--pixels", type=int, default=4, help="pixels of each frame that are changed in every pass")
    parser.add_argument("--folder", help="where to save; the system's folder for temporary files by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def fresh(buffer: Any, path: Path) -> None:
    """Save to a file that is not there, so that all of it is written."""
    path.unlink(missing_ok=True)
    buffer.save(path)


def measured(work: Callable[[], None]) -> tuple[float, int]:
    """Return the seconds that `work` takes, and by how many bytes private memory grows meanwhile, at most."""
    os.sync()
    before, most, done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.003):
            status = Path("/proc/self/status").read_text()
            kilobytes = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
            most = max(most, 1024 * int(kilobytes.split()[1]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = perf_counter()
    work()
    seconds = perf_counter() - start
    done.set()
    watcher.join()
    return seconds, max(most - before, 0)


def compare(buffer: Any, loaded: Any) -> None:
    for name, array in vars(buffer).items():
        if not isinstance(array, np.ndarray):
            continue
        for start in range(0, len(array), 1000):
            if not np.array_equal(array[start : start + 1000], getattr(loaded, name)[start : start + 1000]):
                raise Different(f"{name} differs from what was saved")


def table(result: dict[str, Any]) -> str:
    lines = [f"{'':28} {'seconds':>8} {'on the disk':>12} {'extra memory':>13}"]
    for name, label, size in (
        ("first", f"first save of {result['transitions']:,}", "file_bytes"),
        ("later", f"after {result['more']:,} more", "written_bytes"),
        ("pickle", "pickle", "file_bytes"),
    ):
        row = result[name]
        lines.append(f"{label:28} {row['seconds']:8.3f} {row[size] / 1e6:9.1f} MB {row['memory'] / 1e6:10.1f} MB")
    lines.append(
        f"A later save takes {result['later_to_first']:.1%} of the first; loading {result['load_seconds']:.2f} s. "
        f"The buffer owns {result['owned_bytes'] / 1e6:.0f} MB, SB3's would {result['sb3_bytes'] / 1e9:.1f} GB."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
