"""Memory of a filled replay buffer: the buffer's own account beside the growth of the process.

    python benchmarks/memory.py                  # default method and zstd3, MsPacman, 20,000 transitions, 4 envs
    python benchmarks/memory.py --games Pong Breakout --methods auto rle zstd-3
    python benchmarks/memory.py --wraps 10       # go on for ten rings: does the memory stay?

`share` is every byte the buffer owns (frames, tables, ids, actions, rewards, ...) over what SB3's buffer allocates.
Each buffer is filled in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import recordings
from gymnasium import spaces
from stable_baselines3 import __version__ as sb3_version

from sb3_extra_buffers import __version__
from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.compressed.memory import readable_bytes

RESULTS = Path(__file__).parent / "results" / "memory.json"


def fill(game: str, method: str, steps: int, wraps: int) -> dict[str, Any]:
    """Fill one buffer and return its figures."""
    recording = recordings.load(game, steps)
    n = steps * recording.n_envs
    spaces_of_buffer = spaces.Box(0, 255, recording.obs_shape, np.uint8), spaces.Discrete(recording.n_actions)

    def new(size: int) -> CompressedReplayBuffer:
        return CompressedReplayBuffer(size, *spaces_of_buffer, "cpu", recording.n_envs, compression_method=method)

    small = new(400)  # loads libraries and kernels, so that they are not counted
    for step in recording.steps(100):
        small.add(*step)
    small.sample(32)
    del small
    gc.collect()

    process = psutil.Process()
    before = process.memory_info().rss
    buffer = new(n)
    after_each: list[int] = []
    for _ in range(wraps):
        for step in recording.steps(steps):
            buffer.add(*step)
        gc.collect()
        after_each.append(process.memory_info().rss - before)
    usage = buffer.memory_usage()
    others = sum(array.nbytes for array in vars(buffer).values() if type(array) is np.ndarray)
    return {
        "game": game,
        "method": method,
        "transitions": n,
        "sb3_bytes": usage.raw_bytes + others,
        "owned_bytes": usage.stored_bytes + others,
        "share": (usage.stored_bytes + others) / (usage.raw_bytes + others),
        "rss_growth_bytes": after_each[0],
        "rss_after_each_ring_bytes": after_each,
        "unique_frames": usage.unique_frames,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["MsPacman"])
    parser.add_argument("--methods", nargs="+", default=["auto", "zstd3"])
    parser.add_argument("--steps", type=int, default=5000, help="steps of the 4 envs")
    parser.add_argument("--wraps", type=int, default=1, help="how often to fill the ring")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(fill(options.games[0], options.methods[0], options.steps, options.wraps)))
        return
    rows = []
    print(f"{'game':12} {'method':12} {'SB3':>9} {'owned':>9} {'share':>7} {'RSS growth':>11}")
    for game in options.games:
        recordings.load(game, options.steps)
        for method in options.methods:
            command = [sys.executable, __file__, "--one", "--games", game, "--methods", method]
            command += ["--steps", str(options.steps), "--wraps", str(options.wraps)]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append(row)
            print(
                f"{game:12} {method:12} {readable_bytes(row['sb3_bytes']):>9} {readable_bytes(row['owned_bytes']):>9} "
                f"{row['share']:7.2%} {readable_bytes(row['rss_growth_bytes']):>11}"
            )
            if options.wraps > 1:
                print("   RSS growth after each ring:", *map(readable_bytes, row["rss_after_each_ring_bytes"]))
    RESULTS.parent.mkdir(exist_ok=True)
    about = {
        "command": "python benchmarks/memory.py " + " ".join(sys.argv[1:]),
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "stable_baselines3": sb3_version,
        "sb3_extra_buffers": __version__,
    }
    RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    print(f"written to {RESULTS.relative_to(Path(__file__).parents[1])}")


if __name__ == "__main__":
    main()
