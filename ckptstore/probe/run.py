"""All of it, one after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from ckptstore.errors import CkptStoreError, StoreError
from ckptstore.probe import checksums, clock, conditional, listing, multipart, reading
from ckptstore.probe.finding import Check, Finding, Outcome, Promise, Verdict, judged
from ckptstore.probe.scratch import Scratch, scratch
from ckptstore.probe.surroundings import access_of, descriptors, recorded
from ckptstore.probe.throughput import measured
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore

CHECKS: Final[tuple[Check, ...]] = (
    *reading.CHECKS,
    *conditional.CHECKS,
    *checksums.CHECKS,
    *multipart.CHECKS,
    *listing.CHECKS,
    *clock.CHECKS,
)
_CLEAN: Final = Promise(
    "cleaned_up",
    "this probe",
    "it took away all that it wrote",
    "remove what is left by hand",
    StoreError,
)


async def probe_store(
    store: ObjectStore,
    backend: ObjectStore,
    *,
    bucket_prefix: str = "",
    scheme: str,
    settings: Settings,
    environment: Mapping[str, str],
    quick: bool = False,
) -> AsyncGenerator[Finding, None]:
    """Try every promise of the contract on a store, and yield what was found as it is.

    Everything is written under ``probe/`` and a nonce, and is gone when this ends, however it
    ends; what could not be removed is named. ``quick`` leaves the speed alone. Raises what the
    very first write raises, because then there is nothing to find out: no bucket, no access, a
    clock that is off. Close the iterator if you leave it early.
    """
    findings: list[Finding] = []
    left: list[str] = []
    async for finding in access_of(backend, scheme, environment):
        yield finding
    yield descriptors(settings.request.in_flight_max)
    async with scratch(store, backend, bucket_prefix, left) as area:
        await store.put(area.key("first"), b"may I?")
        for check in CHECKS:
            findings.append(await _found(check, area))
            yield findings[-1]
        if not quick:
            async for finding in measured(area):
                yield finding
    async for finding in recorded(store, Verdict(tuple(findings))):
        yield finding
    yield judged(_CLEAN, Outcome(not left, ", ".join(left)))


async def _found(check: Check, area: Scratch) -> Finding:
    """Run one check. What kept it from an answer says nothing about the others."""
    try:
        outcome = await check.run(area)
    except CkptStoreError as error:
        outcome = Outcome(None, f"could not be told: {error}", error)
    return judged(check.promise, outcome)
