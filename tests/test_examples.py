"""Each example runs, for a few steps, as its header says."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

# SB3's progress bar says so itself, but only once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:rich is experimental:tqdm.TqdmExperimentalWarning")

FOLDER = Path(__file__).parents[1] / "examples"

RUNS = {
    "demo": "--steps 40 --buffer-size 100",
    "example_train_replay": "--steps 40 --envs 1 --buffer-size 100 --episodes 0 --device cpu --method zstd3",
    "example_train_rollout": "--steps 32 --envs 1 --n-steps 8 --episodes 0 --device cpu --method rle-jit",
    "example_eval_replay": "--steps 20 --envs 1 --episodes 2 --buffer-size 100 --device cpu --method delta",
    "example_eval_rollout": "--steps 20 --envs 1 --episodes 2 --buffer-size 100 --device cpu --method zstd3",
    "example_watch_replay": "--steps 20 --device cpu --method delta --out a.gif",
    "example_watch_rollout": "--steps 20 --device cpu --method zstd3 --out a.mp4",
    "example_eval_memory_saving": "--steps 80 --method auto zstd3 lz4-block/12",
    "example_eval_memory_loading": "--steps 80 --method auto zstd3 lz4-block/12 --batch-size 16",
    "example_train_vizdoom": "--steps 32 --envs 1 --n-steps 8 --episodes 1 --device cpu --shrink 3",
    "example_eval_memory_vizdoom": "--steps 40 --envs 2 --env basic --method auto rle-jit",
}


def run(name: str, arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments.split()])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", RUNS)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run(name, RUNS[name], tmp_path, monkeypatch)
    assert capsys.readouterr().out
    if "watch" in name:
        assert (tmp_path / RUNS[name].split()[-1]).stat().st_size > 1000
    if "train" in name:
        assert list((tmp_path / "runs").glob("*.zip"))


@pytest.mark.parametrize("observe", ["rgb", "both"])
def test_vizdoom_with_other_eyes(observe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("example_train_vizdoom", f"{RUNS['example_train_vizdoom']} --observe {observe}", tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", ["replay", "rollout"])
def test_a_trained_model_is_evaluated_and_watched(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On the game that is not the default."""
    game = {"replay": "PongNoFrameskip-v4", "rollout": "MsPacmanNoFrameskip-v4"}[kind]
    for what in ("train", "eval", "watch"):
        name = f"example_{what}_{kind}"
        run(name, f"{RUNS[name]} --env {game}", tmp_path, monkeypatch)
    assert "untrained" not in capsys.readouterr().out


EXAMPLES = sorted(path for path in FOLDER.glob("example_*.py") if not {"gpu", "distributed"} & {*path.stem.split("_")})
"""Those for GPU buffers and for Ray have tests of their own."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_header_gives_the_command(path: Path) -> None:
    command = re.search(r"^    make example NAME=(\w+)", path.read_text(), re.MULTILINE)
    assert command is not None
    assert path.stem == f"example_{command[1]}"


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES} == RUNS.keys() - {"demo"}
