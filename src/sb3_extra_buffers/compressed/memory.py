"""How much memory a buffer's observations take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = ("B", "KB", "MB", "GB", "TB")


@dataclass(frozen=True)
class MemoryUsage:
    """Figures of one buffer; in `parts` those of each observation key. Prints as a table.

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

    def __str__(self) -> str:
        rows = [("observations", "method", "raw", "stored", "ratio", "frames", "unique")]
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
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def readable_bytes(n: float) -> str:
    """Return a number of bytes as people read it: `11.3 MB`."""
    for unit in _UNITS:
        if n < 1000 or unit == _UNITS[-1]:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
