"""Every figure in README and docs is that of its results file, and none is written by hand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
PAGES += (page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts)

UNITS = r"%|x(?![\w ]*\d)|times|[KMGT]i?B(?:/s)?|ms|us|µs|ns|s|seconds?|steps/s"
MEASURED = re.compile(rf"(?<![\w.])\d[\d,.]*(?:\s|-)?(?:{UNITS})(?![\w/])")
"""A number with the unit of something that was measured."""

FACTS = {
    "docs/how-it-works.md": ["256 KB", "16 KB"],  # of the format; size of a segment
    "docs/cli.md": ["1.05 times"],  # the rule of `recommend`
    "docs/persistence.md": ["64 MB", "16 KB", "1 GB"],  # how much is mapped; size of a segment; limit of a header
    "docs/training.md": ["11 GB", "3.6 GB", "150 MB", "4.2 %", "256 MB", "32 MB"],  # published for 0.5.0; of malloc
    "CHANGELOG.md": ["256 MB"],  # of malloc
}
"""What is known without measuring, or was measured by others."""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load()


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def by_hand(text: str) -> list[str]:
    """Return the measured numbers of a page that no results file stands behind."""
    text = re.sub(r"<!-- figure .*?<!-- end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    return MEASURED.findall(text)


def test_pages_and_pictures_are_those_of_the_results(figures: ModuleType) -> None:
    old = [str(path.relative_to(ROOT)) for path in figures.outdated()]
    assert not old, f"differ from benchmarks/results: {old}; run: make figures"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_figure_is_written_by_hand(page: Path) -> None:
    found = [number for number in by_hand(page.read_text()) if number not in FACTS.get(ids(page), [])]
    assert not found, f"{found}: write them from a results file, as CONTRIBUTING.md says"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_figures_are_marked_so_that_pages_render(page: Path, figures: ModuleType) -> None:
    """A line that starts with a comment is HTML to Markdown: no number in a sentence may be the first of its line."""
    text = page.read_text()
    assert text.count("<!-- figure ") == text.count("<!-- end -->") == len(figures.REGION.findall(text))
    for match in figures.REGION.finditer(text):
        alone = match[4].startswith("\n\n") or match[4] == ""
        assert alone or not re.search(r"(?:^|\n)\s*$", text[: match.start()]), match[0]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_command_is_named_beside(page: Path, figures: ModuleType) -> None:
    """A page with figures of a file names the file, or the command that writes it."""
    text = page.read_text()
    prose = figures.REGION.sub("", text)
    for file in {match[2] for match in figures.REGION.finditer(text)}:
        assert re.search(rf"benchmarks/results/{file}\.json|python benchmarks/{file}\.py|make soak", prose), file


def test_a_changed_number_is_noticed(figures: ModuleType) -> None:
    known = figures.figures()
    page = "It takes <!-- figure million.resident -->1 MB<!-- end --> in memory."
    assert figures.filled(page, known) != page
    assert figures.filled(figures.filled(page, known), known) == figures.filled(page, known)
    with pytest.raises(ValueError, match=r"no figure million\.x; known: .*resident"):
        figures.filled("<!-- figure million.x --><!-- end -->", known)
    with pytest.raises(ValueError, match="no figures of 'billion'"):
        figures.filled("<!-- figure billion.x --><!-- end -->", known)


def test_a_missing_results_file_leaves_nothing(figures: ModuleType) -> None:
    page = "<!-- figure training.table -->\n\n| old |\n\n<!-- end -->"
    assert figures.filled(page, {}) == "<!-- figure training.table --><!-- end -->"


def test_training_table(figures: ModuleType) -> None:
    """Of a file as benchmarks/training.py writes it."""
    row = {
        "algorithm": "dqn",
        "steps": 10_000,
        "subject": "ours:auto",
        "seconds": [31.0, 30.5, 30.0],
        "ratios": [1.0, 1.01, 1.02],
        "median_ratio": 1.01,
        "median_ratio_of_turns": 0.998,
        "faults": [1_200, 900, 1_000],
        "same_weights": True,
    }
    about = {"command": "python benchmarks/training.py", "cpu": "A CPU", "cores": 2, "python": "3.11.7"}
    found = figures.training({"about": about, "rows": [row]})
    text = found["table"]
    assert found["dqn"] == "1.01\N{NO-BREAK SPACE}x"
    cells = text.replace("\N{NO-BREAK SPACE}", " ")
    assert "| DQN | 10,000 | ours, `auto` | 30.5 s | 1.010 x | 1.00 to 1.02 | 0.998 x | 1,000 | the same |" in cells
    assert "`python benchmarks/training.py`" in text


@pytest.mark.parametrize(
    "text", ["It takes 0.75 % of it.", "1.5x as fast", "needs 56.4 GB", "in 0.3 ms", "730 steps/s", "1.15 times", "3 s"]
)
def test_measured_numbers_are_recognised(text: str) -> None:
    assert by_hand(text)


@pytest.mark.parametrize("text", ["stack of 4", "36 x 36 pixels", "0.5.0", "`sample(256)`", "issue 934", "2 cores"])
def test_other_numbers_are_not(text: str) -> None:
    assert not by_hand(text)
