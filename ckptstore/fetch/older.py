"""What to restore instead of a checkpoint that is damaged."""

from __future__ import annotations

from ckptstore.commit.catalog import CatalogStore, decided_uids, read_decision
from ckptstore.commit.retire import is_retired
from ckptstore.errors import IntegrityError
from ckptstore.manifest.model import Commit


async def next_older(store: CatalogStore, run: str, uid: str | None) -> Commit | None:
    """Return the newest sound, unretired commit older than ``uid`` (``None``: of all), if any.

    Decisions that are damaged themselves are passed over.
    """
    async for older in decided_uids(store, run):
        if uid is not None and older >= uid:
            continue
        try:
            decision = await read_decision(store, run, older)
        except IntegrityError:
            continue
        if isinstance(decision, Commit) and not await is_retired(store, run, older):
            return decision
    return None
