"""Fit the expected memory ratios of `gpu_buffers.size_estimation` to a benchmark, and print them as Python.

    python scripts/fit_heap_heuristic.py                    # the published table
    python scripts/fit_heap_heuristic.py my_table.txt       # lines of a method and its share in percent: zstd-3 6.9

A larger level should never be larger: where a benchmark says otherwise, neighbours get their mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sb3_extra_buffers.codecs.registry import CODECS, parse_method

PUBLISHED = """
none 100.1 rle 75.3 rle-jit 75.3
zstd-100 36.0 zstd-50 28.4 zstd-20 16.8 zstd-5 7.7 zstd-3 6.9 zstd-1 6.1
zstd1 5.7 zstd3 5.5 zstd5 5.2 zstd10 4.9 zstd15 4.5 zstd22 4.4
igzip0 12.0 igzip1 10.6 igzip3 7.6 gzip0 100.2 gzip1 9.6 gzip3 7.6
lz4-frame/1 10.9 lz4-frame/5 7.0 lz4-frame/9 6.8 lz4-frame/12 6.7
lz4-block/1 7.7 lz4-block/5 7.0 lz4-block/9 6.7 lz4-block/12 6.6
"""
"""Percent of one raw copy of the observations. MsPacman, stack of 4, 40,000 transitions."""

DELTA = "delta 10.7"  # of `RawObservationStore`, which stores whole observations


def parse_table(text: str) -> dict[str, dict[int, float]]:
    """Return the shares by method and level; 0 for methods without levels."""
    words = text.split()
    table: dict[str, dict[int, float]] = {}
    for method, percent in zip(words[::2], words[1::2], strict=True):
        name, level = parse_method(method)
        if level is None:
            level = CODECS[name]().level if len(CODECS[name].levels) else 0  # type: ignore[attr-defined]
        table.setdefault(name, {})[level] = min(float(percent) / 100, 1.0)
    return table


def fit(points: dict[int, float]) -> dict[int, float]:
    """Return the points with shares that never grow with the level: pool neighbours that do (isotonic regression)."""
    pools: list[tuple[float, list[int]]] = []
    for level in sorted(points):
        pools.append((points[level], [level]))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (left, low), (right, high) = pools[-2:]
            mean = (left * len(low) + right * len(high)) / (len(low) + len(high))
            pools[-2:] = [(mean, low + high)]
    return {level: round(share, 4) for share, levels in pools for level in levels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help="lines of a method and its share in percent")
    options = parser.parse_args()
    text = options.table.read_text() if options.table else PUBLISHED + DELTA
    print("MEASURED: dict[str, dict[int, float]] = {")
    for name, points in parse_table(text).items():
        print(f'    "{name}": {fit(points)},')
    print("}")


if __name__ == "__main__":
    main()
