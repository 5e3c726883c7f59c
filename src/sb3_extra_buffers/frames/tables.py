"""Figures as people read them: bytes with a unit, tables for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_UNITS = ("B", "KB", "MB", "GB", "TB")

Rows = Sequence[Sequence[str]]


def readable_bytes(n: float) -> str:
    """Return a number of bytes as people read it: `11.3 MB`."""
    for unit in _UNITS[:-1]:
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} {_UNITS[-1]}"


def text_table(rows: Rows, left: int = 2) -> str:
    """Return a table for a terminal: header, rule, lines. The first `left` columns are words, the others figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def html_table(rows: Rows, left: int = 2) -> str:
    """Return the same for a notebook. Every cell is escaped."""
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = [
            f'<{tag} style="text-align: {"left" if i < left else "right"}; padding: 0.2em 0.6em">{escape(cell)}</{tag}>'
            for i, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody></table>"
