"""Tests with the marker `gpu` run where there is a CUDA device. Elsewhere Triton interprets the kernels."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # Triton looks at it when it is imported
        import triton.language  # noqa: F401


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    without = [item for item in items if item.get_closest_marker("gpu") is not None]
    items[:] = [item for item in items if item not in without]
    config.hook.pytest_deselected(items=without)


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where kernels run: on CUDA, else interpreted on the CPU. Memory that torch gives out is poisoned."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        tensor.view(-1).view(torch.uint8).fill_(0xA5)
        return tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
