"""How much memory a buffer's observations take, and how a buffer shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.frames.tables import html_table, readable_bytes, text_table

__all__ = ["Described", "MemoryUsage", "described_space", "readable_bytes", "what_would_help"]


@dataclass(frozen=True)
class MemoryUsage:
    """Figures of one buffer; in `parts` those of each observation key. Shows itself as a table, also in a notebook.

    Attributes:
        name: the key, or the buffer's class.
        method: the codec; `dense` where observations are so small that SB3's own array keeps them.
        raw_bytes: what SB3's buffer needs for the observations added so far.
        stored_bytes: every byte kept for them here: payloads, key frames, dictionaries, ids, tables.
        frames: frames in those observations.
        unique_frames: different ones among them, each stored once.
    """

    name: str
    method: str
    raw_bytes: int
    stored_bytes: int
    frames: int
    unique_frames: int
    parts: tuple[MemoryUsage, ...] = ()

    @property
    def ratio(self) -> float:
        """Stored bytes as a share of raw bytes; 0 while nothing is added."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else 0.0

    @classmethod
    def total(cls, name: str, parts: Sequence[MemoryUsage]) -> MemoryUsage:
        """Return the sum of `parts`."""
        return cls(
            name=name,
            method=parts[0].method if len(parts) == 1 else "per key",
            raw_bytes=sum(part.raw_bytes for part in parts),
            stored_bytes=sum(part.stored_bytes for part in parts),
            frames=sum(part.frames for part in parts),
            unique_frames=sum(part.unique_frames for part in parts),
            parts=tuple(parts) if len(parts) > 1 else (),
        )

    def __repr__(self) -> str:
        """Return the table: that is what one wants to see after typing `buffer.memory_usage()`."""
        return "\n".join([self.table(), *what_would_help()])

    def table(self, width: int | None = None) -> str:
        """Return the figures as a table; without the numbers of frames, where it would be wider than `width`."""
        whole = text_table(self._rows())
        if width is None or max(map(len, whole.splitlines())) <= width:
            return whole
        return text_table([row[:-2] for row in self._rows()])

    def _repr_html_(self) -> str:
        return html_table(self._rows()) + "".join(f"<p>{escape(line)}</p>" for line in what_would_help())

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("observations", "method", "raw", "stored", "ratio", "frames", "unique")]
        for part in (*self.parts, self):
            rows.append(
                (
                    part.name,
                    part.method,
                    readable_bytes(part.raw_bytes),
                    readable_bytes(part.stored_bytes),
                    f"{part.ratio:.2%}",
                    f"{part.frames:,}",
                    f"{part.unique_frames:,}",
                )
            )
        return rows


class Described:
    """Shows a buffer in a line, and in a notebook with its table. It looks at figures: nothing is decompressed."""

    def __repr__(self) -> str:
        try:
            usage: MemoryUsage = self.memory_usage()  # type: ignore[attr-defined]
            held = f"{readable_bytes(usage.stored_bytes)} for {readable_bytes(usage.raw_bytes)}"
            return f"{type(self).__name__}({_contents(self)}, {usage.method}, {held}, {usage.ratio:.2%})"
        except AttributeError:  # not made yet, or not whole: debuggers look at such objects, too
            return object.__repr__(self)

    def _repr_html_(self) -> str:
        usage: MemoryUsage = self.memory_usage()  # type: ignore[attr-defined]
        return f"<p>{escape(type(self).__name__)}: {escape(_contents(self))}</p>{usage._repr_html_()}"


def described_space(space: Any) -> str:
    """Return a space in a few words: `Box(4, 84, 84) uint8`, without its bounds."""
    if hasattr(space, "spaces") and isinstance(space.spaces, dict):
        parts = (f"{key}: {described_space(part)}" for key, part in space.spaces.items())
        return f"Dict({', '.join(parts)})"
    if hasattr(space, "n") and space.shape == ():
        return f"Discrete({space.n})"
    return f"{type(space).__name__}{space.shape} {space.dtype}"


def what_would_help() -> list[str]:
    """Return a line that says what to install so that buffers get faster and smaller; none where all is there."""
    wishes = [("numba", "faster with numba"), ("zstandard", "smaller with zstandard")]
    missing = [wish for module, wish in wishes if not optional.has(module)]
    text = " and ".join(missing)
    return [f'{text[0].upper()}{text[1:]}: pip install "sb3-extra-buffers[fast]"'] if missing else []


def _contents(buffer: Any) -> str:
    rows = f"{buffer.size():,} of {buffer.buffer_size:,} rows"
    envs = f"{buffer.n_envs} env{'s' if buffer.n_envs != 1 else ''}"
    return f"{rows}, {envs}, {described_space(buffer.observation_space)}"
