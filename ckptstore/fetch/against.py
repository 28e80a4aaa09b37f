"""Compare a directory with what a checkpoint would be restored as; no data of it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckptstore.fetch.native import plan_native
from ckptstore.fetch.plan import Extent, FetchPlan, OutputFile
from ckptstore.fetch.pushed import plan_pushed
from ckptstore.fetch.selection import Selection
from ckptstore.integrity import block_crcs, unpack_crcs
from ckptstore.manifest.model import Manifest

SAME: Final = "="
DIFFERENT: Final = "*"
MISSING: Final = "-"  # In the directory.
EXTRA: Final = "+"
UNREADABLE: Final = "!"
UNKNOWN: Final = "?"  # It takes data to tell.


@dataclass(frozen=True, slots=True)
class Compared:
    """What became of one file."""

    sign: str
    path: str
    size_bytes: int = 0
    why: str = ""


def native_plan(manifest: Manifest) -> FetchPlan:
    """Return the plan of a checkpoint restored whole, as ``--format native`` has it."""
    everything = Selection()
    pushed = plan_pushed(manifest.records, everything)
    shards = plan_native(manifest.attempt, manifest.records, everything)
    return FetchPlan(files=pushed.files + shards.files, extents=pushed.extents + shards.extents)


def compare_directory(plan: FetchPlan, root: Path) -> Iterator[Compared]:
    """Yield what became of every file of the plan, and of files that are not in it."""
    extents: dict[str, list[Extent]] = {}
    for extent in plan.extents:
        extents.setdefault(extent.placement.path, []).append(extent)
    for file in sorted(plan.files, key=lambda file: file.path):
        yield _compared(file, extents.get(file.path, []), root / file.path)
    known = {file.path for file in plan.files}
    for directory, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            path = Path(directory, name).relative_to(root).as_posix()
            if path not in known:
                yield Compared(EXTRA, path)


def is_same(plan: FetchPlan, root: Path) -> bool:
    """Tell whether a directory is what the plan makes, nothing more and nothing less."""
    return root.is_dir() and all(one.sign == SAME for one in compare_directory(plan, root))


def _compared(file: OutputFile, extents: list[Extent], location: Path) -> Compared:
    try:
        with open(location, "rb") as opened:
            size_bytes = os.fstat(opened.fileno()).st_size
            if size_bytes != file.size_bytes:
                why = f"{size_bytes} bytes, not {file.size_bytes}"
                return Compared(DIFFERENT, file.path, 0, why)
            if opened.read(len(file.head)) != file.head:
                return Compared(DIFFERENT, file.path, 0, "another head")
            return _of_data(file, extents, opened.fileno())
    except FileNotFoundError:
        return Compared(MISSING, file.path)
    except OSError as error:
        return Compared(UNREADABLE, file.path, 0, error.strerror or str(error))


def _of_data(file: OutputFile, extents: list[Extent], descriptor: int) -> Compared:
    for extent in extents:
        shard = extent.shard
        if (extent.start, extent.stop) != (0, shard.content_bytes):
            return Compared(UNKNOWN, file.path, 0, "its checksums cover other bytes as well")
        for block, expected in enumerate(unpack_crcs(shard.content_crcs)):
            at = block * shard.block_size_bytes
            data = os.pread(descriptor, shard.block_size_bytes, extent.placement.base + at)
            if block_crcs([memoryview(data)], shard.block_size_bytes) != (expected,):
                return Compared(DIFFERENT, file.path, at, f"block {block} at byte {at}")
    return Compared(SAME, file.path, file.size_bytes)
