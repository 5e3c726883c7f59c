"""Figures as people look at them: a table, a recommendation, a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sb3_extra_buffers.cli.measure import SB3, Figures
from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.compressed.memory import readable_bytes

NO_SLOWER = 1.05
RULE = (
    f"of the methods that sample a batch in at most {NO_SLOWER} times SB3's time, the one that takes the least memory; "
    "if there is none, the one that samples fastest"
)


def recommended(figures: Sequence[Figures]) -> Figures:
    """Return the figures of the method to use, by `RULE`."""
    ours = [each for each in figures if each.method != SB3]
    quick = [each for each in ours if each.sample_ratio <= NO_SLOWER]
    return min(quick, key=lambda each: each.bytes) if quick else min(ours, key=lambda each: each.sample_ratio)


def table(figures: Sequence[Figures], batch_size: int) -> str:
    """Return one line for each method."""
    rows = [("method", "codec", "memory", "of SB3's", "add", "", f"sample({batch_size})", "", "exact")]
    for each in figures:
        rows.append(
            (
                each.method,
                each.codec,
                readable_bytes(each.bytes),
                f"{each.ratio:.2%}",
                f"{each.add_us:.0f} us",
                f"{each.add_ratio:.2f}x",
                f"{each.sample_ms:.2f} ms",
                f"{each.sample_ratio:.2f}x",
                "yes" if each.exact else "NO",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    note = "Memory of the observations; add: one step of all envs. Ratios to SB3, in turns, medians."
    return "\n".join([lines[0].rstrip(), "-" * max(map(len, lines)), *(line.rstrip() for line in lines[1:]), note])


def advice(best: Figures, sb3: Figures) -> str:
    """Return which method to use, and why."""
    if best.codec == "dense":
        return "Observations are too small to compress: keep SB3's buffer, or use ours, which keeps them as SB3 does."
    return (
        f'Use compression_method="{best.method}": {readable_bytes(best.bytes)} where SB3 takes '
        f"{readable_bytes(sb3.bytes)} ({best.ratio:.2%}), add {best.add_ratio:.2f}x, sample {best.sample_ratio:.2f}x "
        f"SB3's time.\nRule: {RULE}."
    )


def plot(figures: Sequence[Figures], batch_size: int, title: str, path: Path) -> None:
    """Draw memory against sampling time, one point for each method.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: the file's name says no format.
    """
    figure_class = optional.require("matplotlib.figure", "a plot", "extra").Figure
    figure = figure_class(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for each in figures:
        axes.scatter(each.sample_ms, 100 * each.ratio, color="black" if each.method == SB3 else "tab:blue", zorder=3)
        axes.annotate(each.method, (each.sample_ms, 100 * each.ratio), (6, 4), textcoords="offset points")
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel(f"sample({batch_size}), ms")
    axes.set_ylabel("memory, % of SB3's observations")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(0.15)
    axes.grid(True, which="both", alpha=0.25)
    figure.savefig(path, dpi=150)
