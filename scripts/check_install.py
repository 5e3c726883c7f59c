"""Build wheel and sdist, install the wheel into empty environments, and use it there.

One environment at a time: with nothing extra, with each extra alone, with all of them. In each the import passes with
warnings as errors, `doctor` finds nothing broken, and a buffer is filled and sampled losslessly.

    python scripts/check_install.py                  # all
    python scripts/check_install.py minimal zstd     # these
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints-dev.txt"
NOT_FOR_USERS = ("dev", "docs")
SDIST_BYTES = 3_000_000  # at most: nothing large got in
USE = """
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from sb3_extra_buffers.compressed import CompressedReplayBuffer

frames = np.random.default_rng(0).integers(0, 3, (300, 84, 84)).astype(np.uint8)
common = (100, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(3), "cpu")
ours, theirs = CompressedReplayBuffer(*common), ReplayBuffer(*common)
for t in range(250):
    step = frames[None, t : t + 4], frames[None, t + 1 : t + 5], np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}]
    ours.add(*step)
    theirs.add(*step)
np.random.seed(0)
mine = ours.sample(64)
np.random.seed(0)
for one, other in zip(mine, theirs.sample(64)):
    assert one is other is None or (one.dtype == other.dtype and one.equal(other))
print(ours.memory_usage())
"""
HINT = 'pip install "sb3-extra-buffers[fast]"'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="minimal, all, or extras (default: all of these)")
    names = parser.parse_args().names
    failed = []
    with tempfile.TemporaryDirectory(prefix="check-install-") as folder:
        start = perf_counter()
        wheel = build(Path(folder))
        print(f"{'build':10} ok    {perf_counter() - start:4.0f} s  {wheel.name}", flush=True)
        extras = extras_of(wheel)
        for name in names or ["minimal", *extras, "all"]:
            start = perf_counter()
            chosen = {"minimal": [], "all": extras}.get(name, [name])
            problem = check(Path(folder) / "env", wheel, chosen)
            seconds = perf_counter() - start
            print(f"{name:10} {'FAILS' if problem else 'ok   '} {seconds:4.0f} s  {problem}".rstrip(), flush=True)
            failed += [name] * bool(problem)
    return 1 if failed else 0


def build(folder: Path) -> Path:
    """Return the wheel, after a look at it and at the sdist."""
    tools, dist = new_environment(folder / "tools"), folder / "dist"
    run(tools, "-m", "pip", "install", "-qq", "build", "twine")
    run(tools, "-m", "build", "--outdir", str(dist), str(ROOT))
    run(tools, "-m", "twine", "check", "--strict", *map(str, dist.iterdir()))
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        if "sb3_extra_buffers/py.typed" not in archive.namelist():
            raise SystemExit("the wheel has no py.typed")
    with tarfile.open(sdist) as archive:
        inside = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    missing = {"README.md", "LICENSE", "pyproject.toml", "src/sb3_extra_buffers/py.typed"} - inside
    if missing or sdist.stat().st_size > SDIST_BYTES:
        raise SystemExit(f"the sdist has {sdist.stat().st_size:,} bytes, and lacks {missing or 'nothing'}")
    return wheel


def extras_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        extras = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Provides-Extra")
    return [extra for extra in extras if extra not in NOT_FOR_USERS]


def check(folder: Path, wheel: Path, extras: list[str]) -> str:
    """Return what is wrong with an environment that has these extras, or nothing."""
    python = new_environment(folder)
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    try:
        # torch comes first, alone: the constraint then decides its build before anything else asks for it.
        run(python, "-m", "pip", "install", "-qq", "-c", str(CONSTRAINTS), "torch")
        run(python, "-m", "pip", "install", "-qq", "-c", str(CONSTRAINTS), wanted)
        run(python, "-m", "pip", "check")
        run(python, "-W", "error", "-c", "import sb3_extra_buffers.compressed")
        said = run(python, "-W", "error", "-c", USE)
        advice = run(python, "-W", "error", "-m", "sb3_extra_buffers", "doctor")
        run(python.with_name("sb3-extra-buffers"), "--help")
        if not extras and not (HINT in said and HINT in advice):
            return f"nobody says what would make it faster:\n{said}\n{advice}"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(map(str, error.cmd[1:3]))}\n{error.stdout}"
    return ""


def new_environment(folder: Path) -> Path:
    """Return the python of an environment that has nothing but pip."""
    venv.create(folder, clear=True, with_pip=True, symlinks=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def run(*command: str | Path) -> str:
    """Run a command, away from the sources, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        check=True,
        text=True,
        cwd=tempfile.gettempdir(),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
