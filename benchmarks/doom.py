"""Memory of replay buffers of ViZDoom frames: segmentation masks (the labels buffer) and RGB of one session.

    python benchmarks/doom.py                                     # deathmatch, 10,000 transitions, 4 envs
    python benchmarks/doom.py --scenario basic --steps 500 --subjects sb3 ours:auto published:rle

Each buffer is filled in a process of its own. `owned` is every byte by the buffer's account, `grew` what the process
really took; `share` is of what SB3's buffer owns. Every observation of our buffers is compared with what was added.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import recordings
import subjects
from about import about
from report import replace
from resident import resident_bytes
from turns import Player, PlayerError, serve

OURS = ("auto", "delta", "zstd3", "zstd-3", "lz4-block/1", "rle-jit", "igzip1")
PUBLISHED = ("rle", "zstd-3", "zstd3", "lz4-block/1", "igzip1")
SUBJECTS = ["sb3", *(f"ours:{method}" for method in OURS), *(f"published:{method}" for method in PUBLISHED)]
KINDS = ("labels", "rgb")


def fill(subject: str, name: str, steps: int) -> dict[str, Any]:
    """Fill one buffer and return its figures."""
    package, method = subjects.find(subject), subjects.split(subject)[1]
    recording = recordings.load(name, steps)
    small = package.replay(recording, 50, method)  # loads libraries and kernels, so that they are not counted
    for step in itertools.islice(recording.steps(), 50):
        small.add(*step)
    del small
    before = resident_bytes()
    buffer = package.replay(recording, steps, method)
    for step in recording.steps():
        buffer.add(*step)
    figures = {"owned": package.owned_bytes(buffer), "grew": resident_bytes() - before}
    if subject.startswith("ours"):
        for i, (obs, next_obs, *_) in enumerate(recording.steps()):
            if not (
                np.array_equal(buffer.observations[i], obs) and np.array_equal(buffer.next_observations[i], next_obs)
            ):
                raise ValueError(f"row {i} is another one")
    return figures


def main() -> None:
    options = parse_args()
    rows = []
    for kind in KINDS:
        recordings.load(f"doom-{options.scenario}-{kind}", options.steps)
    print(f"{options.scenario}, {4 * options.steps:,} transitions")
    print(f"{'':22}" + "".join(f" {kind + ' owned':>14} {'share':>7} {'grew':>10}  " for kind in KINDS))
    base: dict[str, int] = {}
    for subject in options.subjects:
        line = f"{subject:22}"
        for kind in KINDS:
            player = Player([__file__, "--fill"], {})
            try:
                row = player.ask("fill", subject, f"doom-{options.scenario}-{kind}", options.steps)
            except PlayerError as error:
                line += f" not measured: {str(error).strip().splitlines()[-1][:24]}"
                continue
            finally:
                player.close()
            base.setdefault(kind, row["owned"])
            row["share"] = row["owned"] / base[kind]
            rows.append({"subject": subject, "kind": kind, **row})
            line += f" {row['owned'] / 1e6:11.1f} MB {row['share']:7.2%} {row['grew'] / 1e6:7.1f} MB  "
        print(line, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "doom.json"
    meta = {"scenario": options.scenario, "transitions": 4 * options.steps}
    replace(file, json.dumps({"about": about(), **meta, "rows": rows}, indent=1) + "\n")
    print(f"Written: {file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="deathmatch")
    parser.add_argument("--steps", type=int, default=2500, help="steps of the 4 envs")
    parser.add_argument("--subjects", nargs="+", default=SUBJECTS, help="the first is the yardstick")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[2:] == ["--fill"]:  # Player puts the handle of the connection first
        serve(Connection(int(sys.argv[1])), {"fill": fill})
    else:
        main()
