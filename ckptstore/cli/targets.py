"""What a URL on the command line means: a store, or a run in one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.cli.command import Command
from ckptstore.errors import CheckpointNotFoundError, ObjectNotFoundError, UsageError
from ckptstore.location import RunLocation, parse_run, parse_store

if TYPE_CHECKING:
    from ckptstore.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Target:
    """An open store, and the run (with a selector) that was asked for, if it was one."""

    store: ObjectStore
    run: RunLocation | None


@asynccontextmanager
async def opened_target(command: Command, url: str) -> AsyncIterator[Target]:
    """Open what ``url`` names.

    If there is a ``ckptstore.json`` right under it, it is a store. Otherwise its last
    component is a run of the store above. Raises ``CheckpointNotFoundError`` if neither is one.
    """
    if "@" not in url.rpartition("/")[2]:
        async with command.opened(parse_store(url)) as store:
            if await _is_store(store):
                yield Target(store, None)
                return
    try:
        run = parse_run(url)
    except UsageError as error:
        raise CheckpointNotFoundError(f"{url} is not a store, and {error}") from error
    async with opened_run(command, run) as store:
        yield Target(store, run)


@asynccontextmanager
async def opened_run(command: Command, run: RunLocation) -> AsyncIterator[ObjectStore]:
    """Open the store of a run for reading, having seen that it is a store that we can read."""
    from ckptstore.opening import existing_record

    async with command.opened(run.store) as store:
        await existing_record(store, run.store)
        yield store


async def _is_store(store: ObjectStore) -> bool:
    from ckptstore.manifest.codec import decode_store
    from ckptstore.manifest.layout import STORE_RECORD_KEY

    try:
        decode_store(await store.get(STORE_RECORD_KEY), STORE_RECORD_KEY)
    except ObjectNotFoundError:
        return False
    return True
