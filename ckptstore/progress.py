"""How far a transfer has come, for whoever wants to watch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Counters that only grow. Bytes are done once they were acknowledged or verified."""

    objects_total: int = 0
    objects_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0

    def __str__(self) -> str:
        return (
            f"{self.objects_done} of {self.objects_total} objects, "
            f"{self.bytes_done} of {self.bytes_total} bytes"
        )
