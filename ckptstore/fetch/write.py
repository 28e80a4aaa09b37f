"""Carry a plan out: read, check, and write where it belongs, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from ckptstore.concurrency import task_group
from ckptstore.fetch.plan import Extent, plan_batches
from ckptstore.fetch.staging import in_thread, local_errors, write_at
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.settings import TransferSettings
from ckptstore.store import SupportsGetInto

WORKERS_MAX: Final = 16


async def write_extents(
    store: SupportsGetInto,
    extents: Sequence[Extent],
    root: Path,
    *,
    settings: TransferSettings,
    progress: Progress,
) -> int:
    """Write all extents into the files below ``root``; return how many bytes were verified.

    Nothing is written that was not checked. Raises ``IntegrityError`` with the damage, and
    ``LocalResourceError``. Memory is bounded by twice ``in_flight_bytes_max``: what is being
    read, and what waits to be written.
    """
    progress.bytes_total += sum(extent.size_bytes for extent in extents)
    reader = CheckedReader(store, settings)
    batches = iter(plan_batches(extents, settings.part_size_bytes))
    workers = min(WORKERS_MAX, max(settings.in_flight_bytes_max // settings.part_size_bytes, 1))
    verified: list[int] = []

    async def work() -> None:
        buffer = bytearray()
        for batch in batches:  # Shared: each worker takes the next one.
            size_bytes = sum(extent.size_bytes for extent in batch)
            if len(buffer) < size_bytes:
                buffer = bytearray(size_bytes)
            pieces = list(_pieces(batch, memoryview(buffer)))
            wanted = [Wanted(extent.shard, extent.start, piece) for extent, piece in pieces]
            verified.append(await reader.read_wanted(wanted))
            await in_thread(_write, root, pieces)
            progress.bytes_done += size_bytes

    async with task_group() as group:
        for _ in range(workers):
            group.create_task(work())
    return sum(verified)


def _pieces(batch: Sequence[Extent], memory: memoryview) -> Iterator[tuple[Extent, memoryview]]:
    at = 0
    for extent in batch:
        yield extent, memory[at : at + extent.size_bytes]
        at += extent.size_bytes


def _write(root: Path, pieces: Sequence[tuple[Extent, memoryview]]) -> None:
    for path, group in groupby(pieces, key=lambda piece: piece[0].placement.path):
        location = root / path
        with local_errors(location, "write the file"):
            descriptor = os.open(location, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for extent, piece in group:
                    for run in extent.runs():
                        write_at(descriptor, piece[run.source : run.source + run.size], run.target)
            finally:
                os.close(descriptor)
