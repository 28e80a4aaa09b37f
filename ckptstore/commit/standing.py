"""Write a record once and for everybody, and find out which one stands."""

from __future__ import annotations

import asyncio
import random
from typing import Final, Protocol

from ckptstore.errors import ObjectExistsError, ObjectNotFoundError, WriteOutcomeUnknownError
from ckptstore.store import SupportsGet, SupportsPut
from ckptstore.types import CreateOnly, Key

PAUSE_S_FIRST: Final = 0.05
PAUSE_S_MAX: Final = 2.0


class StandingStore(SupportsGet, SupportsPut, Protocol):
    """All that settling a record needs."""


async def put_standing(store: StandingStore, key: Key, data: bytes) -> bytes:
    """Put ``data`` unless something stands there already; return what stands, now and for ever.

    The answer to a conditional put may be lost, and a repeated one is then refused by our own
    record; so a refusal is never believed, and what stands is read back. While it can neither
    be put nor read this goes on trying, so it belongs under the caller's deadline: when that
    cancels it, the record may or may not stand.
    """
    pause_s = PAUSE_S_FIRST
    while True:
        try:
            await store.put(key, data, mode=CreateOnly())
            return data
        except (ObjectExistsError, WriteOutcomeUnknownError):
            try:
                return await store.get(key)
            except ObjectNotFoundError:  # Not ours and nobody's: it did not land, so far.
                await asyncio.sleep(random.uniform(0, pause_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
