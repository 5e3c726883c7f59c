"""`python -m sb3_extra_buffers`: measures any env, names a method by its rule, says what is wrong."""

import json
import subprocess
import sys

import gymnasium as gym
import pytest
from envs import Catch

from sb3_extra_buffers.cli import main, report
from sb3_extra_buffers.cli.measure import SB3, Figures

SHORT = ["--steps", "60", "--envs", "2", "--batch", "16"]


@pytest.fixture(autouse=True)
def _catch():
    gym.register("Catch-v0", Catch)
    gym.register("KeyedCatch-v0", Catch, kwargs={"keyed": True})
    yield
    for name in ("Catch-v0", "KeyedCatch-v0"):
        gym.registry.pop(name)


def figures(method: str, n_bytes: int, sample_ratio: float, codec: str = "delta") -> Figures:
    return Figures(method, codec, n_bytes, n_bytes / 1000, 10.0, 1.0, 1.0, sample_ratio, True)


@pytest.mark.parametrize("env", ["Catch-v0", "KeyedCatch-v0", "CartPole-v1"])
def test_bench_prints_a_line_for_each_method(env, capsys):
    assert main(["bench", "--env", env, *SHORT, "--methods", "auto", "none", "zstd3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = {line.split()[0]: line.split() for line in lines if line}
    assert {SB3, "auto", "none", "zstd3"} <= table.keys()
    assert all(table[name][-1] == "yes" for name in (SB3, "auto", "none", "zstd3"))  # samples equal SB3's
    assert max(map(len, lines[:5])) <= 100


def test_stacked_atari_game(capsys):
    assert main(["recommend", "--env", "PongNoFrameskip-v4", *SHORT, "--methods", "delta", "none"]) == 0
    out = capsys.readouterr().out
    assert 'compression_method="' in out
    assert report.RULE in out


def test_json_holds_all_figures(capsys):
    assert main(["recommend", "--env", "Catch-v0", *SHORT, "--stack", "4", "--methods", "delta", "none", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["env"] == "Catch-v0"
    assert [each["method"] for each in answer["figures"]] == [SB3, "delta", "none"]
    assert answer["figures"][0]["bytes"] == 30 * 2 * 2 * 4 * 36 * 36  # rows, envs, obs and next_obs, stack
    assert answer["recommended"] in ("delta", "none")


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


def test_rule():
    sb3 = figures(SB3, 1000, 1.0, "dense")
    quick, small, slow = figures("delta", 10, 0.6), figures("zstd3", 8, 1.0), figures("zstd22", 5, 6.0)
    assert report.recommended([sb3, quick, small, slow]) is small
    assert report.recommended([sb3, quick, slow]) is quick
    assert report.recommended([sb3, slow, figures("gzip1", 4, 9.0)]) is slow
