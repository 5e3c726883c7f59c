"""Where the parts of one payload lie."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SlotMetadata"]


@dataclass(frozen=True)
class SlotMetadata:
    """Where the payload of a cell lies, and its parts in it.

    Attributes:
        byte_start: where the payload starts in the heap.
        pos_runs: where the run lengths (`rle`) or positions (`delta`) start, from `byte_start`.
        pos_elem: where the items (`rle`) or words (`delta`) start, from `byte_start`.
        run_length: how many of each there are; 0 where the payload has no such parts.
        payload_bytes: bytes of the payload.
    """

    byte_start: int
    pos_runs: int
    pos_elem: int
    run_length: int
    payload_bytes: int

    @property
    def byte_end(self) -> int:
        """Where the payload ends in the heap."""
        return self.byte_start + self.payload_bytes
