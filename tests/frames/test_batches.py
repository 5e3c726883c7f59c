"""Memory of batches is used again when nobody holds it, and never before."""

import copy
import gc

import numpy as np
import pytest
import torch

from sb3_extra_buffers.frames.array import CompressedArray
from sb3_extra_buffers.frames.batches import Fresh, Recycler

N = 1 << 20


def test_memory_that_is_held_is_not_given_out_again():
    recycler = Recycler()
    held = [recycler.memory(N) for _ in range(5)]
    for i, memory in enumerate(held):
        memory[:] = i
    assert [int(memory[0]) for memory in held] == [0, 1, 2, 3, 4]
    assert len({memory.ctypes.data for memory in held}) == 5


@pytest.mark.parametrize(
    "hold",
    [
        lambda memory: memory.reshape(4, -1)[2],
        lambda memory: torch.as_tensor(memory.view(np.float32)),
        lambda memory: torch.as_tensor(memory)[5:].view(-1, 1),
        lambda memory: torch.as_tensor(memory).numpy(),
        memoryview,
    ],
)
def test_views_and_tensors_hold_it(hold):
    recycler = Recycler()
    view = hold(recycler.memory(N))
    gc.collect()
    other = recycler.memory(N)
    assert not np.shares_memory(np.asarray(view), other)
    del view, other


def test_memory_that_is_let_go_is_used_again():
    recycler = Recycler()
    first = recycler.memory(N)
    place = first.ctypes.data
    del first
    assert recycler.memory(N).ctypes.data == place


def test_small_and_huge_memory_is_not_kept():
    recycler = Recycler()
    for n in (0, 1, N - 1, (1 << 25) + 1):
        assert recycler.memory(n).size == n
    assert not recycler._kept


def test_copies_start_empty():
    recycler = Recycler()
    recycler.memory(N)
    assert not copy.deepcopy(recycler)._kept


def test_batches_of_an_array_stay_as_they_were():
    array = CompressedArray((64, 1), np.uint8, (4, 64, 64), compression_method="delta", frame_stack=4)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (64, 1, 4, 64, 64), np.uint8)
    array[:] = data
    held = []
    for _ in range(6):
        rows = rng.integers(0, 64, 64)
        held.append((rows, array[rows]))
        assert array[rows].nbytes == N
    for rows, batch in held:
        assert np.array_equal(batch, data[rows])


def test_a_fresh_batch_is_claimed_once():
    fresh, batch, other = Fresh(), np.zeros(3), np.zeros(3)
    fresh.add(batch)
    assert not fresh.claim(other)
    assert fresh.claim(batch)
    assert not fresh.claim(batch)
