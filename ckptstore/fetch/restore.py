"""Restore a checkpoint into a directory: plan, check, stage, verify, publish."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import assert_never

from ckptstore.concurrency import in_thread
from ckptstore.errors import IntegrityError, UsageError
from ckptstore.fetch import torch_file
from ckptstore.fetch.against import is_same
from ckptstore.fetch.assembled import plan_assembled, whole_tensors
from ckptstore.fetch.native import plan_native
from ckptstore.fetch.plan import FetchPlan
from ckptstore.fetch.pushed import plan_pushed
from ckptstore.fetch.selection import Selection
from ckptstore.fetch.staging import create_files, local_errors, staged
from ckptstore.fetch.write import reread, write_extents
from ckptstore.integrity import sha256_hex
from ckptstore.manifest.model import Attempt, Manifest, Ready
from ckptstore.paths import check_distinct, check_path
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader
from ckptstore.settings import TransferSettings
from ckptstore.store import SupportsGetInto

logger = logging.getLogger(__name__)


class Format(Enum):
    """How a checkpoint lies in a directory. Pushed files know only ``native``."""

    NATIVE = "native"
    SAFETENSORS = "safetensors"
    TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore brought back. ``bytes_verified`` counts whole blocks that were read.

    ``bytes_resumed`` were on the disk from an earlier try, and were checked there.
    """

    uid: str
    step: int
    bytes: int
    bytes_verified: int
    files: int
    left_out: tuple[str, ...] = ()
    bytes_resumed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How files come out. ``dtype`` (torch's name) and ``file_bytes_max`` are of safetensors."""

    form: Format = Format.NATIVE
    dtype: str | None = None
    file_bytes_max: int | None = None

    def __post_init__(self) -> None:
        if self.form is not Format.SAFETENSORS and (self.dtype or self.file_bytes_max):
            raise UsageError("--dtype and --max-shard-size go with --format safetensors only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How to treat the disk: read it back, leave holes for zeros, replace what is there.

    With ``keep_same``, a directory that is all of it already is checked, and left as it is;
    that can be told of whole shards and files only.
    """

    reread: bool = False
    sparse: bool = False
    replace: bool = False
    keep_same: bool = False


async def restore_checkpoint(
    store: SupportsGetInto,
    manifest: Manifest,
    destination: Path,
    *,
    layout: Layout | None = None,
    selection: Selection | None = None,
    care: Care | None = None,
    settings: TransferSettings | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Bring a checkpoint back as files in ``destination``, every byte of them verified.

    ``destination`` must not be there, or be an empty directory, unless it may be replaced. It
    appears complete, or this raises: ``IntegrityError`` if bytes or names are not what they
    should be, ``ConflictError`` and ``LocalResourceError`` if this machine has no place for
    them, ``UsageError`` if the checkpoint does not have what was asked for. If it was cut short,
    the next call for the same goes on from what lies beside ``destination``; see ``staged``.
    """
    layout, care = layout or Layout(), care or Care()
    form = layout.form
    selection = selection or Selection()
    settings = settings or TransferSettings()
    records = selection.records(manifest)
    if form is not Format.NATIVE and selection.rank is not None:
        raise UsageError("--rank chooses files and shards; it goes with --format native only")
    if form is Format.TORCH:
        return await _restore_torch(
            store, manifest.attempt, records, destination, selection, care, settings
        )
    plan = _planned(layout, manifest.attempt, records, selection)
    _check_names(file.path for file in plan.files)
    if care.keep_same and await in_thread(is_same, plan, destination):
        return Restored(
            uid=manifest.attempt.uid,
            step=manifest.attempt.step,
            bytes=plan.size_bytes,
            bytes_verified=0,
            bytes_resumed=plan.size_bytes,
            files=len(plan.files),
            left_out=plan.left_out,
        )
    async with staged(
        destination,
        size_bytes=plan.size_bytes,
        file_count=len(plan.files),
        name=_plan_name(manifest.attempt, plan, settings),
        replace=care.replace,
    ) as staging:
        logger.info("%s: %d files into %s", manifest.attempt.uid, len(plan.files), staging.root)
        await in_thread(partial(create_files, sparse=care.sparse), staging.root, plan.files)
        written = await write_extents(
            store,
            plan.extents,
            staging,
            settings=settings,
            progress=progress or Progress(),
            sparse=care.sparse,
        )
        if care.reread:
            await reread(plan, staging, settings)
    return Restored(
        uid=manifest.attempt.uid,
        step=manifest.attempt.step,
        bytes=plan.size_bytes,
        bytes_verified=written.bytes_verified,
        bytes_resumed=written.bytes_resumed,
        files=len(plan.files),
        left_out=plan.left_out,
    )


def _plan_name(attempt: Attempt, plan: FetchPlan, settings: TransferSettings) -> str:
    """Return a name that only the very same work has."""
    work = (attempt.uid, settings.part_size_bytes, plan.files, _places(plan))
    return f"{attempt.uid[-8:]}-{sha256_hex(repr(work).encode())[:8]}"


def _places(plan: FetchPlan) -> list[tuple[object, ...]]:
    return [(e.shard.key, e.start, e.stop, e.placement, e.cast) for e in plan.extents]


def _planned(
    layout: Layout, attempt: Attempt, records: Sequence[Ready], selection: Selection
) -> FetchPlan:
    match layout.form:
        case Format.NATIVE:
            pushed = plan_pushed(records, selection)
            shards = plan_native(attempt, records, selection)
            return FetchPlan(
                files=pushed.files + shards.files, extents=pushed.extents + shards.extents
            )
        case Format.SAFETENSORS:
            return plan_assembled(
                records, selection, dtype=layout.dtype, file_bytes_max=layout.file_bytes_max
            )
        case Format.TORCH:
            raise AssertionError("a torch file is not planned")
        case _:
            assert_never(layout.form)


async def _restore_torch(
    store: SupportsGetInto,
    attempt: Attempt,
    records: Sequence[Ready],
    destination: Path,
    selection: Selection,
    care: Care,
    settings: TransferSettings,
) -> Restored:
    tensors = whole_tensors(records, selection)
    if not tensors and not any(record.items for record in records):
        raise UsageError(f"{attempt.uid} holds files and no tensors; use --format native")
    torch_file.require_torch()
    size_bytes = sum(tensor.slot.size_bytes for tensor in tensors)
    async with staged(
        destination, size_bytes=size_bytes, file_count=1, replace=care.replace
    ) as staging:
        root = staging.root
        reader = CheckedReader(store, settings)
        state, verified = await torch_file.read_state(reader, tensors, records, selection)
        with local_errors(root, "write the file", need_bytes=size_bytes):
            written = await in_thread(torch_file.write_state, state, root)
    return Restored(
        uid=attempt.uid, step=attempt.step, bytes=written, bytes_verified=verified, files=1
    )


def _check_names(paths: Iterable[str]) -> None:
    """Refuse, before the first byte, a checkpoint whose names would lead anywhere else."""
    names = list(paths)
    try:
        for name in names:
            check_path(name)
        check_distinct(names)
    except ValueError as error:
        raise IntegrityError(f"the checkpoint cannot be restored safely: {error}") from error
