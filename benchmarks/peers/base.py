"""What is asked of every peer."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

MIB: Final = 1 << 20
WAIT_S_MAX: Final = 600.0
REGION: Final = "us-east-1"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: what to move, from or to where."""

    workload: str
    peer: str
    size_bytes: int
    warm_up_bytes: int
    endpoint: str = ""  # Empty where the store is a directory.
    bucket: str = ""
    directory: str = ""  # For the store if it is one, and for files that programs want.
    part_size_bytes: int = 16 * MIB
    in_flight: int = 8
    tensors: int = 1
    core: int | None = None  # The only one to run on.
    counted: bool = False  # Whether the store counts requests.

    @property
    def in_flight_bytes(self) -> int:
        return self.in_flight * self.part_size_bytes


Go: TypeAlias = Callable[[str, int], None]
"""Moves the object of that name and size (or the state of that size); this is what is measured."""


Open: TypeAlias = Callable[[Task], AbstractContextManager[Go]]


@dataclass(frozen=True)
class Peer:
    """Somebody who does a workload. ``needs`` are the modules that must be there."""

    name: str
    open: Open
    needs: Sequence[str] = ()


def payload(size_bytes: int) -> memoryview:
    """Return memory that is filled with something, and is no copy of anything."""
    view = memoryview(mmap.mmap(-1, size_bytes))
    pattern = bytes(range(251)) * (MIB // 251 + 1)
    for start in range(0, size_bytes, MIB):
        stop = min(start + MIB, size_bytes)
        view[start:stop] = pattern[: stop - start]
    return view


def touched(size_bytes: int) -> memoryview:
    """Return memory to load into that is there already, as a model's is."""
    return payload(size_bytes)


def source_file(directory: str, size_bytes: int) -> Path:
    path = Path(directory) / f"source-{size_bytes}"
    path.write_bytes(payload(size_bytes))
    return path


def ranges(size_bytes: int, step_bytes: int) -> list[tuple[int, int]]:
    starts = range(0, size_bytes, step_bytes)
    return [(start, min(start + step_bytes, size_bytes)) for start in starts]


def in_threads(
    work: Callable[[tuple[int, tuple[int, int]]], object], size_bytes: int, task: Task
) -> None:
    """Run ``work`` on every numbered range of the object, several at once."""
    with ThreadPoolExecutor(task.in_flight) as pool:
        numbered = enumerate(ranges(size_bytes, task.part_size_bytes))
        list(pool.map(work, numbered, timeout=WAIT_S_MAX))


class MemoryFile(io.RawIOBase):
    """A file over memory, for libraries that only read files."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def readinto(self, target: object) -> int:
        into = memoryview(target).cast("B")  # type: ignore[arg-type]  # Any buffer will do.
        piece = self._view[self._at : self._at + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
