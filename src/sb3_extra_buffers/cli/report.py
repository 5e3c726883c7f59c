"""Figures as people look at them: a table, a recommendation, a plot."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from sb3_extra_buffers.cli.measure import SB3, Figures, arguments_of
from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.frames.tables import readable_bytes, text_table

NO_SLOWER = 1.05
RULE = (
    f"of the methods that take at most {NO_SLOWER} times SB3's time to add a step of all envs and sample a batch, the "
    "one that takes the least memory; if there is none, the fastest"
)


def recommended(figures: Sequence[Figures]) -> Figures:
    """Return the figures of the method to use, by `RULE`; the first of `figures` are SB3's."""
    ours = [each for each in figures if each.method != SB3]
    quick = [each for each in ours if _slowness(each, figures[0]) <= NO_SLOWER]
    return min(quick or ours, key=lambda each: each.bytes if quick else _slowness(each, figures[0]))


def _slowness(method: Figures, sb3: Figures) -> float:
    """Return the time of a step and a batch, SB3's being 1."""
    return (method.add_us / 1e3 + method.sample_ms) / (sb3.add_us / 1e3 + sb3.sample_ms)


def table(figures: Sequence[Figures], batch_size: int, width: int = 100) -> str:
    """Return one line for each method; in a narrow terminal with ratios only."""
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
    shown = text_table(rows)
    if max(map(len, shown.splitlines())) > width:
        header = ("method", "codec", "of SB3's", "add", "sample", "exact")
        shown = text_table([header, *((m, codec, share, a, s, ok) for m, codec, _, share, _, a, _, s, ok in rows[1:])])
    note = "Memory of observations. add: a step of all envs, median; sample: best of several. x: times SB3's."
    return "\n".join([shown, *textwrap.wrap(note, width)])


def advice(figures: Sequence[Figures], width: int = 100) -> str:
    """Return which method to use, why, and which one is for those who lack memory more than time."""
    sb3, best = figures[0], recommended(figures)
    if best.codec == "dense":
        text = "Observations are too small to compress: keep SB3's buffer, or use ours, which keeps them as SB3 does."
        return textwrap.fill(text, width)
    texts = [
        f"Use {_as_arguments(best.method)}: {readable_bytes(best.bytes)} where SB3 takes "
        f"{readable_bytes(sb3.bytes)} ({best.ratio:.2%}), add {best.add_ratio:.2f}x, sample {best.sample_ratio:.2f}x "
        "SB3's time."
    ]
    if _slowness(best, sb3) > NO_SLOWER:
        texts[0] += " None is as fast as SB3's buffer here."
    smallest = min((each for each in figures if each.method != SB3), key=lambda each: each.bytes)
    if smallest.bytes < best.bytes:
        texts.append(
            f"Least memory: {_as_arguments(smallest.method)}, {readable_bytes(smallest.bytes)} "
            f"({smallest.ratio:.2%}), in {_slowness(smallest, sb3):.2f} times SB3's time."
        )
    return "\n".join(line for text in (*texts, f"Rule: {RULE}.") for line in textwrap.wrap(text, width))


def _as_arguments(method: str) -> str:
    """Return the arguments of a buffer as they are written in a script."""
    given = {name: repr(value).replace("'", '"') for name, value in arguments_of(method).items()}
    return ", ".join(f"{name}={value}" for name, value in given.items())


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
