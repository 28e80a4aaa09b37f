"""The files of a pushed directory, under their own names. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.errors import ConflictError
from ckptstore.fetch.plan import Extent, FetchPlan, OutputFile, Placement
from ckptstore.fetch.selection import Selection
from ckptstore.manifest.model import Ready


def plan_pushed(records: Sequence[Ready], selection: Selection) -> FetchPlan:
    """Plan the pushed files of all these ranks as one directory.

    A file that several ranks pushed is there once if it has the same content everywhere;
    otherwise this raises ``ConflictError``.
    """
    files: dict[str, OutputFile] = {}
    extents: dict[str, Extent] = {}
    for record in records:
        for entry in record.files:
            if entry.path not in selection:
                continue
            size_bytes = entry.stop - entry.start
            placement = Placement.flat(entry.path, 0, size_bytes)
            extent = Extent(record.shards[entry.shard], entry.start, entry.stop, placement)
            if entry.path in files and not _same(extents[entry.path], extent):
                raise ConflictError(
                    f"{entry.path} was pushed by several ranks of {record.uid}, with different "
                    "content; restore what one of them pushed with --rank"
                )
            files.setdefault(
                entry.path,
                OutputFile(path=entry.path, size_bytes=size_bytes, executable=entry.executable),
            )
            extents.setdefault(entry.path, extent)
    return FetchPlan(files=tuple(files.values()), extents=tuple(extents.values()))


def _same(one: Extent, other: Extent) -> bool:
    """Tell whether these are the same bytes, for all that their checksums say."""
    return (one.start, one.stop, one.shard.size_bytes, one.shard.crc64nvme) == (
        other.start,
        other.stop,
        other.shard.size_bytes,
        other.shard.crc64nvme,
    )
