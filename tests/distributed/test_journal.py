"""The journal: what a process wrote is there after it was killed, process by process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

journal = pytest.importorskip("sb3_extra_buffers.distributed.journal")
Chunk, Journal = journal.Chunk, journal.Journal

BASE = Chunk(journal.BASE, 7, 100, 5000)
CHUNKS = [Chunk(1, i, 16, 300) for i in range(4)]


def test_each_process_begins_with_the_checkpoint(tmp_path):
    path = tmp_path / "a.journal"
    first = Journal(path)
    first.begin(BASE)
    for chunk in CHUNKS[:2]:
        first.append(chunk)
    second = Journal(path)
    assert second.read() == [[BASE, *CHUNKS[:2]]]
    second.go_on()
    second.append(CHUNKS[2])
    assert second.read() == [[BASE, *CHUNKS[:2]], [BASE, CHUNKS[2]]]
    second.begin(BASE)
    assert second.read() == [[BASE]]
    second.remove()
    assert not path.exists()


def test_half_an_entry_is_none(tmp_path):
    path = tmp_path / "a.journal"
    Journal(path).append(CHUNKS[0])
    with path.open("ab") as file:
        file.write(b"12345")
    assert Journal(path).read() == [[CHUNKS[0]]]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_it_outlives_its_process(tmp_path):
    path = tmp_path / "a.journal"
    code = f"""
import os, pathlib, signal
from sb3_extra_buffers.distributed.journal import Chunk, Journal
journal = Journal(pathlib.Path({str(path)!r}))
for i in range(100):
    journal.append(Chunk(1, i, 16, 300))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [chunk.number for chunk in Journal(path).read()[0]] == list(range(100))
