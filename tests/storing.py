"""What made the files in `stored/`, and what says whether they still hold what they held.

    python tests/storing.py             # makes those that are not there
    python tests/storing.py array her   # or some of them

A file that is there is never made anew: whatever this package wrote once it has to read for ever. When the format
changes, raise `SUFFIX`; the files of the old one stay. `sums.json` says of each its class, and of each array the
SHA-256. `record.npz` was written by a version that knew no other format for records.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kinds import KINDS, AnyKind, game_frame, steps
from twins import TWINS, arrays

from sb3_extra_buffers.compressed import CompressedArray
from sb3_extra_buffers.recording import RecordBuffer

STORED = Path(__file__).parent / "stored"
SUFFIX = ".v1"


def buffer(name: str, n: int, kind: AnyKind | None = None, rows: int = 10, **settings: Any) -> Any:
    """Return a buffer with `n` steps in it."""
    twin = TWINS[name]
    ours, _ = twin.make(kind or twin.default_kind, rows, 2, **settings)
    for step in steps(kind or twin.default_kind, 2, n, end=0.3):
        twin.add(ours, step)
    return ours


def array(method: str = "delta") -> Any:
    made = CompressedArray((12, 2), np.uint8, (1, 18, 18), compression_method=method, frame_stack=1)
    draw, rng = game_frame((1, 18, 18)), np.random.default_rng(0)
    for row in range(12):
        made[row] = np.stack([draw(rng, env, row) for env in range(2)])
    return made


def record(method: str | None) -> Any:
    made = RecordBuffer((12, 14), 3, 20, [np.uint8, np.float64, np.int8, np.float32], compression_method=method)
    for i in range(33):
        image = np.full((12, 14, 3), 40, np.uint8)
        image[::5] = 90
        image[i % 9 : i % 9 + 3, i % 11 : i % 11 + 3] = (250, i, 10)
        made.add(image, i / 3, i, (i, -i / 7), done=i % 8 == 7)
    return made


def zstd(dictionary_bytes: int = 0, **settings: Any) -> dict[str, Any]:
    return {"compression_method": "zstd3", "compression_kwargs": {"dictionary_bytes": dictionary_bytes, **settings}}


MADE: dict[str, Callable[[], Any]] = {
    "replay-delta2": lambda: buffer("replay", 1100, rows=4, compression_method="delta/2"),
    "replay-zstd-dictionary": lambda: buffer("replay", 90, **zstd(400)),
    "replay-palette": lambda: buffer("replay", 30, KINDS["pictures"], 4, frame_stack=1, **zstd(filter="palette")),
    "replay-palette-codes": lambda: buffer(
        "replay", 300, KINDS["pictures"], 4, frame_stack=1, **zstd(filter="palette")
    ),
    "replay-palette-contexts": lambda: buffer(
        "replay", 300, KINDS["pictures"], 4, frame_stack=1, **zstd(filter="palette")
    ),
    "replay-palette-like": lambda: buffer(
        "replay", 60, KINDS["views"], rows=12, frame_stack=1, **zstd(filter="palette")
    ),
    "replay-palette-delta": lambda: buffer(
        "replay",
        30,
        KINDS["picture-stack"],
        4,
        frame_stack=3,
        compression_method="delta",
        compression_kwargs={"filter": "palette"},
    ),
    "replay-palette-near": lambda: buffer(
        "replay",
        30,
        KINDS["pictures"],
        4,
        frame_stack=1,
        compression_method="near",
        compression_kwargs={"filter": "palette"},
    ),
    "replay-palette-ranks": lambda: buffer(
        "replay",
        300,
        KINDS["few-colours"],
        12,
        frame_stack=1,
        compression_method="near",
        compression_kwargs={"filter": "palette"},
    ),
    "rollout-near": lambda: buffer("rollout", 10, compression_method="near"),
    "replay-interleave": lambda: buffer("replay", 30, KINDS["pictures"], 4, frame_stack=1, **zstd(filter="interleave")),
    "replay-rle": lambda: buffer("replay", 23, compression_method="rle", dtypes={"runs_type": np.uint16}),
    "replay-none": lambda: buffer("replay", 23, rows=4, compression_method="none"),
    "replay-undecided": lambda: buffer("replay", 5, rows=4),
    "replay-dense": lambda: buffer("replay", 23, KINDS["small-float32"]),
    "dict-replay-zstd": lambda: buffer("dict-replay", 23, max_bytes=10_000_000, **zstd()),
    "nstep-delta": lambda: buffer("nstep", 23, compression_method="delta"),
    "her-gzip": lambda: buffer("her", 23, rows=4, compression_method="gzip1", sb3={"copy_info_dict": True}),
    "rollout-full": lambda: buffer("rollout", 10, compression_method="lz4-block"),
    "dict-rollout": lambda: buffer("dict-rollout", 10, compression_method="igzip"),
    "recurrent": lambda: buffer("recurrent", 10, compression_method="delta"),
    "array": array,
    "record-dense": lambda: record(None),
    "record-delta": lambda: record("delta"),
}
GROWN = {"replay-grown": ("replay", 23, "delta")}


def save(name: str, path: Path) -> Any:
    """Save what `name` stands for, and return it; a grown file is saved three times, as a training run does."""
    if name not in GROWN:
        made = MADE[name]()
        made.save(path)
        return made
    which, n, method = GROWN[name]
    twin = TWINS[which]
    ours, _ = twin.make(twin.default_kind, 10, 2, compression_method=method)
    for i, step in enumerate(steps(twin.default_kind, 2, n, end=0.3)):
        twin.add(ours, step)
        if i in (8, 15, n - 1):
            ours.save(path)
    return ours


CLASSES = {
    **{twin.ours.__name__: twin.ours for twin in TWINS.values()},
    "CompressedArray": CompressedArray,
    "RecordBuffer": RecordBuffer,
}


def content(saved: Any) -> dict[str, Any]:
    """Return every array of a buffer, an array or a record, by name."""
    if isinstance(saved, RecordBuffer):
        return saved[:]._asdict()
    if isinstance(saved, np.ndarray):
        return {"array": np.asarray(saved)}
    found = {}
    for name, value in arrays(saved).items():
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            found[f"{name} {key}".strip()] = np.asarray(part)
    return found


def sums(saved: Any) -> dict[str, str]:
    """Return what identifies the content of each of them."""
    found = {}
    for name, array in content(saved).items():
        text = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        found[name] = f"{array.dtype} {array.shape} {hashlib.sha256(text).hexdigest()}"
    return found


def ring(saved: Any) -> list[Any]:
    """Return where the next step goes, and whether older ones are overwritten."""
    if isinstance(saved, RecordBuffer):
        return [saved._added, saved._cut]
    return [] if isinstance(saved, np.ndarray) else [saved.pos, bool(saved.full)]


def described(saved: Any) -> dict[str, Any]:
    """Return the entry of `sums.json`."""
    return {
        "class": saved.__class__.__name__,  # of an array: what it says it is
        "ring": ring(saved),
        "sums": sums(saved),
    }


def main() -> None:
    known = json.loads((STORED / "sums.json").read_text())
    for name in sys.argv[1:] or [*MADE, *GROWN]:
        path = STORED / f"{name}{SUFFIX}"
        if path.exists():
            continue
        known[path.name] = described(save(name, path))  # of what was saved, not of what is loaded
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    (STORED / "sums.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
