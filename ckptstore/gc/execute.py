"""Carry out a plan: mark, look who needs it, delete. In this order, or data is lost."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ckptstore.clock import Clock
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.commit.retire import retire, unmark_orphan
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import CkptStoreError, ObjectNotFoundError
from ckptstore.gc.plan import CollectionPlan, Garbage, Why
from ckptstore.gc.protect import Protected, find_protected
from ckptstore.manifest.layout import begin_key, decision_key
from ckptstore.manifest.model import Abort, StoreRecord
from ckptstore.progress import Progress
from ckptstore.store import ObjectStore, SupportsHead
from ckptstore.types import ObjectInfo, UploadInfo

logger = logging.getLogger(__name__)

ATTEMPTS_AT_ONCE_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Spared:
    """What the plan wanted to delete and the collection did not, and why."""

    garbage: Garbage
    reason: str


@dataclass(slots=True)
class CollectionReport:
    """What a collection did. What is in ``failed`` may be partly deleted; run it again."""

    collected: list[Garbage] = field(default_factory=list)
    spared: list[Spared] = field(default_factory=list)
    failed: list[tuple[Garbage, CkptStoreError]] = field(default_factory=list)

    @property
    def objects(self) -> int:
        return sum(garbage.objects for garbage in self.collected)

    @property
    def bytes(self) -> int:
        return sum(garbage.bytes for garbage in self.collected)

    @property
    def uploads(self) -> int:
        return sum(len(garbage.uploads) for garbage in self.collected)


async def collect(
    store: ObjectStore,
    plan: CollectionPlan,
    *,
    record: StoreRecord,
    clock: Clock,
    progress: Progress | None = None,
) -> CollectionReport:
    """Delete what the plan says is garbage, unless somebody needs it by now.

    A plan may be old: what is pinned, tagged or the latest is found out anew. Whatever cannot
    be found out is raised before anything of that run is deleted. A deletion that fails is
    reported and leaves the others alone. Decisions and marks of retention stay for ever: a
    process that wakes up late must find them.
    """
    progress = progress or Progress()
    progress.objects_total += plan.objects
    progress.bytes_total += plan.bytes
    collection = _Collection(store, record, clock, progress)
    by_run: dict[str, list[Garbage]] = defaultdict(list)
    for garbage in plan.garbage:
        by_run[garbage.run].append(garbage)
    for run, wanted in by_run.items():
        await collection.collect_run(run, wanted)
    return collection.report


class _Collection:
    """A collection under way."""

    def __init__(
        self, store: ObjectStore, record: StoreRecord, clock: Clock, progress: Progress
    ) -> None:
        self._store = store
        self._record = record
        self._clock = clock
        self._progress = progress
        self.report = CollectionReport()

    async def collect_run(self, run: str, wanted: Iterable[Garbage]) -> None:
        settled = [garbage for garbage in wanted if await self._is_settled(garbage)]
        # What is known to be needed is not even marked; it is the second look that counts:
        # with the marks there, who pins from now on sees them, and who did before is seen.
        unneeded = await self._unneeded(run, settled)
        await map_concurrently(self._mark, unneeded)
        cleared = await self._unneeded(run, unneeded)
        for garbage in unneeded:
            if garbage.why is Why.ORPHAN and garbage not in cleared:
                await unmark_orphan(self._store, run, garbage.uid)
        await map_concurrently(self._delete, cleared, in_flight_max=ATTEMPTS_AT_ONCE_MAX)

    async def _is_settled(self, garbage: Garbage) -> bool:
        """Decide an attempt that nobody decided; true if nothing of it will be a checkpoint."""
        if garbage.attempt is None:
            return True
        decision = await resolve_attempt(
            self._store,
            garbage.attempt,
            create_only=self._record.create_only,
            clock=self._clock,
        )
        if isinstance(decision, Abort):
            return True
        self._spare(garbage, "all its ranks are ready: committed" if decision else "under way")
        return False

    async def _mark(self, garbage: Garbage) -> None:
        if garbage.why in (Why.RETENTION, Why.ORPHAN):
            await retire(
                self._store,
                garbage.run,
                garbage.uid,
                reason=garbage.why.value,
                clock=self._clock,
            )

    async def _unneeded(self, run: str, wanted: Iterable[Garbage]) -> list[Garbage]:
        """Return what nobody needs; the rest is spared."""
        protected = await find_protected(self._store, run, clock=self._clock)
        unneeded: list[Garbage] = []
        for garbage in wanted:
            reason = await self._needed_by(garbage, protected)
            if reason is None:
                unneeded.append(garbage)
            else:
                self._spare(garbage, reason)
        return unneeded

    async def _needed_by(self, garbage: Garbage, protected: Protected) -> str | None:
        uid = garbage.uid
        match garbage.why:
            case Why.RETENTION | Why.RETIRED if uid in protected.reasons:
                return "; ".join(protected.reasons[uid])
            case Why.ORPHAN | Why.LEFT_OPEN if uid in protected.pinned:
                return "somebody copies it"
            case Why.ORPHAN if await _has_appeared(self._store, garbage.run, uid):
                return "it is an attempt by now"
            case _:
                return None

    def _spare(self, garbage: Garbage, reason: str) -> None:
        self.report.spared.append(Spared(garbage, reason))

    async def _delete(self, garbage: Garbage) -> None:
        """Delete data first and records last: what a failure leaves still says what it is."""
        try:
            await map_concurrently(self._abort_upload, garbage.uploads)
            await map_concurrently(self._delete_object, garbage.data)
            await map_concurrently(self._delete_object, garbage.records)
            if garbage.why is Why.ORPHAN:
                await unmark_orphan(self._store, garbage.run, garbage.uid)
        except CkptStoreError as error:
            logger.warning("run %s: collecting %s failed: %s", garbage.run, garbage.uid, error)
            self.report.failed.append((garbage, error))
        else:
            self.report.collected.append(garbage)

    async def _abort_upload(self, upload: UploadInfo) -> None:
        await self._store.multipart_abort(upload.key, upload.upload_id)

    async def _delete_object(self, info: ObjectInfo) -> None:
        await self._store.delete(info.key)
        self._progress.objects_done += 1
        self._progress.bytes_done += info.size_bytes


async def _has_appeared(store: SupportsHead, run: str, uid: str) -> bool:
    for key in (begin_key(run, uid), decision_key(run, uid)):
        try:
            await store.head(key)
        except ObjectNotFoundError:
            continue
        return True
    return False
