"""Decide the reads that fill memory from a shard. Pure: no I/O, no store.

Blocks are what checksums cover, so whole blocks are read. A block that lies in one piece of
wanted memory is read straight into it; one that is wanted in parts is read beside it, checked,
and its parts are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ckptstore.types import ByteRange


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a read that belong to a wanted range: ``size`` of them, from here to there."""

    wanted: int
    source: int  # Offset in the object.
    target: int  # Offset in the wanted memory.
    size: int


@dataclass(frozen=True, slots=True)
class DirectRead:
    """Whole blocks that go straight into the memory of one wanted range, at ``target``."""

    byte_range: ByteRange
    wanted: int
    target: int


@dataclass(frozen=True, slots=True)
class ScratchRead:
    """Whole blocks that are read beside, for the ``copies`` out of them."""

    byte_range: ByteRange
    copies: tuple[Copy, ...]


Read = DirectRead | ScratchRead


def plan_reads(
    wanted: Sequence[ByteRange], *, size_bytes: int, block_size_bytes: int, read_size_bytes: int
) -> list[Read]:
    """Return reads of whole blocks that together fill every wanted range.

    The reads come in the order of the object. None is longer than ``read_size_bytes`` rounded
    down to whole blocks (but at least one block).
    """
    step = max(read_size_bytes // block_size_bytes, 1) * block_size_bytes
    reads: list[Read] = []
    copies: list[Copy] = []
    for index, byte_range in enumerate(wanted):
        first = -(-byte_range.start // block_size_bytes) * block_size_bytes
        last = byte_range.stop // block_size_bytes * block_size_bytes
        if byte_range.stop == size_bytes:
            last = size_bytes
        head = min(first, byte_range.stop)
        copies += _copies(index, byte_range, byte_range.start, head)
        copies += _copies(index, byte_range, max(last, head), byte_range.stop)
        reads += [
            DirectRead(ByteRange(start, min(start + step, last)), index, start - byte_range.start)
            for start in range(first, last, step)
        ]
    reads += _scratch_reads(copies, size_bytes, block_size_bytes, step)
    return sorted(reads, key=lambda read: read.byte_range.start)


def _copies(index: int, byte_range: ByteRange, start: int, stop: int) -> list[Copy]:
    return [Copy(index, start, start - byte_range.start, stop - start)] if start < stop else []


def _scratch_reads(
    copies: Iterable[Copy], size_bytes: int, block_size_bytes: int, step: int
) -> list[ScratchRead]:
    """Gather copies whose blocks touch into one read, as long as it stays short enough."""
    reads: list[ScratchRead] = []
    group: list[Copy] = []
    start = stop = 0
    for copy in sorted(copies, key=lambda copy: copy.source):
        first = copy.source // block_size_bytes * block_size_bytes
        last = min(-(-(copy.source + copy.size) // block_size_bytes) * block_size_bytes, size_bytes)
        if group and (first > stop or max(stop, last) - start > step):
            reads.append(ScratchRead(ByteRange(start, stop), tuple(group)))
            group = []
        if not group:
            start = stop = first
        group.append(copy)
        stop = max(stop, last)
    if group:
        reads.append(ScratchRead(ByteRange(start, stop), tuple(group)))
    return reads
