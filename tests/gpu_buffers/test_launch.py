"""Kernels are launched the short way where Triton is as we know it, and nobody profiles launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import triton

from sb3_extra_buffers.gpu_buffers.kernels.launch import _handle


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
    kernel = Kernel(launcher)
    _handle(kernel)(5, 0, 1001)
    assert kernel.usual == [((5, 1, 1), 1001)]


def test_hooks_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(Launcher())
    handle = _handle(kernel)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", print)
    handle(5, 0, 1001)
    assert kernel.usual == [((5, 1, 1), 1001)]
