"""A buffer has glibc keep what a training frees, unless the user has chosen settings for malloc."""

import os
import platform
import subprocess
import sys

import pytest

from sb3_extra_buffers.frames.allocator import keep_freed_memory

of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no such settings")

SETTINGS = ("MALLOC_", "GLIBC_", "SB3_EXTRA_BUFFERS_")
STEPS = """
import ctypes, resource
import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedRolloutBuffer

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]


def step():
    '''Use and free about what a step of PPO does; return how many pages were faulted in.'''
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size << 20) for size in (13, 28, 28, 6, 56, 13)]
    for block, size in zip(blocks, (13, 28, 28, 6, 56, 13)):
        ctypes.memset(block, 1, size << 20)
    for block in reversed(blocks):
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


CompressedRolloutBuffer(8, spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(2), "cpu")
step()
print(step())
"""


def pages_of_a_step(**variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@of_glibc
def test_a_step_finds_the_memory_of_the_last_one():
    assert pages_of_a_step() < 5_000  # of 37,000


@of_glibc
@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_TRIM_THRESHOLD_": "65536"},
        {"MALLOC_MMAP_THRESHOLD_": "65536"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=65536"},
    ],
)
def test_settings_of_the_user_stay(variables):
    assert pages_of_a_step(**variables) > 30_000


@of_glibc
def test_it_can_be_switched_off():
    assert pages_of_a_step(SB3_EXTRA_BUFFERS_KEEP_MEMORY="0") > 10_000


@pytest.fixture
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_settings")
def test_where_there_is_nothing_to_set_nothing_is_done(monkeypatch):
    def no_such_library(name):
        raise OSError

    for library in (no_such_library, lambda name: object()):
        monkeypatch.setattr("ctypes.CDLL", library)
        keep_freed_memory.__wrapped__()


@pytest.mark.usefixtures("no_settings")
def test_what_glibc_refuses_is_left_whole(monkeypatch):
    """On 32 bits it accepts less: one setting without the others would be worse than none."""
    asked = []

    class Refuses:
        @staticmethod
        def mallopt(option, value):
            asked.append(option)
            return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: Refuses)
    keep_freed_memory.__wrapped__()
    assert asked == [-3]
