"""Stores of whole observations: what is read equals what was written, whatever the method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpu_twins import DEVICES, METHODS

from sb3_extra_buffers.compressed import StoreFullError
from sb3_extra_buffers.gpu_buffers.observation_store import (
    DenseObservationStore,
    RawObservationStore,
    create_observation_store,
)

DEVICE = pytest.mark.parametrize("device", DEVICES)
ROWS, ENVS = 12, 3


def observations(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, t: int) -> torch.Tensor:
    """Return a background with a few other values, noise now and then, zeros once."""
    obs = np.zeros((ENVS, *shape)) + np.arange(np.prod(shape)).reshape(shape) // 7 % 50
    obs[:, t % shape[0]] = rng.integers(0, 99, shape[1:])
    if t % 17 == 3:
        obs = rng.integers(0, 120, obs.shape)
    return torch.from_numpy(obs * (t % 11 != 5)).to(dtype)


@DEVICE
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 9, 7), torch.uint8), ((30,), torch.float32), ((5, 5), torch.int64)], ids=str
)
def test_a_ring_of_observations(shape: tuple[int, ...], dtype: torch.dtype, method: str, device: str) -> None:
    store = create_observation_store((ROWS, ENVS), shape, dtype, device, compression_method=method)
    wanted = torch.zeros((ROWS, ENVS, *shape), dtype=dtype)
    rng = np.random.default_rng(0)
    for t in range(5 * ROWS):
        obs = observations(rng, shape, dtype, t)
        given: Any = obs.numpy() if t % 2 else obs.to(device)
        store.write(t % ROWS, given)
        wanted[t % ROWS] = obs
        rows, envs = rng.integers(0, ROWS, 9), rng.integers(0, ENVS, 9)
        assert torch.equal(store.read(rows, envs).cpu(), wanted[rows, envs])
    flat = store.flatten()
    chosen = torch.randperm(ROWS * ENVS)
    assert torch.equal(flat.read(chosen).cpu(), wanted.swapaxes(0, 1).reshape(-1, *shape)[chosen])
    assert torch.equal(store.read(3).cpu(), wanted[3])


def test_which_class() -> None:
    assert type(create_observation_store((2, 2), (3,), compression_method="none")) is DenseObservationStore
    assert type(create_observation_store((2, 2), (3,))) is RawObservationStore
    with pytest.raises(ValueError, match="gzip"):
        create_observation_store((2, 2), (3,), compression_method="gzip")
    with pytest.raises(ValueError, match="Dense"):
        RawObservationStore((2, 2), (3,), compression_method="none")


@pytest.mark.parametrize("method", ["delta", "rle", "zstd3"])
def test_a_heap_that_is_too_small(method: str) -> None:
    store = RawObservationStore((ROWS, 1), (400,), compression_method=method, heap_bytes=1000)
    noise = torch.randint(0, 256, (5, 1, 400), dtype=torch.uint8)
    written = 0
    with pytest.raises(StoreFullError, match=r"need 1,\d+ bytes.*heap_bytes=1,000"):  # noqa: PT012
        for written, obs in enumerate(noise):
            store.write(written, obs)
    for row in range(written):
        assert torch.equal(store.read(np.array([row]), np.array([0])), noise[row])


def test_where_payloads_lie() -> None:
    store = RawObservationStore((2, 2), (100,), compression_method="rle")
    obs = torch.zeros((2, 100), dtype=torch.uint8)
    obs[1, 60:] = 5
    store.write(0, obs)
    slot = store.slot(0, 1)
    assert (slot.run_length, slot.pos_runs, slot.pos_elem, slot.payload_bytes) == (2, 0, 2, 4)
    memory = store.heap.raw.bytes[slot.byte_start : slot.byte_end].tolist()
    assert memory == [60, 40, 0, 5]


def test_observations_of_another_kind() -> None:
    store = create_observation_store((2, 2), (3,))
    for wrong in (torch.zeros(2, 3), torch.zeros((2, 4), dtype=torch.uint8)):
        with pytest.raises(ValueError, match="not torch"):
            store.write(0, wrong)
