"""Restore a checkpoint into a directory: plan, check, stage, verify, publish."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import assert_never

from ckptstore.errors import IntegrityError, UsageError
from ckptstore.fetch import torch_file
from ckptstore.fetch.assembled import plan_assembled, whole_tensors
from ckptstore.fetch.native import plan_native
from ckptstore.fetch.plan import FetchPlan
from ckptstore.fetch.pushed import plan_pushed
from ckptstore.fetch.selection import Selection
from ckptstore.fetch.staging import create_files, in_thread, local_errors, staged
from ckptstore.fetch.write import write_extents
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
    """What a restore brought back. ``bytes_verified`` counts whole blocks that were read."""

    uid: str
    step: int
    bytes: int
    bytes_verified: int
    files: int
    left_out: tuple[str, ...] = ()


async def restore_checkpoint(
    store: SupportsGetInto,
    manifest: Manifest,
    destination: Path,
    *,
    form: Format = Format.NATIVE,
    selection: Selection | None = None,
    settings: TransferSettings | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Bring a checkpoint back as files in ``destination``, every byte of them verified.

    ``destination`` must not be there, or be an empty directory. It appears complete, or this
    raises and nothing is left: ``IntegrityError`` if bytes or names are not what they should
    be, ``ConflictError`` and ``LocalResourceError`` if this machine has no place for them,
    ``UsageError`` if the checkpoint does not have what was asked for.
    """
    selection = selection or Selection()
    settings = settings or TransferSettings()
    records = selection.records(manifest)
    if form is not Format.NATIVE and selection.rank is not None:
        raise UsageError("--rank chooses files and shards; it goes with --format native only")
    if form is Format.TORCH:
        return await _restore_torch(
            store, manifest.attempt, records, destination, selection, settings
        )
    plan = _planned(form, manifest.attempt, records, selection)
    _check_names(file.path for file in plan.files)
    async with staged(destination, size_bytes=plan.size_bytes, file_count=len(plan.files)) as root:
        logger.info("%s: %d files into %s", manifest.attempt.uid, len(plan.files), root)
        await in_thread(create_files, root, plan.files)
        verified = await write_extents(
            store, plan.extents, root, settings=settings, progress=progress or Progress()
        )
    return Restored(
        uid=manifest.attempt.uid,
        step=manifest.attempt.step,
        bytes=plan.size_bytes,
        bytes_verified=verified,
        files=len(plan.files),
        left_out=plan.left_out,
    )


def _planned(
    form: Format, attempt: Attempt, records: Sequence[Ready], selection: Selection
) -> FetchPlan:
    match form:
        case Format.NATIVE:
            pushed = plan_pushed(records, selection)
            shards = plan_native(attempt, records, selection)
            return FetchPlan(
                files=pushed.files + shards.files, extents=pushed.extents + shards.extents
            )
        case Format.SAFETENSORS:
            return plan_assembled(records, selection)
        case Format.TORCH:
            raise AssertionError("a torch file is not planned")
        case _:
            assert_never(form)


async def _restore_torch(
    store: SupportsGetInto,
    attempt: Attempt,
    records: Sequence[Ready],
    destination: Path,
    selection: Selection,
    settings: TransferSettings,
) -> Restored:
    tensors = whole_tensors(records, selection)
    if not tensors and not any(record.items for record in records):
        raise UsageError(f"{attempt.uid} holds files and no tensors; use --format native")
    torch_file.require_torch()
    size_bytes = sum(tensor.slot.size_bytes for tensor in tensors)
    async with staged(destination, size_bytes=size_bytes, file_count=1) as root:
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
