"""The example trains, on the cluster of the tests."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "example_train_distributed.py"


def test_it_runs(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("ale_py")
    settings = (
        "--steps 300 --collectors 1 --envs 2 --shards 1 --learning-starts 256 --samples-per-insert 2 --episodes 0"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, *settings.split(), "--device", "cpu"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "transitions/s played" in printed
    assert list((tmp_path / "runs").glob("*.zip"))
    assert f"make example NAME={EXAMPLE.stem.removeprefix('example_')} " in EXAMPLE.read_text()
