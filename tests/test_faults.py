"""Killed writers, full disks, damaged files, hostile payloads, threads: short versions of `soak.py`."""

from __future__ import annotations

import multiprocessing
import sys

import pytest
import soak

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork, no limits of resources there"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # Python 3.12 and later, where torch has threads
]


def test_a_killed_writer_leaves_what_it_published() -> None:
    assert soak.kills(10)["different states found"] > 1


def test_a_full_disk_is_an_error_and_no_loss() -> None:
    found = soak.full_disks(20)
    assert 0 < found["refused"] <= 20


def test_damage_is_found() -> None:
    found = soak.flips(200)
    assert found["refused"] > 50
    assert found["refused"] + found["exact"] == 200


def test_forged_files_do_no_harm() -> None:
    found = soak.forgeries(100)
    assert found["refused"] > 20
    assert found["loaded"] > 20


def test_decoders_take_any_payload() -> None:
    """In a process of its own: memory is limited there."""
    child = multiprocessing.get_context("fork").Process(target=soak.fuzz, args=(20_000,))
    child.start()
    child.join(300)
    assert child.exitcode == 0


@pytest.mark.parametrize("method", ["auto", "zstd3"])
def test_threads(method: str) -> None:
    found = soak.threads(1.5, rows=200, method=method)
    assert min(found[name] for name in ("adds", "samples", "saves", "pickles", "comparisons")) > 0
