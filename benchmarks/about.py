"""Where, when and with what a results file was made."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = [
    "numpy",
    "torch",
    "stable-baselines3",
    "sb3-extra-buffers",
    "numba",
    "zstandard",
    "lz4",
    "isal",
    "gymnasium",
    "ale-py",
    "vizdoom",
    "mujoco",
    "torchrl",
    "tensordict",
    "cpprb",
]


def about() -> dict[str, Any]:
    """Return the command, date, hardware and versions of this run."""
    return {
        "command": " ".join(["python", _from_root(sys.argv[0]), *map(shlex.quote, sys.argv[1:])]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
    }


def _from_root(file: str) -> str:
    root = Path(__file__).resolve().parents[1]
    path = Path(file).resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "../src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + (" and changes" if changed.stdout else "")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
