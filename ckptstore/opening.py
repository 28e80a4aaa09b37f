"""From a URL to a store ready for use: the only place that knows the order of the layers."""

from __future__ import annotations

import os
import platform
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version

from ckptstore.backends.local import LocalStore
from ckptstore.backends.memory import named_memory_store
from ckptstore.clock import Clock
from ckptstore.commit.standing import put_standing
from ckptstore.descriptors import accounted, fitting
from ckptstore.errors import (
    CheckpointNotFoundError,
    ObjectExistsError,
    ObjectNotFoundError,
    SettingsError,
)
from ckptstore.layers.limit import LimitLayer
from ckptstore.layers.prefix import PrefixLayer
from ckptstore.layers.retry import RetryLayer
from ckptstore.layers.throttle import ThrottleLayer
from ckptstore.layers.timeout import TimeoutLayer
from ckptstore.location import StoreLocation
from ckptstore.manifest.codec import decode_store, encode_record
from ckptstore.manifest.layout import STORE_RECORD_KEY
from ckptstore.manifest.model import StoreRecord
from ckptstore.probe.checksums import wrong_part
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.types import CreateOnly, parse_key


@asynccontextmanager
async def opened_store(location: StoreLocation, settings: Settings) -> AsyncIterator[ObjectStore]:
    """Open the store with all its layers on the running loop, and close it on every path.

    Fewer requests go at a time where fewer descriptors are left than that takes, and it is
    said if any were forgotten in the end.
    """
    async with opened(location, settings) as ends:
        yield ends.store


@dataclass(frozen=True, slots=True)
class Opened:
    """A store with all its layers, the backend under them, and where in it the store begins."""

    store: ObjectStore
    backend: ObjectStore
    prefix: str


@asynccontextmanager
async def opened(location: StoreLocation, settings: Settings) -> AsyncIterator[Opened]:
    """Like ``opened_store``, for who looks beneath the layers: ``ckptstore probe``."""
    fit = fitting(settings.request.in_flight_max)
    settings = replace(settings, request=replace(settings.request, in_flight_max=fit))
    prefix = "" if location.scheme == "file" else location.prefix  # A directory is all there is.
    with accounted(f"store {location}"):
        backend = await _backend(location, settings)
        store = layered(backend, prefix, settings)
        try:
            yield Opened(store, backend, prefix)
        finally:
            await store.aclose()


def layered(
    backend: ObjectStore, prefix: str, settings: Settings, *, rng: random.Random | None = None
) -> ObjectStore:
    """Put the layers around a backend, outermost last; ``rng`` jitters the retries.

    Retry stands outside the limit, so that a request that waits for its next try holds no
    place; the pace inside the limit, so that only so many wait for their turn; the time limit
    inside all of them, so that it counts for the request alone. Why, and what else was
    considered: ``design/0004-layer-order.md``.
    """
    store = PrefixLayer(backend, prefix) if prefix else backend
    store = TimeoutLayer(store, settings.request)
    store = ThrottleLayer(store)
    store = LimitLayer(store, settings.request.in_flight_max)
    return RetryLayer(store, settings.retry, rng=rng)


async def existing_record(store: ObjectStore, location: StoreLocation) -> StoreRecord:
    """Return what the store says of itself, or raise because there is no store here."""
    try:
        return decode_store(await store.get(STORE_RECORD_KEY), STORE_RECORD_KEY)
    except ObjectNotFoundError as error:
        raise CheckpointNotFoundError(
            f"{location} is not a ckptstore store: it has no {STORE_RECORD_KEY}; check the URL "
            "(a store is what a run lies in: STORE/RUN), or save something there first"
        ) from error


async def prepared_record(store: ObjectStore, *, clock: Clock) -> StoreRecord:
    """Return what the store says of itself; the first writer of a store finds it out.

    Whether the store keeps put-if-absent is proved with two puts of one key, because some
    S3-compatible servers answer 200 to both; whether it looks at checksums, with a part sent
    with a wrong one. ``ckptstore probe`` looks into much more; this is what a save depends on.
    """
    try:
        return decode_store(await store.get(STORE_RECORD_KEY), STORE_RECORD_KEY)
    except ObjectNotFoundError:
        pass
    create_only = store.capabilities.create_only and await _keeps_create_only(store)
    record = StoreRecord(
        store_id=secrets.token_hex(16),
        fan_out=store.capabilities.fan_out,
        create_only=create_only,
        created_unix_s=clock.unix_s(),
        created_by=f"ckptstore {version('ckptstore')} on {platform.node()}",
        checksums=await _checks_what_arrives(store),
    )
    data = await put_standing(store, STORE_RECORD_KEY, encode_record(record))
    return decode_store(data, STORE_RECORD_KEY)


async def _keeps_create_only(store: ObjectStore) -> bool:
    key = parse_key(f"probe/{secrets.token_hex(16)}")
    try:
        await put_standing(store, key, b"first")
        try:
            await store.put(key, b"second", mode=CreateOnly())
        except ObjectExistsError:
            return True
        return False
    finally:
        await store.delete(key)


async def _checks_what_arrives(store: ObjectStore) -> bool | None:
    key = parse_key(f"probe/{secrets.token_hex(16)}")
    upload_id = await store.multipart_create(key)
    try:
        return (await wrong_part(store, key, upload_id)).holds
    finally:
        await store.multipart_abort(key, upload_id)


async def _backend(location: StoreLocation, settings: Settings) -> ObjectStore:
    match location.scheme:
        case "s3":
            from ckptstore.backends.s3.store import open_s3_store

            access = settings.s3.with_environment(os.environ)
            return await open_s3_store(location.container, settings.request, access)
        case "gs":
            return await _gcs(location.container, settings)
        case "az" | "abfss" | "https":
            return await _azure(location, settings)
        case "memory":
            return named_memory_store(location.container)
        case _:
            return LocalStore(location.prefix, fsync=settings.local.fsync)


async def _gcs(bucket: str, settings: Settings) -> ObjectStore:
    try:
        from ckptstore.backends.gcs.store import open_gcs_store
    except ImportError as error:
        raise SettingsError(
            f"gs:// needs packages that are not installed ({error}): pip install 'ckptstore[gcs]'"
        ) from error
    access = settings.gcs.with_environment(os.environ)
    return await open_gcs_store(bucket, settings.request, access)


async def _azure(location: StoreLocation, settings: Settings) -> ObjectStore:
    try:
        from ckptstore.backends.azure.access import access_of
        from ckptstore.backends.azure.store import open_azure_store
    except ImportError as error:
        raise SettingsError(
            f"{location.scheme}:// needs packages that are not installed ({error}): "
            "pip install 'ckptstore[azure]'"
        ) from error
    return await open_azure_store(access_of(location, os.environ), settings.request)
