"""Plan and carry out a sync, run by run, the oldest checkpoint first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.clock import Clock, Deadline
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import (
    CheckpointNotFoundError,
    CkptStoreError,
    ConflictError,
    IntegrityError,
)
from ckptstore.gc.plan import Garbage
from ckptstore.manifest.model import StoreRecord
from ckptstore.progress import Progress
from ckptstore.settings import TransferSettings
from ckptstore.sync.plan import Action, RunPlan, due_claims, plan_sync
from ckptstore.sync.selection import Selection
from ckptstore.sync.survey import read_side
from ckptstore.sync.transfer import Copied, End, Transfer

logger = logging.getLogger(__name__)

RUNS_AT_ONCE_MAX = 8


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be done: for a checkpoint, without a ``uid`` for a run, or for all."""

    run: str | None
    uid: str | None
    error: CkptStoreError


@dataclass(slots=True)
class SyncReport:
    """What a sync did. It may be run again: what is done is not done twice."""

    copied: list[Copied] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    deleted: list[Garbage] = field(default_factory=list)
    spared: list[tuple[str, str, str]] = field(default_factory=list)  # Run, uid, and why.
    not_tried: int = 0  # Checkpoints that were to be copied when a failure ended it all.

    @property
    def bytes_sent(self) -> int:
        return sum(copied.bytes_sent for copied in self.copied)

    @property
    def bytes_verified(self) -> int:
        return sum(copied.bytes_verified for copied in self.copied)


async def plan_runs(
    source: End, target: End, runs: Sequence[str], selection: Selection
) -> list[RunPlan]:
    """Return what to do about each run. Reads only.

    What is wrong with one run alone is in its plan; whatever else fails is raised, so that
    nothing is ever decided on half a listing.
    """

    async def plan(run: str) -> RunPlan:
        try:
            theirs = await read_side(source.store, run, name=source.name)
            ours = await read_side(target.store, run, name=target.name)
        except IntegrityError as error:
            return RunPlan(run=run, claims={}, trouble=error)
        return plan_sync(run, theirs, ours, selection)

    return await map_concurrently(plan, runs, in_flight_max=RUNS_AT_ONCE_MAX)


async def carry_out(
    plans: Sequence[RunPlan],
    source: End,
    target: End,
    *,
    record: StoreRecord,
    clock: Clock,
    deadline: Deadline,
    settings: TransferSettings,
    progress: Progress | None = None,
) -> SyncReport:
    """Copy what the plans say, and report what failed.

    A checkpoint that is damaged, clashes, or was retired meanwhile leaves the others alone.
    Any other failure is that of a store and ends it all. ``record`` is the target's.
    """
    progress = progress or Progress()
    items = [item for plan in plans if not plan.trouble for item in plan.of(Action.COPY)]
    progress.objects_total += sum(item.objects for item in items)
    progress.bytes_total += sum(item.bytes for item in items)
    transfer = Transfer(
        source,
        target,
        record=record,
        clock=clock,
        settings=settings,
        progress=progress,
    )
    sync = _Sync(transfer, deadline)
    for plan in plans:
        await sync.run(plan)
    sync.report.not_tried = len(items) - sync.tried
    return sync.report


class _Sync:
    """A sync under way."""

    def __init__(self, transfer: Transfer, deadline: Deadline) -> None:
        self._transfer = transfer
        self._deadline = deadline
        self._over = False
        self.tried = 0
        self.report = SyncReport()

    async def run(self, plan: RunPlan) -> None:
        """Copy the oldest first: so the target's latest only ever moves on."""
        if plan.trouble:
            self._fail(plan.run, None, plan.trouble)
            return
        claims = _Claims(plan, self._transfer)
        for item in reversed(plan.items):
            if item.trouble:
                self._fail(plan.run, item.uid, item.trouble)
            elif item.action is Action.COPY and item.commit and not self._over:
                self.tried += 1
                try:
                    await claims.put_due()
                    copied = await self._transfer.copy_checkpoint(
                        item.commit, deadline=self._deadline
                    )
                    self.report.copied.append(copied)
                    claims.commits.add(item.uid)
                except CkptStoreError as error:
                    self._fail(plan.run, item.uid, error)
        if not self._over:
            try:
                await claims.put_due()
            except CkptStoreError as error:
                self._fail(plan.run, None, error)

    def _fail(self, run: str, uid: str | None, error: CkptStoreError) -> None:
        logger.info("run %s: %s was not copied: %s", run, uid or "it", error)
        self.report.failed.append(Failure(run, uid, error))
        alone = (IntegrityError, ConflictError, CheckpointNotFoundError)
        self._over = self._over or not isinstance(error, alone)


class _Claims:
    """The claims that the target lacks of a run, each put as soon as it may be there."""

    def __init__(self, plan: RunPlan, transfer: Transfer) -> None:
        self._plan = plan
        self._transfer = transfer
        self._there = set(plan.target_claims)
        self.commits = set(plan.target_commits)

    async def put_due(self) -> None:
        for number in due_claims(self._plan.claims, self._there, self.commits):
            await self._transfer.copy_claim(self._plan.claims[number])
            self._there.add(number)
