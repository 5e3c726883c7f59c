"""The device buffers pass the tests of the buffers in host memory: the same functions, with other classes in them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import test_parity
from gpu_twins import CLASSES, METHODS, gpu_twins
from twins import Twin

from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuReplayBuffer

OTHER_CLASSES = {
    "test_n_step_returns",
    "test_hindsight",
    "test_rle_jit_without_numba",
}
ON_THE_CPU = {  # compare with what torch computes on the CPU: on CUDA it divides by 255 and casts NaN otherwise
    "test_to_torch_copies_what_others_may_hold",
    "test_float_output",
    "test_normalized_images",
    "test_only_images_are_normalized",
    "test_normalized_images_of_rollouts",
}


def cases(device: str) -> Iterator[Any]:
    """Yield each test function with each set of its arguments that the device buffers have too."""
    for name, function in vars(test_parity).items():
        if not name.startswith("test_") or name in OTHER_CLASSES:
            continue
        if device == "cuda" and name in ON_THE_CPU:
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        for chosen in itertools.product(*(list(mark.args[1]) for mark in marks)):
            given: dict[str, Any] = {}
            for mark, values in zip(marks, chosen, strict=True):
                names = mark.args[0]
                if isinstance(names, str):
                    given[names] = values
                else:
                    given.update(zip(names, getattr(values, "values", values), strict=True))
            if given.get("method") == "none" and "filter" in given:
                continue  # on a device it is dense
            if given.get("method", "delta") in METHODS and str(given.get("twin", "replay")) in CLASSES:
                marks_of_it = [pytest.mark.gpu] if device == "cuda" else []
                name_of_it = "-".join([device, name, *map(str, given.values())])
                yield pytest.param(device, function, given, id=name_of_it, marks=marks_of_it)


@pytest.mark.parametrize(("device", "function", "given"), [*cases("cpu"), *cases("cuda")])
def test_parity_on_a_device(device: str, function: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    twins = gpu_twins(device)
    monkeypatch.setattr(test_parity, "TWINS", twins)
    monkeypatch.setattr(test_parity, "CompressedReplayBuffer", GpuReplayBuffer)
    monkeypatch.setattr(test_parity, "CompressedDictReplayBuffer", GpuDictReplayBuffer)
    arguments = {name: twins[value.name] if isinstance(value, Twin) else value for name, value in given.items()}
    if "monkeypatch" in inspect.signature(function).parameters:
        arguments["monkeypatch"] = monkeypatch
    function(**arguments)
