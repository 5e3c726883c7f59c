"""The script whose types `make type` checks does what it says."""

import runpy
from pathlib import Path


def test_the_users_script_runs(capsys):
    runpy.run_path(str(Path(__file__).parent / "typing" / "user_script.py"), run_name="__main__")
    assert "CompressedReplayBuffer" in capsys.readouterr().out
