"""`save` and `load` of device buffers: the file holds what the host's store holds, and no device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_twins import DEVICES, METHODS, gpu_twins
from kinds import steps
from twins import assert_same_arrays, assert_same_draws, fill_rollout, minibatches, sample


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["replay", "dict-replay"])
def test_replay_buffers_go_on(name: str, method: str, device: str, tmp_path: Path) -> None:
    twin = gpu_twins(device)[name]
    ours, sb3 = twin.make(twin.default_kind, 15, 2, compression_method=method, heap_bytes=10_000_000)
    for i, step in enumerate(steps(twin.default_kind, 2, 50)):
        twin.add(ours, step)
        twin.add(sb3, step)
        if i % 12 == 11:
            assert_same_draws(ours, sb3, sample(20), range(1))
            ours.save(tmp_path / "buffer")
            ours = twin.ours.load(tmp_path / "buffer")
            assert ours.buffer_device.type == device
            assert_same_arrays(ours, sb3)
            assert_same_draws(ours, sb3, sample(20))
    assert ours.device_usage().heap_used > 0 or method == "zstd3"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["rollout", "dict-rollout"])
def test_rollout_buffers_go_on(name: str, method: str, tmp_path: Path) -> None:
    twin = gpu_twins("cpu")[name]
    ours, sb3 = twin.make(twin.default_kind, 8, 2, compression_method=method)
    data: list[Any] = steps(twin.default_kind, 2, 16)
    for part in (data[:8], data[8:]):
        fill_rollout(twin, (ours, sb3), part)
        ours.save(tmp_path / "buffer")
        ours = twin.ours.load(tmp_path / "buffer")
        assert_same_arrays(ours, sb3)
        assert_same_draws(ours, sb3, minibatches(5))
        ours.save(tmp_path / "buffer")
        ours = twin.ours.load(tmp_path / "buffer")
        assert_same_draws(ours, sb3, minibatches(5))


def test_nothing_is_spilled(tmp_path: Path) -> None:
    twin = gpu_twins("cpu")["replay"]
    with pytest.raises(ValueError, match="spill_dir is for buffers in host memory"):
        twin.make(twin.default_kind, 8, 2, spill_dir=tmp_path)
