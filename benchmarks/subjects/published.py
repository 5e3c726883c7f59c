"""The published package of the same name, 0.5.0, installed once into the cache folder.

It has our import name: this process puts that folder first and drops every folder that holds ours.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from recordings import CACHE, Recording

from subjects import sb3
from subjects.sb3 import same

__all__ = ["NOTE", "REPLAY", "ROLLOUT", "options", "owned_bytes", "replay", "rollout", "same"]
NOTE = "sb3-extra-buffers 0.5.0; with zstd its payloads keep more memory than their length, see RSS"
VERSION = "0.5.0"
FOLDER = CACHE / f"published-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"


def install() -> None:
    """Install the package and the zstd binding that it needs, without touching the environment's packages."""
    if FOLDER.exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        target = Path(scratch) / "packages"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
        done = subprocess.run([*pip, f"sb3-extra-buffers=={VERSION}", "zstd"], capture_output=True, text=True)
        if done.returncode:
            raise ImportError(f"pip could not install sb3-extra-buffers {VERSION}: {done.stderr.strip()[-200:]}")
        target.rename(FOLDER)  # complete or not there


install()
sys.path[:] = [str(FOLDER), *(path for path in sys.path if not Path(path, "sb3_extra_buffers").exists())]

import sb3_extra_buffers  # noqa: E402
from sb3_extra_buffers.compressed import (  # noqa: E402
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    find_buffer_dtypes,
)

if sb3_extra_buffers.__version__.removeprefix("v") != VERSION:
    raise ImportError(f"sb3_extra_buffers is {sb3_extra_buffers.__version__} here, not {VERSION}")


REPLAY, ROLLOUT = CompressedReplayBuffer, CompressedRolloutBuffer


def options(space: spaces.Box, method: str) -> dict[str, Any]:
    elements = np.dtype(space.dtype).type
    dtypes = find_buffer_dtypes(space.shape, elem_dtype=elements, compression_method=method)
    return {"dtypes": dtypes, "compression_method": method}


def replay(recording: Recording, rows: int, method: str) -> CompressedReplayBuffer:
    return sb3.make_replay(REPLAY, recording, rows, **options(recording.observation_space, method))


def rollout(recording: Recording, rows: int, method: str) -> CompressedRolloutBuffer:
    return sb3.make_rollout(ROLLOUT, recording, rows, **options(recording.observation_space, method))


def owned_bytes(buffer: Any) -> int:
    payloads = [buffer.observations, buffer.next_observations]
    return sb3.owned_bytes(buffer) + sum(sys.getsizeof(payload) for array in payloads for payload in array.flat)
