"""Figures published for sb3-extra-buffers 0.5.0: MsPacman, stack of 4, 4 envs, 40,000 transitions.

Share of one raw copy of the observations in percent, and seconds spent in `add`, on its author's machine. SB3's own
buffer took 1.05 GB and 0.9 s.
"""

PUBLISHED = {
    "sb3": (100.0, 0.9),
    "none": (100.1, 1.2),
    "zstd-100": (36.0, 1.8),
    "zstd-50": (28.4, 1.9),
    "zstd-20": (16.8, 2.2),
    "zstd-5": (7.7, 2.1),
    "zstd-3": (6.9, 2.3),
    "zstd-1": (6.1, 2.3),
    "zstd1": (5.7, 2.7),
    "zstd3": (5.5, 3.0),
    "zstd5": (5.2, 5.4),
    "zstd10": (4.9, 10.8),
    "zstd15": (4.5, 99.8),
    "zstd22": (4.4, 590.7),
    "igzip0": (12.0, 3.4),
    "igzip1": (10.6, 5.0),
    "igzip3": (7.6, 10.5),
    "gzip0": (100.2, 2.1),
    "gzip1": (9.6, 7.6),
    "gzip3": (7.6, 8.3),
    "rle": (75.3, 4.0),
    "lz4-frame/1": (10.9, 2.1),
    "lz4-frame/5": (7.0, 6.5),
    "lz4-frame/9": (6.8, 20.0),
    "lz4-frame/12": (6.7, 58.4),
    "lz4-block/1": (7.7, 4.6),
    "lz4-block/5": (7.0, 6.3),
    "lz4-block/9": (6.7, 20.0),
    "lz4-block/16": (6.6, 57.9),
}
SLOW = ("zstd15", "zstd22")
# Names that 0.5.0 took and that mean another level here.
RENAMED = {"lz4-block/16": "lz4-block/12"}
METHODS = [
    "auto",
    "delta",
    "rle-jit",
    *(RENAMED.get(method, method) for method in PUBLISHED if method not in ("sb3", *SLOW)),
]


def published(method: str) -> str:
    """Return what was published for a method, as two columns of a table."""
    old = next((old for old, new in RENAMED.items() if new == method), method)
    if old not in PUBLISHED:
        return f"{'-':>8} {'-':>8}"
    share, seconds = PUBLISHED[old]
    return f"{share:7.1f}% {seconds:6.1f} s"
