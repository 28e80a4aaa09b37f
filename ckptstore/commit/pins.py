"""Pins: how somebody who reads or copies a checkpoint keeps retention away from it.

Whoever reads pins, **then** checks that the checkpoint is not retired, then reads. Whoever
collects marks it retired, **then** lists pins, then deletes. So of the two, the one that comes
second sees the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from ckptstore.clock import Clock, Deadline
from ckptstore.commit.catalog import CatalogStore, latest_commit
from ckptstore.commit.retire import is_retired, removed
from ckptstore.commit.tags import list_tags
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import (
    CkptStoreError,
    IntegrityError,
    LocalResourceError,
    ObjectNotFoundError,
    PermissionDeniedError,
)
from ckptstore.manifest.codec import decode_pin, encode_record
from ckptstore.manifest.layout import check_uid, pin_key, pins_prefix
from ckptstore.manifest.model import Pin
from ckptstore.store import SupportsDelete, SupportsGet, SupportsList, SupportsPut
from ckptstore.types import Key

logger = logging.getLogger(__name__)

PIN_S: Final = 900.0  # What a holder that died costs is this and the grace.
PIN_GRACE_S: Final = 3600.0  # Clocks of different machines may be that far apart.
UNPIN_S_MAX: Final = 2.0
KEPT_BY: Final = "kept by "


class PinStore(CatalogStore, SupportsPut, SupportsDelete, Protocol):
    """All that pinning needs."""


class PinsStore(SupportsGet, SupportsList, Protocol):
    """All that looking at pins needs."""


@asynccontextmanager
async def pinned(
    store: PinStore, run: str, uid: str, *, clock: Clock, holder: str, deadline: Deadline
) -> AsyncIterator[None]:
    """Keep the checkpoint from being collected while the block runs, however long that is.

    ``holder`` says what for. Raises ``CheckpointNotFoundError`` if retention has let go of the
    checkpoint already. ``deadline`` bounds the pinning, not the block. A store that may only be
    read, or whose disk is full, is read without a pin; then, as when this process stands still
    for longer than ``PIN_S`` and ``PIN_GRACE_S``, the data may be deleted under the block, which
    will find it missing, never wrong.
    """
    pin = _OwnPin(store, run, uid, clock, f"{holder} on {socket.gethostname()}, pid {os.getpid()}")
    try:
        async with deadline.enforce(f"run {run}: pinning checkpoint {uid}"):
            await pin.put()
            await _refuse_retired(store, run, uid)
        async with pin.renewed():
            yield
    finally:
        await pin.remove()


async def keep_pinned(
    store: PinStore, run: str, uid: str, *, for_s: float, clock: Clock, holder: str
) -> Pin:
    """Keep a checkpoint from being collected for so long, whoever reads it or not.

    Raises ``CheckpointNotFoundError`` if retention has let go of it already.
    """
    now_unix_s = clock.unix_s()
    pin = Pin(
        run=run,
        uid=uid,
        holder=f"{KEPT_BY}{holder}",
        pinned_unix_s=now_unix_s,
        expires_unix_s=now_unix_s + for_s,
    )
    key = pin_key(run, uid, secrets.token_hex(8))
    await store.put(key, encode_record(pin))
    try:
        await _refuse_retired(store, run, uid)
    except CkptStoreError:
        await store.delete(key)
        raise
    return pin


async def release_kept(store: PinStore, run: str, uid: str) -> int:
    """Take away what ``keep_pinned`` put on a checkpoint, and return how many pins that were.

    Pins of those who read or copy it just now stay.
    """
    kept = [key for key, pin in await list_pins(store, run) if pin.uid == uid and is_kept(pin)]
    for key in kept:
        await store.delete(key)
    return len(kept)


def is_kept(pin: Pin) -> bool:
    """Tell whether somebody asked for this pin, rather than reads the checkpoint."""
    return pin.holder.startswith(KEPT_BY)


async def list_pins(store: PinsStore, run: str) -> list[tuple[Key, Pin]]:
    """Return all pins of a run, expired ones too. Raises ``IntegrityError`` for one that lies."""
    keys = [info.key async for info in store.list_objects(pins_prefix(run))]

    async def read(key: Key) -> tuple[Key, Pin] | None:
        try:
            return key, decode_pin(await store.get(key), key)
        except ObjectNotFoundError:
            return None  # It was taken away meanwhile.

    return [pin for pin in await map_concurrently(read, keys) if pin is not None]


async def list_pinned(store: PinsStore, run: str, *, clock: Clock) -> frozenset[str]:
    """Return the uids on which there is a pin that has not expired, or only just.

    Raises ``IntegrityError`` if a pin cannot be read: it may be somebody's.
    """
    now_unix_s = clock.unix_s()
    return frozenset(
        pinned_uid(run, key)
        for key, pin in await list_pins(store, run)
        if now_unix_s < pin.expires_unix_s + PIN_GRACE_S
    )


def pinned_uid(run: str, key: Key) -> str:
    """Return the uid of the checkpoint that the pin under ``key`` is on."""
    try:
        return check_uid(key.removeprefix(pins_prefix(run)).partition("/")[0])
    except ValueError as error:
        raise IntegrityError(f"{key}: not a name that ckptstore gives: {error}") from error


async def _refuse_retired(store: PinStore, run: str, uid: str) -> None:
    """Raise ``CheckpointNotFoundError`` if retention has let go of this checkpoint.

    One that is still the latest, or tagged, may be read all the same: whoever marked it did
    not know that the newest incarnation went on from it, or that it had a tag, but looks again
    before deleting.
    """
    if not await is_retired(store, run, uid):
        return
    latest = await latest_commit(store, run)
    is_latest = latest is not None and latest.attempt.uid == uid
    if not is_latest and uid not in (await list_tags(store, run)).values():
        raise removed(run, uid)


class _OwnPin:
    """A pin, from before it is put until after it is gone."""

    def __init__(self, store: PinStore, run: str, uid: str, clock: Clock, holder: str) -> None:
        self._store = store
        self._run = run
        self._uid = uid
        self._clock = clock
        self._holder = holder
        self._key = pin_key(run, uid, secrets.token_hex(8))
        self._pinned_unix_s = clock.unix_s()
        self._may_write = True

    async def put(self) -> None:
        try:
            await self._write()
        except (PermissionDeniedError, LocalResourceError) as error:
            self._may_write = False
            logger.warning(
                "run %s: checkpoint %s is read without a pin, because this store cannot be "
                "written to (%s); if retention removes it meanwhile, reading it will fail",
                self._run,
                self._uid,
                error,
            )

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Keep the pin from expiring while the block runs."""
        renewing = asyncio.ensure_future(self._renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def remove(self) -> None:
        """Take the pin away, whatever happens meanwhile; one that stays expires by itself."""
        if not self._may_write:
            return

        async def unpin() -> None:
            try:
                async with asyncio.timeout(UNPIN_S_MAX):
                    await self._store.delete(self._key)
            except (CkptStoreError, TimeoutError) as error:
                logger.info("%s could not be removed: %s", self._key, str(error) or "no answer")

        await asyncio.shield(asyncio.ensure_future(unpin()))

    async def _renew(self) -> None:
        while self._may_write:
            await asyncio.sleep(PIN_S / 3)
            try:
                await self._write()
            except CkptStoreError as error:
                logger.warning("%s could not be renewed: %s", self._key, error)

    async def _write(self) -> None:
        pin = Pin(
            run=self._run,
            uid=self._uid,
            holder=self._holder,
            pinned_unix_s=self._pinned_unix_s,
            expires_unix_s=self._clock.unix_s() + PIN_S,
        )
        await self._store.put(self._key, encode_record(pin))
