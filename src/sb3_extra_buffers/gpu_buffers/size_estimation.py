"""How much smaller a method is expected to make observations: read off a benchmark, for planning a heap.

`scripts/fit_heap_heuristic.py` prints `MEASURED` anew from another benchmark.
"""

from __future__ import annotations

from math import exp, log

from sb3_extra_buffers.codecs.registry import CODECS, parse_method

__all__ = ["MEASURED", "estimate_save_ratio", "parse_compression_method", "validate_compresslevel"]

MEASURED: dict[str, dict[int, float]] = {
    "none": {0: 1.0},
    "rle": {0: 0.753},
    "rle-jit": {0: 0.753},
    "delta": {1: 0.107},
    "gzip": {0: 1.0, 1: 0.096, 3: 0.076},
    "igzip": {0: 0.12, 1: 0.106, 3: 0.076},
    "zstd": {
        -100: 0.36,
        -50: 0.284,
        -20: 0.168,
        -5: 0.077,
        -3: 0.069,
        -1: 0.061,
        1: 0.057,
        3: 0.055,
        5: 0.052,
        10: 0.049,
        15: 0.045,
        22: 0.044,
    },
    "lz4-frame": {1: 0.109, 5: 0.07, 9: 0.068, 12: 0.067},
    "lz4-block": {1: 0.077, 5: 0.07, 9: 0.067, 12: 0.066},
}
"""Share of the raw bytes, by method and level (0 where a method has none). MsPacman, stack of 4, 40,000 transitions."""


def parse_compression_method(compression_method: str) -> tuple[str, int | None]:
    """Split a method string into its name and level: `zstd-5` gives `("zstd", -5)`, `rle` gives `("rle", None)`.

    Raises:
        ValueError: unknown name, malformed shorthand, or a level the method does not have.
    """
    return parse_method(compression_method)


def validate_compresslevel(method: str, level: int | None) -> None:
    """Check a level of a method; None, its default, is always right.

    Raises:
        ValueError: unknown name, or a level the method does not have.
    """
    parse_method(method if level is None else f"{method}/{level}")


def estimate_save_ratio(compression_method: str, compresslevel: int | None = None) -> float:
    """Return the expected size of observations as a share of their raw bytes.

    Levels between two measured ones lie between them, in proportion of the logarithm; levels beyond are taken as the
    nearest measured one.

    Args:
        compression_method: a method string, optionally with a level.
        compresslevel: the level, if the method string has none.

    Raises:
        ValueError: unknown name, or a level the method does not have.
    """
    name, level = parse_compression_method(compression_method)
    if level is None:
        level = compresslevel
        validate_compresslevel(name, level)
    known = MEASURED[name]
    if level is None:
        level = getattr(CODECS[name], "level", 0)
    level = min(max(level, min(known)), max(known))
    if level in known:
        return known[level]
    below = max(one for one in known if one < level)
    above = min(one for one in known if one > level)
    part = (level - below) / (above - below)
    return exp((1 - part) * log(known[below]) + part * log(known[above]))
