"""What surrounds a store: the way to it, this process, and what its own record says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from ckptstore.descriptors import described, fitting
from ckptstore.errors import (
    ObjectNotFoundError,
    UnsupportedVerbError,
)
from ckptstore.manifest.codec import decode_store
from ckptstore.manifest.layout import STORE_RECORD_KEY
from ckptstore.manifest.model import StoreRecord
from ckptstore.probe.finding import (
    Finding,
    Outcome,
    Promise,
    Verdict,
    doubted,
    judged,
    noted,
)
from ckptstore.store import SupportsAccess, SupportsGet

ACCESS: Final = "access"
# Read by other tools, and not by us nor by AWS's own.
ENDPOINTS_OF_OTHERS: Final = (
    "S3_ENDPOINT_URL",
    "S3_ENDPOINT",
    "AWS_ENDPOINT",
    "AWS_S3_ENDPOINT",
    "MINIO_ENDPOINT",
)
ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "az": ("AZURE_STORAGE_CONNECTION_STRING",),
}

_AS_RECORDED: Final = Promise(
    "record_create_only",
    "the store's record",
    "put-if-absent is still kept, as recorded",
    "writers believe the record: save to another store, or to a server that keeps it",
    UnsupportedVerbError,
)
_CHECKSUMS_KNOWN: Final = Promise(
    "record_checksums",
    "the store's record",
    "writers know that checksums are ignored",
    "the record does not say so, and what is saved is not read back: save to a new store",
    UnsupportedVerbError,
)


async def access_of(
    backend: object, scheme: str, environment: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """Yield who we are to the store and how we reach it, and what seems not to be meant."""
    if isinstance(backend, SupportsAccess):
        access = await backend.access()
        for name, detail in access.facts:
            yield noted(ACCESS, name.replace(" ", "_"), name, detail)
        for doubt in access.doubts:
            yield doubted(ACCESS, "doubt", "as it was meant", doubt)
    for name in _unused(scheme, environment):
        yield doubted(
            ACCESS, "unused_endpoint", f"{name} is used", f"{name} is set, and has no effect here"
        )


def _unused(scheme: str, environment: Mapping[str, str]) -> Iterator[str]:
    others = [name for own, names in ENDPOINTS.items() if own != scheme for name in names]
    if scheme in ENDPOINTS:
        yield from (name for name in (*ENDPOINTS_OF_OTHERS, *others) if environment.get(name))


def descriptors(in_flight_max: int) -> Finding:
    """Tell whether the requests that were asked for fit into what is left of descriptors."""
    fit = fitting(in_flight_max)
    promise = Promise(
        "descriptors",
        "this process",
        f"descriptors for {in_flight_max} requests at once",
        f"only {fit} requests go at a time",
    )
    return judged(promise, Outcome(fit >= in_flight_max, described()))


async def recorded(store: SupportsGet, verdict: Verdict) -> AsyncIterator[Finding]:
    """Yield where the store's own record, which writers go by, says otherwise."""
    try:
        record = decode_store(await store.get(STORE_RECORD_KEY), STORE_RECORD_KEY)
    except ObjectNotFoundError:
        yield noted(_AS_RECORDED.group, "record", "there is none yet", "nothing was saved here")
        return
    for finding in _compared(record, verdict):
        yield finding


def _compared(record: StoreRecord, verdict: Verdict) -> Iterator[Finding]:
    if record.checksums is not False and verdict.holds("checksum_of_part") is False:
        yield judged(_CHECKSUMS_KNOWN, Outcome(False, f"recorded by {record.created_by}"))
    kept = verdict.holds("create_only")
    if record.create_only and kept is False:
        yield judged(_AS_RECORDED, Outcome(False, f"recorded by {record.created_by}"))
    elif record.create_only or not kept:
        yield judged(_AS_RECORDED, Outcome(True))
    else:
        yield noted(
            _AS_RECORDED.group,
            "record_create_only",
            "put-if-absent is kept, but the record says not",
            "a new store, under another prefix, would use it",
        )
