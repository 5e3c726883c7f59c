"""The journal: what a process wrote is there after it was killed, process by process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

journal = pytest.importorskip("sb3_extra_buffers.distributed.journal")
Chunk, Journal = journal.Chunk, journal.Journal

HEADER = Chunk(journal.BASE, 7, 100, 5000), Chunk(journal.LOST, 3, 20, 900)
CHUNKS = [Chunk(1, i, 16, 300) for i in range(4)]


def test_each_process_has_its_own_file(tmp_path):
    first = Journal(tmp_path, "a")
    first.begin(*HEADER)
    for chunk in CHUNKS[:2]:
        first.append(chunk)
    second = Journal(tmp_path, "a")
    assert second.read() == [[*HEADER, *CHUNKS[:2]]]
    second.begin(*HEADER)
    second.append(CHUNKS[2])
    third = Journal(tmp_path, "a")
    assert third.read() == [[*HEADER, *CHUNKS[:2]], [*HEADER, CHUNKS[2]]]
    other = Journal(tmp_path, "b")
    assert other.read() == []
    third.forget()
    assert third.read() == []
    third.begin(*HEADER)
    third.append(CHUNKS[3])
    third.begin(*HEADER)
    fourth = Journal(tmp_path, "a")
    assert fourth.read() == [[*HEADER]]
    fourth.remove()
    assert list(tmp_path.iterdir()) == [other.path]


def test_a_process_knows_that_it_was_replaced(tmp_path):
    """Also after what it wrote was forgotten."""
    first = Journal(tmp_path, "a")
    first.begin(*HEADER)
    assert not first.is_replaced
    second = Journal(tmp_path, "a")
    assert first.is_replaced
    assert not second.is_replaced
    third = Journal(tmp_path, "a")
    third.forget()
    assert first.is_replaced
    assert second.is_replaced
    first.append(CHUNKS[0])  # to a file that is empty now
    assert third.read() == []


def test_half_an_entry_is_none(tmp_path):
    first = Journal(tmp_path, "a")
    first.begin(*HEADER)
    first.append(CHUNKS[0])
    with first.path.open("ab") as file:
        file.write(b"12345")
    assert Journal(tmp_path, "a").read() == [[*HEADER, CHUNKS[0]]]


def test_after_it_was_removed_nothing_is_written_to_other_files(tmp_path):
    """The system gives the number of a closed file to the next one."""
    first = Journal(tmp_path, "a")
    first.remove()
    with (tmp_path / "other").open("wb") as other:
        with pytest.raises(OSError, match="Bad file descriptor"):
            first.append(CHUNKS[0])
        first.remove()
        other.write(b"mine")
    assert (tmp_path / "other").read_bytes() == b"mine"


def run(code: str, *args: object) -> int:
    code = f"""
import os, pathlib, resource, signal, sys
from sb3_extra_buffers.distributed.journal import BASE, LOST, Chunk, Journal
journal = Journal(pathlib.Path(sys.argv[1]), "a")
journal.begin(Chunk(BASE, 7, 100, 5000), Chunk(LOST, 3, 20, 900))
{code}"""
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], check=False).returncode


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_it_outlives_its_process(tmp_path):
    code = """
for i in range(100):
    journal.append(Chunk(1, i, 16, 300))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(code, tmp_path) == -signal.SIGKILL
    (found,) = Journal(tmp_path, "a").read()
    assert [chunk.number for chunk in found[2:]] == list(range(100))


@pytest.mark.skipif(os.name != "posix", reason="limits")
def test_a_full_disk_is_an_error_and_spoils_nothing(tmp_path):
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 32 + 5, limits[1]))
journal.append(Chunk(1, 0, 16, 300))
try:
    journal.append(Chunk(1, 1, 16, 300))
except OSError as error:
    assert "disk full" in str(error)
else:
    raise AssertionError
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
journal.append(Chunk(1, 2, 16, 300))
"""
    assert run(code, tmp_path) == 0
    (found,) = Journal(tmp_path, "a").read()
    assert [chunk.number for chunk in found[2:]] == [0, 2]
