"""README and docs: their code runs, their links lead somewhere, and every public name is documented."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from envs import Catch
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from test_public_names import NAMES

import sb3_extra_buffers

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


# README


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


@pytest.mark.parametrize("code", blocks(README, "python"), ids=range(len(blocks(README, "python"))))
def test_readme_code_runs_as_it_stands(code: str, capsys: Any) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert "CompressedReplayBuffer" in capsys.readouterr().out


@pytest.mark.parametrize("sign", "-+", ids=["before", "after"])
@pytest.mark.parametrize("diff", blocks(README, "diff"), ids=["DQN", "PPO"])
def test_readme_diff_runs_before_and_after(diff: str, sign: str) -> None:
    """In a script that has an env, and goes on to train."""
    kept = [line[1:] for line in diff.splitlines() if line[:1] in ("", " ", sign)]
    spaces: dict[str, Any] = {"env": VecFrameStack(DummyVecEnv([Catch, Catch]), 4)}
    exec(compile("\n".join(kept), "README.md", "exec"), spaces)
    model = spaces["model"]
    model.n_steps = 16  # of PPO: a short rollout
    buffer = getattr(model, "replay_buffer", None) or model.rollout_buffer
    assert type(buffer).__name__.startswith("Compressed") == (sign == "+")
    if model.__class__.__name__ == "DQN":
        model.learn(40)


def test_readme_diffs_are_two_lines() -> None:
    for diff in blocks(README, "diff"):
        assert len(re.findall(r"^\+", diff, re.MULTILINE)) == 2


# Pages


@pytest.mark.filterwarnings("ignore:rich is experimental:tqdm.TqdmExperimentalWarning")
def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The script that the page shows, with fewer steps."""
    path = ROOT / "examples" / "tutorial.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--steps", "2200", "--out", str(tmp_path)])
    runpy.run_path(str(path), run_name="__main__")
    assert {file.name for file in tmp_path.iterdir()} == {"catch.zip", "catch.buffer", "catch.record", "catch.gif"}
    assert len(re.findall(r"return -?\d+", capsys.readouterr().out)) == 3


def test_tutorial_shows_its_script_and_what_it_prints() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    script = (ROOT / "examples" / "tutorial.py").read_text()
    printed = (ROOT / "benchmarks" / "results" / "tutorial.txt").read_text()
    for name in re.findall(r"^:pyobject: (\w+)$", page, re.MULTILINE):
        assert re.search(rf"^(?:class|def) {name}\(", script, re.MULTILINE)
    for start in re.findall(r'^:(?:start|end)-(?:at|before): "?([^"\n]+)', page, re.MULTILINE):
        assert start in printed


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(ROOT / "docs" / "quickstart.md", "pycon"))
    test = doctest.DocTestParser().get_doctest(code, {"__name__": "__main__"}, "quickstart", "docs/quickstart.md", 0)
    assert test.examples
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert results.failed == 0, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_code_is_python_and_its_imports_work(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, ids(page), "exec")
        for line in re.findall(r"^(?:from \S+ )?import .*(?:\([^)]*\))?$", code, re.MULTILINE):
            exec(line, {})


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"https?:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", text):
        assert target in targets, f"make {target}"
    for script in re.findall(r"python ((?:benchmarks|scripts|examples)/\S+?\.py)", text):
        assert (ROOT / script).exists(), script


# API pages


def public_modules() -> list[str]:
    """Every package that says what it offers, and the modules that users import from."""
    packages = [
        module.name
        for module in pkgutil.walk_packages(sb3_extra_buffers.__path__, "sb3_extra_buffers.")
        if module.ispkg and hasattr(importlib.import_module(module.name), "__all__")
    ]
    return sorted({*packages, *NAMES} - {"sb3_extra_buffers"})


def documented() -> set[str]:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    return set(re.findall(r"^\.\. (?:auto(?:class|function|data)|data):: ([\w.]+)", text, re.MULTILINE))


def find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_names_on_api_pages_exist() -> None:
    for path in documented():
        find(path)


@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_documented(module: str) -> None:
    """Under this path, or another one of the same thing."""
    known = {id(thing) for thing in map(find, documented()) if callable(thing)}
    names = importlib.import_module(module).__all__
    missing = [
        name for name in names if f"{module}.{name}" not in documented() and id(find(f"{module}.{name}")) not in known
    ]
    assert not missing, f"not on any page of docs/api: {missing} of {module}"
    for name in names:
        thing = find(f"{module}.{name}")
        assert not callable(thing) or (thing.__doc__ or "").strip(), f"{module}.{name} has no docstring"
