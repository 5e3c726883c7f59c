"""What `inspect` prints of a saved file."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sb3_extra_buffers.cli.saved import Saved
from sb3_extra_buffers.frames.tables import readable_bytes


def report(saved: Saved, path: Path, drawn: Path | None, width: int = 100) -> str:
    """Return what is in the file, for a terminal of `width` columns."""
    size = readable_bytes(path.stat().st_size)
    by = ", ".join(f"{name} {version}" for name, version in saved.versions.items())
    envs = f", {saved.envs} env{'s' if saved.envs != 1 else ''}"
    facts = [
        ("file", f"{path.name}, {size}" + (f", written by {by}" if by else "")),
        ("holds", saved.kind),
        ("rows", f"{saved.rows:,} of {saved.capacity:,}{envs}"),
        *([("actions", saved.actions)] if saved.actions else []),
        *((part.name or "observation", _described(part)) for part in saved.parts),
        *([] if saved.episodes is None else [("episodes", _episodes(saved.episodes))]),
        *([] if drawn is None else [("frames", str(drawn))]),
    ]
    widest = min(max(len(name) for name, _ in facts), 20)
    lines = []
    for name, text in facts:
        head = f"{name.ljust(widest)}  "
        indent = " " * (widest + 2)
        lines += textwrap.wrap(
            text, max(width, 40), initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
        )
    return "\n".join([*lines, "", replace(saved.usage, name="all").table(width)])


def _described(part: Any) -> str:
    stacked = f", {part.stack} frames in each" if part.stack > 1 else ""
    return f"{part.space}{stacked}; {part.codec}"


def _episodes(episodes: list[tuple[int, float]]) -> str:
    if not episodes:
        return "none is whole"
    lengths, returns = (np.array(column) for column in zip(*episodes, strict=True))
    return (
        f"{len(episodes):,} whole; length {lengths.min():,} to {lengths.max():,}, mean {lengths.mean():,.1f}; "
        f"return {returns.min():,g} to {returns.max():,g}, mean {returns.mean():,.4g}"
    )


def as_json(saved: Saved, path: Path, drawn: Path | None) -> dict[str, Any]:
    """Return the same, and each episode, as a document."""
    usages = saved.usage.parts or (saved.usage,) * len(saved.parts)
    return {
        "file": str(path),
        "file_bytes": path.stat().st_size,
        "class": saved.kind,
        "versions": saved.versions,
        "rows": saved.rows,
        "capacity": saved.capacity,
        "envs": saved.envs,
        "action_space": saved.actions,
        "raw_bytes": saved.usage.raw_bytes,
        "stored_bytes": saved.usage.stored_bytes,
        "ratio": saved.usage.ratio,
        "observations": [
            {
                "key": part.name or None,
                "space": part.space,
                "shape": list(part.obs_shape),
                "dtype": str(part.array.dtype),
                "stack": part.stack,
                "method": usage.method,
                "codec": part.codec,
                "raw_bytes": usage.raw_bytes,
                "stored_bytes": usage.stored_bytes,
                "ratio": usage.ratio,
                "frames": usage.frames,
                "unique_frames": usage.unique_frames,
            }
            for part, usage in zip(saved.parts, usages, strict=True)
        ],
        "episodes": None
        if saved.episodes is None
        else [{"length": length, "return": earned} for length, earned in saved.episodes],
        "frames": None if drawn is None else str(drawn),
    }
