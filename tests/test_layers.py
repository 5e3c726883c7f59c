"""Imports point down, layer by layer. The lower two need neither torch nor SB3 nor optional libraries."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sb3_extra_buffers

PACKAGE = "sb3_extra_buffers"
ROOT = Path(sb3_extra_buffers.__file__).parent
LAYERS = [
    ["codecs"],
    ["frames"],
    ["compressed", "gpu_buffers"],
    ["distributed", "recording", "training_utils", "vec_buf"],
    ["cli"],
]
OPTIONAL = ["numba", "zstandard", "lz4", "isal", "sb3_contrib", "ray"]


def imports_of(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files_of(layer: str) -> list[Path]:
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    return files


@pytest.mark.parametrize("layer", [name for names in LAYERS for name in names])
def test_imports_point_down(layer):
    height = next(i for i, names in enumerate(LAYERS) if layer in names)
    above = [name for names in LAYERS[height + 1 :] for name in names]
    for path in files_of(layer):
        for name in imports_of(path):
            for forbidden in above:
                assert not f"{name}.".startswith(f"{PACKAGE}.{forbidden}."), f"{path} imports {name}"


@pytest.mark.parametrize("layer", ["codecs", "frames"])
def test_the_lower_layers_name_neither_torch_nor_sb3(layer):
    for path in files_of(layer):
        for name in imports_of(path):
            assert name.split(".")[0] not in {"torch", "stable_baselines3", "gymnasium", "sb3_contrib"}, path


def modules_after(statement: str) -> set[str]:
    """Return the modules loaded after `statement` in a new interpreter, where nothing is printed and nothing warned."""
    code = f"{statement}\nimport sys\nsys.stdout.write('|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return set(done.stdout.split("|"))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (f"import {PACKAGE}", ["numpy", "torch", "stable_baselines3", *OPTIONAL]),
        (
            f"import {PACKAGE}.codecs",
            ["torch", "stable_baselines3", f"{PACKAGE}.frames", f"{PACKAGE}.compressed", *OPTIONAL],
        ),
        (f"import {PACKAGE}.frames", ["torch", "stable_baselines3", f"{PACKAGE}.compressed", *OPTIONAL]),
    ],
)
def test_what_an_import_loads(statement, absent):
    loaded = modules_after(statement)
    assert not loaded & set(absent)


def test_frames_work_without_torch_sb3_and_every_optional_library():
    forbidden = ["torch", "stable_baselines3", "gymnasium", *OPTIONAL]
    modules_after(
        f"""
import sys
for name in {forbidden}:
    sys.modules[name] = None
import numpy as np
from {PACKAGE}.frames import CompressedArray
array = CompressedArray((30, 2), np.uint8, (4, 20, 20))
for i in range(30):
    array[i] = i
assert (array[[3, 7], 1] == np.array([3, 7])[:, None, None, None]).all()
"""
    )
