"""Retention's mark on a checkpoint: it may not be read any more, and will be collected."""

from __future__ import annotations

from ckptstore.clock import Clock
from ckptstore.errors import CheckpointNotFoundError, ObjectNotFoundError
from ckptstore.manifest.codec import encode_record
from ckptstore.manifest.layout import parse_uid, retired_key, retired_prefix
from ckptstore.manifest.model import Retired
from ckptstore.store import SupportsDelete, SupportsGet, SupportsList, SupportsPut


async def retire(store: SupportsPut, run: str, uid: str, *, reason: str, clock: Clock) -> None:
    """Mark a checkpoint as let go of. When this returns, the mark is there, for good.

    Nothing is deleted by this alone. Whoever pins the checkpoint from now on sees the mark;
    whoever pinned it before is seen by those who list pins from now on.
    """
    mark = Retired(run=run, uid=uid, reason=reason, retired_unix_s=clock.unix_s())
    await store.put(retired_key(run, uid), encode_record(mark))


async def unmark_orphan(store: SupportsDelete, run: str, uid: str) -> None:
    """Take the mark from what is no checkpoint here, so that it can be copied here again."""
    await store.delete(retired_key(run, uid))


async def list_retired(store: SupportsList, run: str) -> frozenset[str]:
    """Return the uids that are marked."""
    prefix = retired_prefix(run)
    return frozenset([info.key.removeprefix(prefix) async for info in store.list_objects(prefix)])


async def is_retired(store: SupportsGet, run: str, uid: str) -> bool:
    """Tell whether the checkpoint is marked."""
    try:
        await store.get(retired_key(run, uid))
    except ObjectNotFoundError:
        return False
    return True


def removed(run: str, uid: str) -> CheckpointNotFoundError:
    """Return the error that says so."""
    return CheckpointNotFoundError(
        f"run {run}: retention removed checkpoint {uid} of step {parse_uid(uid).step}; "
        "`ckptstore ls` shows what there is"
    )
