"""Memory of a filled replay buffer: the buffer's own account beside the growth of the process.

    python benchmarks/memory.py                  # default method and zstd3, MsPacman, 20,000 transitions, 4 envs
    python benchmarks/memory.py --games Pong Breakout --methods auto rle zstd-3
    python benchmarks/memory.py --wraps 10       # go on for ten rings: does the memory stay?

`share` is every byte the buffer owns (frames, tables, ids, actions, rewards, ...) over what SB3's buffer allocates.
Each buffer is filled in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import recordings
from about import about
from report import replace
from resident import resident_bytes
from subjects import ours
from turns import Player, serve

from sb3_extra_buffers.compressed.memory import readable_bytes


def fill(game: str, method: str, steps: int, wraps: int) -> dict[str, Any]:
    """Fill one buffer and return its figures."""
    recording = recordings.load(game, steps)
    small = ours.replay(recording, 100, method)  # loads libraries and kernels, so that they are not counted
    for step in itertools.islice(recording.steps(), 100):
        small.add(*step)
    del small
    before = resident_bytes()
    buffer = ours.replay(recording, steps, method)
    after_each: list[int] = []
    for _ in range(wraps):
        for step in recording.steps():
            buffer.add(*step)
        after_each.append(resident_bytes() - before)
    usage, owned = buffer.memory_usage(), ours.owned_bytes(buffer)
    sb3_bytes = usage.raw_bytes + owned - usage.stored_bytes
    return {
        "game": game,
        "method": method,
        "transitions": steps * recording.n_envs,
        "sb3_bytes": sb3_bytes,
        "owned_bytes": owned,
        "share": owned / sb3_bytes,
        "rss_growth_bytes": after_each[0],
        "rss_after_each_ring_bytes": after_each,
        "unique_frames": usage.unique_frames,
    }


def main() -> None:
    options = parse_args()
    rows = []
    print(f"{'game':12} {'method':12} {'SB3':>9} {'owned':>9} {'share':>7} {'RSS growth':>11}")
    for game in options.games:
        recordings.load(game, options.steps)
        for method in options.methods:
            player = Player([__file__, "--fill"], {})
            row = player.ask("fill", game, method, options.steps, options.wraps)
            player.close()
            rows.append(row)
            print(
                f"{game:12} {method:12} {readable_bytes(row['sb3_bytes']):>9} {readable_bytes(row['owned_bytes']):>9} "
                f"{row['share']:7.2%} {readable_bytes(row['rss_growth_bytes']):>11}"
            )
            if options.wraps > 1:
                print("   RSS growth after each ring:", *map(readable_bytes, row["rss_after_each_ring_bytes"]))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "memory.json"
    replace(file, json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    print(f"Written: {file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["MsPacman"])
    parser.add_argument("--methods", nargs="+", default=["auto", "zstd3"])
    parser.add_argument("--steps", type=int, default=5000, help="steps of the 4 envs")
    parser.add_argument("--wraps", type=int, default=1, help="how often to fill the ring")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[2:] == ["--fill"]:  # Player puts the handle of the connection first
        serve(Connection(int(sys.argv[1])), {"fill": fill})
    else:
        main()
