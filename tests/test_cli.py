"""`python -m sb3_extra_buffers`: measures any env, names a method by its rule, says what is wrong."""

import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from envs import Catch

from sb3_extra_buffers.cli import main, report
from sb3_extra_buffers.cli.measure import SB3, Figures

SHORT = ["--steps", "60", "--envs", "2", "--batch", "16"]


class ColourCatch(gym.ObservationWrapper):
    """The same in RGB."""

    def __init__(self) -> None:
        super().__init__(Catch())
        self.observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def observation(self, image):
        return image * np.array([1, 2, 3], np.uint8)


@pytest.fixture(autouse=True)
def _catch():
    gym.register("Catch-v0", Catch)
    gym.register("ColourCatch-v0", ColourCatch)
    gym.register("KeyedCatch-v0", Catch, kwargs={"keyed": True})
    yield
    for name in ("Catch-v0", "ColourCatch-v0", "KeyedCatch-v0"):
        gym.registry.pop(name)


def figures(method: str, n_bytes: int, sample_ms: float, codec: str = "delta", add_ms: float = 0.1) -> Figures:
    """Of a method where SB3 adds in 0.1 ms and samples in 1 ms."""
    return Figures(method, codec, n_bytes, n_bytes / 1000, 1e3 * add_ms, add_ms / 0.1, sample_ms, sample_ms, True)


@pytest.mark.parametrize("env", ["Catch-v0", "KeyedCatch-v0", "CartPole-v1"])
def test_bench_prints_a_line_for_each_method(env, capsys):
    assert main(["bench", "--env", env, *SHORT, "--methods", "auto", "none", "zstd3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = {line.split()[0]: line.split() for line in lines if line}
    assert {SB3, "auto", "none", "zstd3"} <= table.keys()
    assert all(table[name][-1] == "yes" for name in (SB3, "auto", "none", "zstd3"))  # samples equal SB3's
    assert max(map(len, lines[:5])) <= 100


def test_bench_measures_the_smallest_and_the_fastest_without_being_asked(capsys):
    assert main(["bench", "--env", "Catch-v0", *SHORT]) == 0
    measured = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert {SB3, "auto", "delta", "delta/2", "near", "zstd3"} <= measured


@pytest.mark.parametrize(("env", "is_coloured"), [("ColourCatch-v0", True), ("Catch-v0", False)])
def test_pictures_are_measured_with_a_palette(env, is_coloured, capsys):
    assert main(["bench", "--env", env, *SHORT, "--stack", "1"]) == 0
    table = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    for method in ("palette+none", "palette+near"):
        assert (method in table) == is_coloured
        if is_coloured:
            assert table[method][1] == "palette"
            assert table[method][-1] == "yes"


def test_a_filter_before_a_method(capsys):
    methods = ["--methods", "palette+zstd3"]
    assert main(["recommend", "--env", "ColourCatch-v0", *SHORT, "--stack", "1", *methods]) == 0
    wanted = 'compression_method="zstd3", compression_kwargs={"filter": "palette"}'
    assert wanted in " ".join(capsys.readouterr().out.split())


def test_stacked_atari_game(capsys):
    assert main(["recommend", "--env", "PongNoFrameskip-v4", *SHORT, "--methods", "delta", "none"]) == 0
    out = capsys.readouterr().out
    assert 'compression_method="' in out
    assert report.RULE in " ".join(out.split())


def test_json_holds_all_figures(capsys):
    assert main(["recommend", "--env", "Catch-v0", *SHORT, "--stack", "4", "--methods", "delta", "none", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["env"] == "Catch-v0"
    assert [each["method"] for each in answer["figures"]] == [SB3, "delta", "none"]
    assert answer["figures"][0]["bytes"] == 30 * 2 * 2 * 4 * 36 * 36  # rows, envs, obs and next_obs, stack
    assert answer["recommended"] in ("delta", "none")
    assert answer["arguments"] == {"compression_method": answer["recommended"]}


def test_plot(tmp_path, capsys):
    picture = tmp_path / "methods.png"
    assert main(["bench", "--env", "Catch-v0", *SHORT, "--methods", "delta", "none", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_small_observations_are_left_to_sb3(capsys):
    assert main(["recommend", "--env", "CartPole-v1", *SHORT, "--methods", "auto"]) == 0
    assert "too small to compress" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["--env", "no_such_module:Env-v0"], "no_such_module"),
        (["--env", "CartPole-v1", "--methods", "zst"], "zst"),
        (["--env", "CartPole-v1", "--methods", "zstd99"], "99"),
        (["--env", "Catch-v0", "--methods", "pallete+zstd3"], "unknown filter 'pallete'"),
        (["--env", "CartPole-v1", "--steps", "0"], "--steps"),
        (["--env", "CartPole-v1", "--batch", "-1"], "--batch"),
    ],
)
def test_what_cannot_be_run_is_said_with_exit_code_2(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_module_and_help():
    command = [sys.executable, "-W", "error", "-m", "sb3_extra_buffers"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "recommend" in shown.stdout
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("command", ["bench", "recommend", "inspect", "doctor"])
def test_every_command_has_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert f"python -m sb3_extra_buffers {command}" in out.partition("examples:")[2]
    assert "--json" in out


SB3_FIGURES = figures(SB3, 1000, 1.0, "dense")


@pytest.mark.parametrize(
    ("ours", "best"),
    [
        ([figures("delta", 10, 0.6), figures("zstd3", 8, 1.0), figures("zstd22", 5, 6.0)], "zstd3"),
        ([figures("delta", 10, 0.6), figures("zstd22", 5, 6.0)], "delta"),
        ([figures("zstd22", 5, 6.0), figures("gzip1", 4, 9.0)], "zstd22"),  # none is as fast: the fastest
        ([figures("delta", 10, 0.6), figures("zstd22", 5, 0.9, add_ms=50.0)], "delta"),  # to add counts, too
        ([figures("auto", 10, 0.6), figures("delta", 10, 0.5)], "auto"),  # the same: what needs no thought
    ],
)
def test_rule(ours, best):
    assert report.recommended([SB3_FIGURES, *ours]).method == best
    assert f'compression_method="{best}"' in report.advice([SB3_FIGURES, *ours])


# What `bench` has measured, as (method, bytes, add us, sample ms), and what is best by the rule.
MEASURED = {
    "MsPacmanNoFrameskip-v4": (
        [
            (SB3, 169.3e6, 330, 2.46),
            ("auto", 1.5e6, 264, 1.97),
            ("none", 18.4e6, 356, 3.89),
            ("zstd3", 1.2e6, 389, 12.9),
        ],
        "auto",  # zstd3 is smaller, and samples five times as long
    ),
    "VizdoomBasic-v1": (
        [
            (SB3, 276e6, 1885, 26.8),
            ("auto", 16.8e6, 2854, 94.2),
            ("none", 141e6, 2575, 11.6),
            ("zstd3", 33e6, 4723, 104),
        ],
        "none",
    ),
    "Ant-v5": (
        [(SB3, 5.0e6, 7, 0.23), ("auto", 1.2e6, 66, 0.30), ("delta", 1.2e6, 53, 0.29), ("zstd3", 0.9e6, 83, 2.56)],
        "delta",  # none is as fast as SB3's
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_rule_on_figures_that_were_measured(name):
    rows, best = MEASURED[name]
    known = [Figures(m, "dense" if m == SB3 else m, int(n), 0.1, a, 1.0, s, 1.0, True) for m, n, a, s in rows]
    assert report.recommended(known).method == best


def test_what_is_slow_and_what_is_small_is_said():
    quick, small = figures("delta", 10, 0.6), figures("zstd22", 5, 6.0)
    assert "None is as fast" in report.advice([SB3_FIGURES, small])
    both = report.advice([SB3_FIGURES, quick, small])
    assert "None is as fast" not in both
    assert 'Least memory: compression_method="zstd22", 5 B (0.50%), in 5.55 times' in " ".join(both.split())
    assert "Least memory" not in report.advice([SB3_FIGURES, quick])


@pytest.mark.parametrize("width", [60, 100])
def test_table_fits(width):
    rows = [SB3_FIGURES, figures("lz4-block/1", 10, 0.6, "lz4-block"), figures("auto", 10, 0.6, "per key")]
    lines = [*report.table(rows, 256, width).splitlines(), *report.advice(rows, width).splitlines()]
    assert max(map(len, lines)) <= width
    assert {"lz4-block/1", "auto"} <= {line.split()[0] for line in lines}


def test_json_and_plot(tmp_path, capsys):
    picture = tmp_path / "methods.png"
    arguments = ["bench", "--env", "Catch-v0", *SHORT, "--methods", "none", "--json", "--plot", str(picture)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["recommended"] == "none"
    assert str(picture) in err
    assert picture.exists()
