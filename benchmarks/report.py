"""What a run has measured: as a table on the terminal and in a text file, and as JSON and CSV files.

python benchmarks/report.py benchmarks/results/quick.json                      # print the tables again
python benchmarks/report.py benchmarks/results/quick.json --base ours:auto     # as ratios to another subject
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import re
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

COLUMNS = {
    "owned": "memory",
    "rss": "RSS",
    "add_first": "add 1st",
    "add_full": "add full",
    "sample_32": "samp. 32",
    "sample_256": "samp.256",
    "rollout_add": "PPO add",
    "rollout_get": "PPO get",
}
BYTES = ("owned", "rss")
ALLOCATORS = {"default": "allocator as it comes", "pinned": "allocator pinned"}
LEGEND = """memory: bytes that the buffer owns when full; RSS: growth of the process over the first fill, free memory
given back. add 1st, add full: one step of all envs, during the first fill and in the full ring. samp.: one batch. PPO
add: one step, PPO get: one epoch of a rollout of 256 steps. Medians, as ratios to the first row in the same run; the
first row is absolute. A ratio closer to 1 than that of 'sb3:again' says nothing."""


def summary(result: dict[str, Any], base: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return `{measure: {median, min, ratio, ratio_of_minima}}` of one subject; bytes and seconds alike."""
    rows = {}
    for measure in COLUMNS:
        values, others = result["values"].get(measure), base["values"].get(measure)
        if not values:
            continue
        rows[measure] = {"median": median(values), "min": min(values)}
        if others and min(others) > 0:
            rows[measure]["ratio"] = median(values) / median(others)
            rows[measure]["ratio_of_minima"] = min(values) / min(others)
    return rows


def table(recording: dict[str, Any], base: str = "sb3") -> str:
    """Return the table of one recording, 100 columns wide, as ratios to the subject `base`."""
    results = recording["results"]
    title = f"{recording['name']}, 4 envs x {recording['rows']:,} steps, {ALLOCATORS[recording['allocator']]}"
    lines = [title, f"{'':24}" + "".join(f"{heading:>9}" for heading in COLUMNS.values())]
    for name in sorted(results, key=lambda each: each != base):
        rows = summary(results[name], results[base])
        cells = [_cell(measure, rows.get(measure), name == base) for measure in COLUMNS]
        figures = "".join(f"{cell:>9}" for cell in cells) if rows else "  did not run"
        lines.append(f"{name.removesuffix('Storage'):24}" + figures)
    failed = {name: result["failed"] for name, result in results.items() if result["failed"]}
    return "\n".join([*lines, *_indented(failed)])


def legend(recordings: list[dict[str, Any]]) -> str:
    """Return what a reader of the tables should know."""
    results = [item for recording in recordings for item in recording["results"].items()]
    notes = {name.partition(":")[0]: result["note"] for name, result in results if result["note"]}
    return "\n".join([textwrap.fill(LEGEND, 100), *_indented(notes)])


def text(recordings: list[dict[str, Any]]) -> str:
    """Return all tables and the legend."""
    return "\n\n".join([*map(table, recordings), legend(recordings)]) + "\n"


def digest(shown: Any) -> str:
    """Return a hash of what a picture shows. It is written into the picture, so that a test can compare the two."""
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def _indented(notes: dict[str, str]) -> list[str]:
    texts = [f"{name}: {note}" for name, note in notes.items()]
    return [line for text in texts for line in textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="    ")]


def _cell(measure: str, row: dict[str, float] | None, absolute: bool) -> str:
    if row is None or (not absolute and "ratio" not in row):
        return "-"
    if absolute and measure in BYTES:
        return f"{row['median'] / 1e6:.1f} MB" if row["median"] < 1e9 else f"{row['median'] / 1e9:.2f} GB"
    if absolute:
        return f"{row['median'] * 1e6:.1f} us" if row["median"] < 1e-4 else f"{row['median'] * 1e3:.2f} ms"
    ratio = row["ratio"]
    if measure in BYTES and ratio < 2:
        return f"{ratio:.2%}" if ratio < 0.0995 else f"{ratio:.0%}"
    return f"{ratio:.2f}x" if ratio < 99.5 else f"{ratio:.0f}x"


def write(path: Path, about: dict[str, Any], recordings: list[dict[str, Any]]) -> None:
    """Write `path`.json (everything), `path`.csv (one line per figure) and `path`.txt (the tables)."""
    lines: list[list[Any]] = [
        ["recording", "allocator", "subject", "measure", "unit", "median", "min", "ratio", "ratio_of_minima"]
    ]
    for recording in recordings:
        results = recording["results"]
        for subject, result in results.items():
            result["summary"] = summary(result, results["sb3"])
            start = [recording["name"], recording["allocator"], subject]
            for measure, row in result["summary"].items():
                figures = [row.get(key, "") for key in ("median", "min", "ratio", "ratio_of_minima")]
                unit = "bytes" if measure in BYTES else "seconds"
                lines.append([*start, measure, unit, *(figure and f"{figure:.6g}" for figure in figures)])
            if result["failed"]:
                lines.append([*start, "failed", result["failed"]])
    as_json = json.dumps({"about": about, "recordings": recordings}, indent=1)
    numbers_in_a_line = re.sub(r"\[[\d\s.,e+-]*\]", lambda match: " ".join(match[0].split()), as_json)
    as_csv = io.StringIO()
    csv.writer(as_csv, lineterminator="\n").writerows(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path.with_name(path.name + ".json"), numbers_in_a_line + "\n")
    replace(path.with_name(path.name + ".csv"), as_csv.getvalue())
    replace(path.with_name(path.name + ".txt"), text(recordings))


def replace(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--base", default="sb3", help="the subject that others are compared with")
    options = parser.parse_args()
    for file in options.files:
        recordings = json.loads(file.read_text())["recordings"]
        for recording in recordings:
            print(table(recording, options.base), end="\n\n")
        print(legend(recordings))


if __name__ == "__main__":
    main()
