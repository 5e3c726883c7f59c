"""Kernels in numba's cache, which processes share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sb3_extra_buffers.codecs import jit

pytest.importorskip("numba")

USE = """
import pathlib, sys, time
import numpy as np
from numba.core import caching
from sb3_extra_buffers.codecs import get_codec

def reached(name, wait_for):
    (folder / name).touch()
    end = time.monotonic() + 1.5
    while not (folder / wait_for).exists() and time.monotonic() < end:
        time.sleep(0.01)

def between(name, before):
    usual = getattr(caching.IndexDataCacheFile, name)

    def wrapped(self, *args):
        if who in before and "find_runs" in self._index_name:
            reached(*before[who])
        usual(self, *args)

    setattr(caching.IndexDataCacheFile, name, wrapped)

folder, who = pathlib.Path(sys.argv[1]), sys.argv[2]
between("_save_index", {"first": ("first-looked", "second-looked"), "second": ("second-looked", "first-indexed")})
between("_save_data", {"first": ("first-indexed", "second-done")})
for item_bytes in map(int, sys.argv[3:]):
    codec = get_codec("rle-jit", item_bytes=item_bytes)
    frame = np.repeat(np.arange(4, dtype=np.uint8), 50 * item_bytes)
    out = np.empty_like(frame)
    codec.decode(np.frombuffer(codec.encode(frame), np.uint8), out)
    assert np.array_equal(out, frame)
(folder / f"{who}-done").touch()
"""


def test_two_processes_compile_one_kernel_for_two_types(tmp_path: Path) -> None:
    """Numba looks at an index, writes there which file is for which type, then the file: the other one must wait.

    Else both would take the same file, and the later index might be of the one who wrote the file earlier.
    """

    def start(*args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", USE, str(tmp_path), *args],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            stderr=subprocess.PIPE,
        )

    for processes in ([start("first", "1"), start("second", "2")], [start("third", "1", "2")]):
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors.decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of a fork beside threads
def test_a_child_that_was_forked_while_compiling_keeps_nobody_waiting() -> None:
    with jit._alone():
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with jit._alone():
            pass  # would wait for ever
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
