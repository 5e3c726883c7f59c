"""`doctor`: what is installed, what to install, whether buffers work here."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from sb3_extra_buffers.cli import doctor, main
from sb3_extra_buffers.codecs import optional


def found_by_doctor(capsys, code=0):
    assert main(["doctor", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    return answer, {each["name"]: each for each in answer["found"]}


def test_all_is_here(capsys):
    answer, found = found_by_doctor(capsys)
    assert answer["usable"]
    for name in ("numpy", "torch", "stable-baselines3", "numba", "zstandard", "lz4", "isal", "sb3-contrib", "pillow"):
        assert found[name]["state"] == "ok"
        assert found[name]["version"][0].isdigit()
    assert found["GPU"]["state"] in ("ok", "none")
    assert found["a buffer is filled and sampled"]["state"] == "ok"


@pytest.mark.parametrize(("module", "name", "extra"), [(each[1], each[0], each[3]) for each in doctor._CODECS])
def test_missing_codec_has_its_command(module, name, extra, capsys, monkeypatch):
    has = optional.has
    monkeypatch.setattr(optional, "has", lambda asked: asked != module.partition(".")[0] and has(asked))
    answer, found = found_by_doctor(capsys)
    assert answer["usable"]
    assert (found[name]["state"], found[name]["fix"]) == ("missing", f'pip install "sb3-extra-buffers[{extra}]"')
    assert main(["doctor"]) == 0
    assert 'pip install "sb3-extra-buffers[fast]"' in capsys.readouterr().out


def test_missing_requirement_is_exit_code_1(capsys, monkeypatch):
    has = optional.has
    monkeypatch.setattr(optional, "has", lambda asked: asked != "gymnasium" and has(asked))
    answer, found = found_by_doctor(capsys, 1)
    assert not answer["usable"]
    assert found["gymnasium"]["fix"] == "pip install gymnasium"
    assert main(["doctor"]) == 1
    assert "Not usable: gymnasium" in capsys.readouterr().out


def test_library_that_does_not_load_is_broken(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4.block", None)  # importing it raises
    answer, found = found_by_doctor(capsys)
    assert answer["usable"]  # buffers work without it
    assert found["lz4"]["state"] == "broken"
    assert main(["doctor"]) == 0
    assert "without what is broken: lz4" in capsys.readouterr().out


def test_buffers_that_do_not_work_are_exit_code_1(capsys, monkeypatch):
    def fails() -> str:
        raise RuntimeError("samples differ")

    monkeypatch.setattr(doctor, "_fill_and_sample", fails)
    answer, found = found_by_doctor(capsys, 1)
    assert not answer["usable"]
    assert "samples differ" in found["a buffer is filled and sampled"]["fix"]


def test_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60


def test_gpu_is_named(capsys, monkeypatch):
    properties = SimpleNamespace(name="Some GPU", total_memory=24e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties)
    _, found = found_by_doctor(capsys)
    assert (found["GPU"]["state"], found["GPU"]["version"]) == ("ok", "Some GPU, 24 GB and 1 more")
    has = optional.has
    monkeypatch.setattr(optional, "has", lambda asked: asked != "triton" and has(asked))
    _, found = found_by_doctor(capsys)
    assert (found["triton"]["state"], found["triton"]["fix"]) == ("missing", "pip install triton")
