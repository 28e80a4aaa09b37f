"""What lies in the store after a trial, seen by a process that had no part in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ckptstore.clock import SystemClock
from ckptstore.commit.catalog import list_undecided, read_decision
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import CheckpointNotFoundError, CkptStoreError
from ckptstore.gc.execute import collect
from ckptstore.gc.plan import Why
from ckptstore.gc.policy import RetentionPolicy
from ckptstore.gc.survey import plan_collection
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import ByUid, Latest, StoreLocation
from ckptstore.manifest.layout import DATA_PREFIX, owner_of_data, run_prefix
from ckptstore.manifest.model import Commit
from ckptstore.opening import opened_store, prepared_record
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.store import ObjectStore
from tests.crashes.plan import WORLD_SIZE
from tests.crashes.rank import ABORTED, COMMITTED
from tests.crashes.shards import SETTINGS, shards_of

T = TypeVar("T")


@dataclass(frozen=True)
class Expected:
    """What must be true by now: how attempts ended (``None``: either way), and what is latest.

    ``killed`` says of which attempts and ranks an upload may have been left open, and
    ``collected`` which checkpoints retention has let go of.
    """

    run: str
    endings: Mapping[str, str | None]
    latest_uid: str
    killed: frozenset[tuple[str, int]] = frozenset()
    collected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Findings:
    violations: tuple[str, ...]
    endings: Mapping[str, str]
    uploads_of_killed: int


def inspect(location: StoreLocation, expected: Expected) -> Findings:
    """Settle what is undecided, then hold everything against what must be true."""
    return _with_store(location, lambda store: inspected(store, location, expected))


def resolve(location: StoreLocation, run: str) -> dict[str, str | None]:
    """Resolve what can be by now; ``None`` for what may still be under way."""
    return _with_store(location, lambda store: _resolve(store, run))


def collect_garbage(location: StoreLocation, run: str) -> frozenset[str]:
    """Keep the newest checkpoint, delete all that may go, and return which checkpoints went."""
    return _with_store(location, lambda store: _collect_garbage(store, run))


def uploads_after_collection(location: StoreLocation, run: str) -> int:
    """Collect garbage, and return how many uploads of data are open even then."""

    async def work(store: ObjectStore) -> int:
        await _collect_garbage(store, run)
        return len(await _open_uploads(store, run))

    return _with_store(location, work)


def listing(location: StoreLocation, run: str) -> dict[str, tuple[int, str | None]]:
    """Return size and etag of every object of a run."""
    return _with_store(location, lambda store: _listing(store, run))


def _with_store(location: StoreLocation, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    async def opened() -> T:
        async with opened_store(location, SETTINGS) as store:
            return await work(store)

    return asyncio.run(opened())


async def _resolve(store: ObjectStore, run: str) -> dict[str, str | None]:
    clock = SystemClock()
    record = await prepared_record(store, clock=clock)
    endings: dict[str, str | None] = {}
    for attempt in await list_undecided(store, run):
        decision = await resolve_attempt(
            store, attempt, create_only=record.create_only, clock=clock
        )
        ending = COMMITTED if isinstance(decision, Commit) else ABORTED
        endings[attempt.uid] = ending if decision else None
    return endings


async def _collect_garbage(store: ObjectStore, run: str) -> frozenset[str]:
    clock = SystemClock()
    record = await prepared_record(store, clock=clock)
    policy = RetentionPolicy(keep_last=1)
    plan = await plan_collection(store, run, policy, record=record, clock=clock)
    report = await collect(store, plan, record=record, clock=clock)
    assert not report.failed, report.failed
    return frozenset(one.uid for one in report.collected if one.why is Why.RETENTION)


async def _listing(store: ObjectStore, run: str) -> dict[str, tuple[int, str | None]]:
    found: dict[str, tuple[int, str | None]] = {}
    for prefix in (run_prefix(run), DATA_PREFIX):
        async for info in store.list_objects(prefix):
            if f"/{run}/" in f"/{info.key}":
                found[info.key] = (info.size_bytes, info.version.etag)
    return found


async def inspected(store: ObjectStore, location: StoreLocation, expected: Expected) -> Findings:
    """Do what ``inspect`` says, for callers with a loop of their own."""
    violations: list[str] = []
    undecided = [uid for uid, end in (await _resolve(store, expected.run)).items() if end is None]
    violations += [f"{uid} is undecided past its deadline" for uid in undecided]
    endings: dict[str, str] = {}
    for uid, ending in expected.endings.items():
        if uid in undecided:
            continue
        decision = await read_decision(store, expected.run, uid)
        endings[uid] = COMMITTED if isinstance(decision, Commit) else ABORTED
        if ending not in (None, endings[uid]):
            violations.append(f"{uid} was reported {ending} and is {endings[uid]}")
        if uid not in expected.collected:
            violations += await _misread(store, location, expected.run, uid, endings[uid])
    latest = await find_checkpoint(store, expected.run, Latest())
    if latest.attempt.uid != expected.latest_uid:
        violations.append(f"latest is {latest.attempt.uid}, not {expected.latest_uid}")
    uploads = await _open_uploads(store, expected.run)
    strays = [upload for upload in uploads if upload not in expected.killed]
    violations += [f"an upload of rank {rank} of {uid} was left open" for uid, rank in strays]
    return Findings(tuple(violations), endings, len(uploads) - len(strays))


async def _misread(
    store: ObjectStore, location: StoreLocation, run: str, uid: str, ending: str
) -> list[str]:
    """Return what is wrong with reading the attempt: all its bytes are there, or it is not."""
    try:
        commit = await find_checkpoint(store, run, ByUid(uid))
    except CheckpointNotFoundError:
        return [f"{uid} is committed and cannot be found"] if ending == COMMITTED else []
    if ending == ABORTED:
        return [f"{uid} was aborted and can be read"]
    try:
        manifest = await read_manifest(store, commit)
        targets = [bytearray(shard.size_bytes) for shard in manifest.shards]
        pairs = zip(manifest.shards, targets, strict=True)
        wanted = [Wanted(shard, 0, memoryview(target)) for shard, target in pairs]
        await CheckedReader(store, SETTINGS.transfer).read_wanted(wanted)
    except CkptStoreError as error:
        return [f"{uid} is committed and cannot be read: {error}"]
    shards = [shard for rank in range(WORLD_SIZE) for shard in shards_of(location, uid, rank)]
    if targets != [shard.content for shard in shards]:
        return [f"{uid} is committed and other bytes are read from it than were saved"]
    return []


async def _open_uploads(store: ObjectStore, run: str) -> list[tuple[str, int]]:
    """Return of which attempt and rank each open upload of data is."""
    found = []
    async for upload in store.list_uploads(DATA_PREFIX):
        owner, uid = owner_of_data(upload.key)
        if owner == run:
            found.append((uid, int(upload.key.rpartition("/")[2].partition("-")[0])))
    return found
