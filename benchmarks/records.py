"""Memory of a `RecordBuffer` by method: an agent's session as it sees it. Every frame is compared with what was added.

    python benchmarks/records.py
    python benchmarks/records.py --recordings Pong doom-basic-labels --methods auto zstd10 --steps 2000

`share` is of a plain array of the same frames.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import recordings
from about import about
from report import replace

from sb3_extra_buffers.compressed.memory import readable_bytes
from sb3_extra_buffers.recording import RecordBuffer


def session(name: str, steps: int) -> Iterator[tuple[Any, ...]]:
    """Yield `(frame [height, width, channels], reward, action, done)` of the first env of a recording."""
    for obs, _, action, reward, done, _ in recordings.load(name, steps).steps():
        yield np.moveaxis(obs[0], 0, -1), reward[0], action[0], done[0]


def measure(name: str, method: str, steps: int) -> dict[str, Any]:
    """Record a session, read it again, and return its figures."""
    *res, channels = next(session(name, steps))[0].shape
    buffer = RecordBuffer((res[0], res[1]), channels, steps, compression_method=method)
    for frame, reward, action, done in session(name, steps):
        buffer.add(frame, reward, action, done=done)
    usage = buffer.memory_usage()
    for i, (frame, *_) in enumerate(session(name, steps)):
        if not np.array_equal(buffer.frames[i], np.moveaxis(frame, -1, 0)):
            raise ValueError(f"{name}, {method}: frame {i} is another one")
    return {
        "recording": name,
        "method": method,
        "codec": usage.method,
        "steps": len(buffer),
        "frame": [channels, *res],
        "raw_bytes": usage.raw_bytes,
        "stored_bytes": usage.stored_bytes,
        "share": usage.ratio,
        "exact": True,
    }


def main() -> None:
    options = parse_args()
    rows = []
    print(f"{'recording':24} {'method':12} {'raw':>9} {'stored':>9} {'share':>7}  exact")
    for name in options.recordings:
        for method in options.methods:
            rows.append(row := measure(name, method, options.steps))
            print(
                f"{name:24} {method:12} {readable_bytes(row['raw_bytes']):>9} "
                f"{readable_bytes(row['stored_bytes']):>9} {row['share']:7.2%}  yes",
                flush=True,
            )
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "records.json"
    replace(file, json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    print(f"Written: {file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scenes = ["MsPacman", "doom-deathmatch-labels", "doom-deathmatch-rgb"]
    parser.add_argument("--recordings", nargs="+", default=scenes, help="see recordings.py")
    parser.add_argument("--methods", nargs="+", default=["auto", "delta", "zstd3", "lz4-block/1", "rle-jit"])
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
