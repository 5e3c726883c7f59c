"""Memory against sampling time, one labelled point per subject, one picture per recording.

python benchmarks/plot.py benchmarks/results/quick.json        # draw them again
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import report
from labels import label
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

COLOURS = {
    "ours": "#0b6e4f",
    "sb3": "#1d1d1f",
    "published": "#c0392b",
    "torchrl": "#7d3c98",
    "cpprb": "#b9770e",
    "plain": "#5d6d7e",
}
NAMES = {
    "ours": "ours",
    "sb3": "SB3",
    "published": "0.5.0",
    "torchrl": "TorchRL",
    "cpprb": "cpprb",
    "plain": "plain",
}
MARKERS = {"ours": "o", "sb3": "s", "published": "^", "torchrl": "D", "cpprb": "P", "plain": "v"}


def draw(recordings: list[dict[str, Any]], name: str, path: Path) -> Path:
    """Draw the recording `name` of a results file `path` (without suffix); return the picture's path.

    With the allocator pinned (SB3 at its best) where that was measured.
    """
    data = shown(recordings, name)
    times, owned, resident = data["times"], data["owned"], data["resident"]

    figure = Figure(figsize=(8, 5.5) if len(times) < 15 else (11, 8), dpi=140, layout="constrained")
    axes = figure.subplots()
    _set_axes(axes)
    axes.set_xlim(min(times.values()) / 1.8, max(times.values()) * 2.5)
    axes.set_ylim(min(owned.values()) / 1.8, max(*owned.values(), *resident.values()) * 1.8)
    allocator = "allocator pinned" if data["allocator"] == "pinned" else "allocator as it comes"
    about = f"{data['rows']:,} steps of 4 envs, {allocator}; lower left is better"
    axes.set_title(f"{name}: memory against sampling time", loc="left", fontweight="bold", pad=22)
    about += "; a line leads up to resident memory where that is more"
    axes.text(0, 1.015, about, transform=axes.transAxes, fontsize=8.5, color="#566573")

    points, lines, styles = {}, [], {}
    for subject in times:
        family, _, method = subject.partition(":")
        written = f"{NAMES[family]} {method.removesuffix('Storage')}".strip()
        colour = COLOURS[family]
        points[written] = times[subject], owned[subject]
        styles[written] = {"color": colour, "fontsize": 9, "fontweight": "bold" if family == "ours" else "normal"}
        if resident[subject] > 1.2 * owned[subject]:
            lines.append(Bbox([points[written], (times[subject], resident[subject])]))
            axes.plot(*lines[-1].get_points().T, color=colour, linewidth=1, alpha=0.5)
        axes.plot(*points[written], MARKERS[family], color=colour, markersize=8, zorder=3)
    label(axes, points, lines, styles)
    picture = path.with_name(f"{path.name}-{name}.png")
    figure.savefig(picture, metadata={"Description": report.digest(data)})
    return picture


def shown(recordings: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return what the picture of the recording `name` shows."""
    chosen = [recording for recording in recordings if recording["name"] == name]
    recording = next((each for each in chosen if each["allocator"] == "pinned"), chosen[0])
    results = {
        s: r["values"] for s, r in recording["results"].items() if "sample_256" in r["values"] and s != "sb3:again"
    }
    return {
        "allocator": recording["allocator"],
        "rows": recording["rows"],
        "times": {subject: 1e3 * median(values["sample_256"]) for subject, values in results.items()},
        "owned": {subject: values["owned"][0] / 1e6 for subject, values in results.items()},
        "resident": {subject: values["rss"][0] / 1e6 for subject, values in results.items()},
    }


def _set_axes(axes: Axes) -> None:
    axes.set(xscale="log", yscale="log", xlabel="sample(256), milliseconds", ylabel="memory of the full buffer, MB")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", color="#e5e7e9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    for file in map(Path, sys.argv[1:]):
        recordings = json.loads(file.read_text())["recordings"]
        for name in dict.fromkeys(recording["name"] for recording in recordings):
            print(draw(recordings, name, file.with_suffix("")))


if __name__ == "__main__":
    main()
