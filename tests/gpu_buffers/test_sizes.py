"""Dtypes, expected ratios, and the script that fits them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sb3_extra_buffers.gpu_buffers.size_estimation import (
    MEASURED,
    estimate_save_ratio,
    parse_compression_method,
    validate_compresslevel,
)
from sb3_extra_buffers.gpu_buffers.utils import (
    estimate_max_slot_bytes,
    estimate_total_heap_bytes,
    find_smallest_dtype,
    numpy_dtype_to_torch,
    torch_dtype_to_numpy,
)


@pytest.mark.parametrize(
    "name", ["bool", "uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_dtypes_there_and_back(name: str) -> None:
    assert numpy_dtype_to_torch(name) == getattr(torch, name)
    assert numpy_dtype_to_torch(np.dtype(name)) == getattr(torch, name)
    assert torch_dtype_to_numpy(getattr(torch, name)) == np.dtype(name)


def test_dtypes_that_the_other_does_not_have() -> None:
    with pytest.raises(TypeError, match="U3"):
        numpy_dtype_to_torch("<U3")
    with pytest.raises(TypeError, match="bfloat16"):
        torch_dtype_to_numpy(torch.bfloat16)


def test_find_smallest_dtype() -> None:
    assert find_smallest_dtype(255) == torch.uint8
    assert find_smallest_dtype(256) == torch.uint16
    assert find_smallest_dtype(128, signed=True) == torch.int16
    assert find_smallest_dtype(2**64) == torch.float32


def test_measured_levels_are_what_was_measured() -> None:
    assert estimate_save_ratio("zstd-3") == estimate_save_ratio("zstd") == MEASURED["zstd"][-3]
    assert estimate_save_ratio("zstd", 22) == 0.044
    assert estimate_save_ratio("none") == 1.0
    assert estimate_save_ratio("lz4-frame/5") == 0.07


@pytest.mark.parametrize("method", MEASURED)
def test_other_levels_lie_between(method: str) -> None:
    known = MEASURED[method]
    if len(known) == 1:
        return
    for level in range(-100, 23):
        try:
            validate_compresslevel(method, level)
        except ValueError:
            continue
        assert min(known.values()) <= estimate_save_ratio(method, level) <= max(known.values())
    assert estimate_save_ratio("zstd2") < estimate_save_ratio("zstd1")
    assert estimate_save_ratio("zstd2") > estimate_save_ratio("zstd3")


@pytest.mark.parametrize(("method", "level"), [("zstd", 0), ("zstd", 23), ("rle", 1), ("gzip", -1), ("zst", None)])
def test_levels_that_are_not_there(method: str, level: int | None) -> None:
    with pytest.raises(ValueError, match=method):
        validate_compresslevel(method, level)
    with pytest.raises(ValueError, match=method):
        estimate_save_ratio(method, level)


def test_parse_compression_method() -> None:
    assert parse_compression_method("zstd-5") == ("zstd", -5)
    assert parse_compression_method("rle") == ("rle", None)


def test_planned_bytes() -> None:
    assert estimate_max_slot_bytes((4, 84, 84), torch.uint8, "none") == 4 * 84 * 84
    assert estimate_max_slot_bytes((100,), torch.float32, "zstd-3", overalloc_factor=2.0) == 56
    assert estimate_total_heap_bytes(10, (100,), torch.float32, "zstd-3", 2.0) == 560
    with pytest.raises(ValueError, match="overalloc_factor"):
        estimate_max_slot_bytes((100,), overalloc_factor=0)


def test_the_script_prints_what_the_library_has(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "fit_heap_heuristic.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    printed = eval(done.stdout.partition("= ")[2])
    assert printed == MEASURED
    table = tmp_path / "table.txt"
    table.write_text("zstd1 5.0\nzstd3 6.0\nzstd10 4.0\n")
    done = subprocess.run([sys.executable, script, table], capture_output=True, text=True, check=True)
    assert "{1: 0.055, 3: 0.055, 10: 0.04}" in done.stdout
