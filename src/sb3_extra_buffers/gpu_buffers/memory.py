"""How many bytes a buffer takes on its device."""

from __future__ import annotations

from dataclasses import dataclass

from sb3_extra_buffers.compressed.memory import readable_bytes


@dataclass(frozen=True)
class DeviceUsage:
    """Figures of one buffer's observations on the device. Prints as a line.

    Attributes:
        heap_bytes: bytes allocated for payloads, or for dense observations.
        heap_used: bytes of them up to the end of the last payload.
        table_bytes: bytes of the table that says where payloads lie.
        key_bytes: bytes of key frames.
        id_bytes: bytes of the ids of each observation's frames.
    """

    heap_bytes: int
    heap_used: int
    table_bytes: int
    key_bytes: int
    id_bytes: int

    @property
    def total_bytes(self) -> int:
        """Every byte on the device."""
        return self.heap_bytes + self.table_bytes + self.key_bytes + self.id_bytes

    @property
    def heap_slack(self) -> int:
        """Bytes of heap that are allocated ahead."""
        return self.heap_bytes - self.heap_used

    def __str__(self) -> str:
        parts = {
            "on the device": self.total_bytes,
            "heap": self.heap_bytes,
            "of it ahead": self.heap_slack,
            "table": self.table_bytes,
            "keys": self.key_bytes,
            "ids": self.id_bytes,
        }
        return ", ".join(f"{name} {readable_bytes(size)}" for name, size in parts.items())
