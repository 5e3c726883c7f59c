"""How few bytes a picture can take: our default method beside coders that take their time.

    python benchmarks/limits.py                                # ViZDoom in RGB, all scenes of the plans
    python benchmarks/limits.py --recordings doom-basic-rgb --frames 20

Bytes of a frame on average. Ours are all that a replay buffer owns, tables included, over its different frames; the
others are of frames taken evenly from the same recording, payloads alone.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import recordings
import zstandard
from about import about
from PIL import Image
from plans import SCENES
from report import replace
from subjects import ours
from tqdm import tqdm

RECORDINGS = [f"doom-{scene}-rgb" for scene in SCENES]


def zstd(level: int) -> Callable[[np.ndarray], int]:
    """Return what counts the bytes of a frame `[H, W, C]` in SB3's channel-first order."""
    compressor = zstandard.ZstdCompressor(level=level)
    return lambda frame: len(compressor.compress(np.ascontiguousarray(frame.transpose(2, 0, 1)).tobytes()))


def webp(frame: np.ndarray) -> int:
    """Return the bytes of WebP without losses, at its greatest effort."""
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "WEBP", lossless=True, quality=100, method=6)
    return file.tell()


CODERS: dict[str, Callable[[np.ndarray], int]] = {"zstd3": zstd(3), "zstd19": zstd(19), "webp": webp}


def main() -> None:
    options = parse_args()
    rows = []
    print(f"{'recording':28}" + "".join(f"{name:>9}" for name in ("ours", *CODERS)) + f"{'ours / zstd3':>14}")
    for name in options.recordings:
        recording = recordings.load(name, options.steps)
        buffer = ours.replay(recording, options.steps, "auto")
        for step in tqdm(recording.steps(), desc=name, total=options.steps, leave=False):
            buffer.add(*step)
        usage = buffer.memory_usage()
        found = {"ours": usage.stored_bytes / usage.unique_frames}
        frames = recording.frames.reshape(-1, *recording.frames.shape[2:])
        some = frames[np.linspace(0, len(frames) - 1, options.frames).astype(int)]
        for coder, count in CODERS.items():
            found[coder] = float(np.mean([count(frame) for frame in tqdm(some, f"{name}, {coder}", leave=False)]))
        rows.append({"recording": name, "frame": list(frames.shape[1:]), **found})
        print(f"{name:28}" + "".join(f"{n:9,.0f}" for n in found.values()) + f"{found['ours'] / found['zstd3']:14.2f}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "limits.json"
    replace(file, json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    print(f"Written: {file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", nargs="+", default=RECORDINGS)
    parser.add_argument("--steps", type=int, default=2500, help="steps of the 4 envs")
    parser.add_argument("--frames", type=int, default=100, help="how many the others encode")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.frames < 1:
        parser.error("--frames is at least 1")
    return options


if __name__ == "__main__":
    main()
