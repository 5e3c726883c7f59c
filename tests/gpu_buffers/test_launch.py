"""Kernels are launched the short way where Triton is as we know it, and nobody profiles launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from sb3_extra_buffers.gpu_buffers.kernels import launch
from sb3_extra_buffers.gpu_buffers.kernels.launch import Launch, _handle


class Kernel:
    """What Triton returns for a kernel that it has compiled."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, launcher: Any) -> None:
        self.run = launcher
        self.usual: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.usual.append((grid, *arguments))


class Launcher:
    """Triton's, since 3.4 at least."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []

    def __call__(self, gridX: int, gridY: int, gridZ: int, stream: int, function: Any, *args: Any) -> None:
        self.ran.append((gridX, gridY, gridZ, stream, function, *args))


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    active = SimpleNamespace(get_current_stream=lambda number: 70 + number)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))


def test_the_short_way() -> None:
    launcher = Launcher()
    kernel = Kernel(launcher)
    _handle(kernel)(5, 2, 1001, 1002, "constant")
    assert launcher.ran == [(5, 1, 1, 72, "function", "metadata", None, None, None, 1001, 1002, "constant")]
    assert kernel.usual == []


def test_profilers_see_launches() -> None:
    launcher = Launcher()
    kernel = Kernel(launcher)
    handle = _handle(kernel)
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(print)
    try:
        handle(5, 0, 1001)
    finally:
        hooks.remove(print)
    assert kernel.usual == [((5, 1, 1), 1001)]
    handle(6, 0, 1001)
    assert [ran[0] for ran in launcher.ran] == [6]


@pytest.mark.parametrize("launcher", [lambda grid, stream, *args: None, lambda *args: None, 7, print])
def test_another_triton(launcher: Any) -> None:
    """It may take other arguments: so the kernel is run as Triton says, every time."""
    assert _handle(Kernel(launcher)) is None


@pytest.mark.parametrize("known", [True, False])
def test_arguments_of_both_ways(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors, numbers, constants: by themselves the long way, as addresses and values the short way."""
    launcher, ran = Launcher(), []
    kernel = Kernel(launcher if known else print)

    def compiled(function: Any, calls: Any) -> Any:
        assert (function, calls) == (max, (min,))
        return {(7,): lambda *arguments, **constants: ran.append((arguments, constants)) or kernel}

    monkeypatch.setattr(launch, "compiled", compiled)
    run = Launch(max, (torch.uint8, torch.int32), calls=(min,), A=5, B=6)
    tensors = torch.zeros((2, 4), dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    for _ in range(3):
        run(7, tensors, 1, 2)
    for (first, second, *numbers), constants in ran:
        assert (first.dtype, first.shape, second.dtype) == (torch.uint8, (32,), torch.int32)
        assert (numbers, constants) == ([1, 2], {"A": 5, "B": 6, "num_warps": 4})
    addresses = [tensor.data_ptr() for tensor in tensors]
    short = (7, 1, 1, 69, "function", "metadata", None, None, None, *addresses, 1, 2, 5, 6)
    assert (len(ran), launcher.ran) == ((1, [short, short]) if known else (3, []))


def test_hooks_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(Launcher())
    handle = _handle(kernel)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", print)
    handle(5, 0, 1001)
    assert kernel.usual == [((5, 1, 1), 1001)]
