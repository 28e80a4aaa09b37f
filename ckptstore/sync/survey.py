"""Ask a store what it has of a run. Reads only."""

from __future__ import annotations

from ckptstore.commit.catalog import CatalogStore, decided_uids, read_decision
from ckptstore.commit.retire import list_retired
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import IntegrityError
from ckptstore.manifest.codec import decode_incarnation
from ckptstore.manifest.layout import incarnations_prefix
from ckptstore.manifest.model import Decision, Incarnation
from ckptstore.sync.plan import Side
from ckptstore.types import Key


async def read_side(store: CatalogStore, run: str, *, name: str) -> Side:
    """Return what a store says of a run; of one that it does not have, that there is nothing.

    Raises what any listing raises, and ``IntegrityError`` if a claim cannot be believed: half
    an answer is no answer.
    """

    async def decision(uid: str) -> Decision | IntegrityError:
        try:
            return await read_decision(store, run, uid)
        except IntegrityError as error:
            return error

    async def claim(key: Key) -> Incarnation:
        return decode_incarnation(await store.get(key), key)

    # Marks and claims after decisions: whatever was decided then, is known to be claimed.
    decided = [uid async for uid in decided_uids(store, run)]
    retired = await list_retired(store, run) & frozenset(decided)
    unretired = [uid for uid in decided if uid not in retired]
    decisions = await map_concurrently(decision, unretired)
    keys = [info.key async for info in store.list_objects(incarnations_prefix(run))]
    claims = await map_concurrently(claim, keys)
    return Side(
        name=name,
        decisions=dict(zip(unretired, decisions, strict=True)),
        retired=retired,
        claims={one.number: one for one in claims},
    )
