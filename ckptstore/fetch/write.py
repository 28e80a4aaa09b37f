"""Carry a plan out: read, check, and write where it belongs, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from ckptstore.concurrency import in_thread, map_concurrently, task_group
from ckptstore.errors import IntegrityError
from ckptstore.fetch.plan import Extent, FetchPlan, OutputFile, plan_batches
from ckptstore.fetch.staging import Staging, local_errors, sync_files, write_at
from ckptstore.integrity import crc64nvme
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.settings import TransferSettings
from ckptstore.store import SupportsGetInto
from ckptstore.types import KIB

WORKERS_MAX: Final = 16
HOLE_BYTES: Final = 64 * KIB
_ZEROS: Final = bytes(HOLE_BYTES)

Pieces: TypeAlias = Sequence[tuple[Extent, memoryview]]


@dataclass(slots=True)
class Written:
    """What writing took: bytes of blocks that were read, and those that were there already."""

    bytes_verified: int = 0
    bytes_resumed: int = 0


async def write_extents(
    store: SupportsGetInto,
    extents: Sequence[Extent],
    staging: Staging,
    *,
    settings: TransferSettings,
    progress: Progress,
    sparse: bool = False,
) -> Written:
    """Write all extents into the files of ``staging``, and note each batch in its journal.

    Nothing is written that was not checked, and what an earlier try wrote is not read again if
    it is still what that wrote. ``sparse`` leaves long zeros out. Raises ``IntegrityError`` with
    the damage, and ``LocalResourceError``. Memory is bounded by twice ``in_flight_bytes_max``:
    what is being read, and what waits to be written (and what a cast makes of that).
    """
    progress.bytes_total += sum(extent.size_bytes for extent in extents)
    reader = CheckedReader(store, settings)
    batches = enumerate(plan_batches(extents, settings.part_size_bytes))
    workers = min(WORKERS_MAX, max(settings.in_flight_bytes_max // settings.part_size_bytes, 1))
    root, journal = staging.root, staging.journal
    holes = sparse and not journal.resumed  # An earlier try may have written anything there.
    written = Written()

    async def work() -> None:
        buffer = bytearray()
        for index, batch in batches:  # Shared: each worker takes the next one.
            size_bytes = sum(extent.size_bytes for extent in batch)
            crc = journal.crc_of(index)
            if crc is not None and await in_thread(_crc_on_disk, root, batch) == crc:
                written.bytes_resumed += size_bytes
                progress.bytes_done += size_bytes
                continue
            if len(buffer) < size_bytes:
                buffer = bytearray(size_bytes)
            pieces = list(_pieces(batch, memoryview(buffer)))
            wanted = [Wanted(extent.shard, extent.start, piece) for extent, piece in pieces]
            verified = await reader.read_wanted(wanted)
            written.bytes_verified += verified
            crc = await in_thread(_write, root, pieces, holes)
            with local_errors(root, "note what was written"):
                journal.note(index, crc)
            progress.bytes_done += size_bytes

    async with task_group() as group:
        for _ in range(workers):
            group.create_task(work())
    return written


async def reread(plan: FetchPlan, staging: Staging, settings: TransferSettings) -> None:
    """Read all that was written back from the disk, or raise ``IntegrityError``."""
    root, journal = staging.root, staging.journal
    await sync_files(root)
    await in_thread(_forget, root, [file.path for file in plan.files])

    async def check(numbered: tuple[int, tuple[Extent, ...]]) -> None:
        index, batch = numbered
        if await in_thread(_crc_on_disk, root, batch) != journal.crc_of(index):
            raise IntegrityError(
                f"{root / batch[0].placement.path}: the disk gave back other bytes than were "
                "written; restore to another disk"
            )

    batches = enumerate(plan_batches(plan.extents, settings.part_size_bytes))
    await map_concurrently(check, batches, in_flight_max=WORKERS_MAX)
    await in_thread(_check_heads, root, plan.files)


def _check_heads(root: Path, files: Sequence[OutputFile]) -> None:
    for file in files:
        path = root / file.path
        with local_errors(path, "read the file back"), open(path, "rb") as opened:
            head = opened.read(len(file.head))
        if head != file.head:
            raise IntegrityError(f"{root / file.path}: the disk gave back another head")


def _pieces(batch: Sequence[Extent], memory: memoryview) -> Iterator[tuple[Extent, memoryview]]:
    at = 0
    for extent in batch:
        yield extent, memory[at : at + extent.size_bytes]
        at += extent.size_bytes


def _write(root: Path, pieces: Pieces, holes: bool) -> int:
    """Write the pieces and return the checksum of all of them, as they were placed."""
    crc = 0
    for path, group in groupby(pieces, key=lambda piece: piece[0].placement.path):
        location = root / path
        with local_errors(location, "write the file"):
            descriptor = os.open(location, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for extent, piece in group:
                    placed = extent.placed(piece)
                    crc = crc64nvme(placed, crc)
                    for run in extent.runs():
                        data = placed[run.source : run.source + run.size]
                        if holes:
                            _write_filled(descriptor, data, run.target)
                        else:
                            write_at(descriptor, data, run.target)
            finally:
                os.close(descriptor)
    return crc


def _write_filled(descriptor: int, data: memoryview, offset: int) -> None:
    """Write what is not zero, where nothing was written before."""
    for start in range(0, len(data), HOLE_BYTES):
        piece = data[start : start + HOLE_BYTES]
        if bytes(piece) != _ZEROS[: len(piece)]:
            write_at(descriptor, piece, offset + start)


def _crc_on_disk(root: Path, batch: Sequence[Extent]) -> int:
    """Return the checksum of what the files hold where the batch belongs."""
    crc = 0
    for path, group in groupby(batch, key=lambda extent: extent.placement.path):
        with local_errors(root / path, "read the file back"):
            descriptor = os.open(root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for extent in group:
                    for run in extent.runs():
                        crc = crc64nvme(os.pread(descriptor, run.size, run.target), crc)
            finally:
                os.close(descriptor)
    return crc


def _forget(root: Path, paths: Sequence[str]) -> None:
    """Let the kernel forget what it holds of the files, so that the disk itself is read."""
    for path in paths:
        with local_errors(root / path, "read the file back"):
            descriptor = os.open(root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
