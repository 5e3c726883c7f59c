"""How buffers, arrays and figures show themselves, in a terminal and in a notebook; nothing is decompressed for it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from kinds import KINDS, box, steps
from twins import TWINS, Twin, fill_rollout

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.compressed import CompressedArray, CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.compressed.memory import described_space
from sb3_extra_buffers.frames.store import FrameStore
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer

ACTIONS = spaces.Discrete(4)


class Cells(HTMLParser):
    """Collects the texts of a page, and checks that what is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in ("table", "thead", "tbody", "tr", "th", "td", "p")  # no scripts, no pictures, no links
        assert all(name == "style" for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def filled(twin: Twin) -> Any:
    buffer, _ = twin.make(twin.default_kind, 20, 2)
    data = steps(twin.default_kind, 2, 20)
    if twin.rollout:
        fill_rollout(twin, [buffer], data)
    else:
        for step in data:
            twin.add(buffer, step)
    return buffer


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_every_buffer(twin: Twin, monkeypatch: Any) -> None:
    buffer = filled(twin)

    def refuse(*args: Any) -> None:
        raise AssertionError("decompressed")

    monkeypatch.setattr(FrameStore, "take", refuse)
    line = repr(buffer)
    assert line.startswith(f"{type(buffer).__name__}(20 of 20 rows, 2 envs, ")
    assert f"{buffer.memory_usage().ratio:.2%}" in line
    assert "\n" not in line
    texts = Cells(buffer._repr_html_()).texts
    assert any(type(buffer).__name__ in text for text in texts)
    assert f"{buffer.memory_usage().ratio:.2%}" in texts
    array: Any = buffer.observations
    for part in array.values() if isinstance(array, dict) else [array]:
        if isinstance(part, CompressedArray):
            assert "CompressedArray" in repr(part)
            assert str(part.shape) in Cells(part._repr_html_()).texts


def test_one_line_says_it_all() -> None:
    buffer = CompressedReplayBuffer(1_000, box((4, 84, 84), np.uint8), ACTIONS, "cpu", compression_method="gzip")
    assert repr(buffer) == (
        "CompressedReplayBuffer(0 of 1,000 rows, 1 env, Box(4, 84, 84) uint8, gzip (undecided), "
        f"{buffer.memory_usage().stored_bytes / 1000:.1f} KB for 0 B, 0.00%)"
    )


def test_device_buffer() -> None:
    buffer = GpuReplayBuffer(10, box((4, 20, 20), np.uint8), ACTIONS, "cpu")
    assert repr(buffer).startswith("GpuReplayBuffer(0 of 10 rows, 1 env, Box(4, 20, 20) uint8, delta")
    Cells(buffer._repr_html_())


def test_object_that_is_not_whole() -> None:
    """A debugger may look at a buffer whose constructor has raised."""
    assert "CompressedReplayBuffer object" in repr(object.__new__(CompressedReplayBuffer))


def test_memory_usage_shows_its_table() -> None:
    usage = filled(TWINS["dict-replay"]).memory_usage()
    assert repr(usage) == str(usage) == usage.table()
    assert repr(usage).splitlines()[0].split()[0] == "observations"
    texts = Cells(usage._repr_html_()).texts
    for part in (usage, *usage.parts):
        assert {part.name, part.method, f"{part.frames:,}"} <= set(texts)


def test_narrow_table_leaves_columns_out() -> None:
    usage = filled(TWINS["dict-replay"]).memory_usage()
    assert usage.table(200) == str(usage)
    assert usage.table(40).splitlines()[0].split()[-1] == "ratio"


def test_names_are_escaped() -> None:
    key = "<script>alert(1)</script>&"
    space = spaces.Dict({key: box((1, 20, 20), np.uint8), "other": box((1, 20, 20), np.uint8)})
    buffer = CompressedDictReplayBuffer(4, space, ACTIONS, "cpu")
    assert any(key in text for text in Cells(buffer._repr_html_()).texts)
    assert key not in buffer._repr_html_()


@pytest.mark.parametrize("name", KINDS)
def test_spaces_in_a_few_words(name: str) -> None:
    text = described_space(KINDS[name].space)
    assert "\n" not in text
    assert len(text) < 200


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ({"numba"}, "Faster with numba: pip"),
        ({"zstandard"}, "Smaller with zstandard: pip"),
        ({"numba", "zstandard"}, "Faster with numba and smaller with zstandard: pip"),
    ],
)
def test_what_would_help_is_said(absent: set[str], words: str, monkeypatch: Any) -> None:
    usage = CompressedReplayBuffer(4, box((1, 20, 20), np.uint8), ACTIONS, "cpu").memory_usage()
    assert "pip" not in str(usage)
    monkeypatch.setattr(optional, "has", lambda module: module not in absent)
    assert str(usage).splitlines()[-1].startswith(words)
    assert Cells(usage._repr_html_()).texts[-1].startswith(words)
