"""Delete from the target what is gone at the source: through retention, and as carefully."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckptstore.clock import Clock
from ckptstore.errors import CkptStoreError, ConflictError
from ckptstore.gc.execute import collect
from ckptstore.gc.plan import CollectionPlan, Why
from ckptstore.gc.policy import Metrics, RetentionPolicy
from ckptstore.gc.survey import plan_collection
from ckptstore.manifest.model import StoreRecord
from ckptstore.store import ObjectStore
from ckptstore.sync.execute import Failure, SyncReport
from ckptstore.sync.plan import RunPlan

LET_GO: Final = frozenset({Why.RETENTION, Why.RETIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeepOthers(RetentionPolicy):
    """Keep all but what is gone."""

    gone: frozenset[str]

    def kept(
        self, checkpoints: Mapping[str, Metrics | None], verified: Collection[str] = ()
    ) -> dict[str, list[str]]:
        return {uid: ["not gone at the source"] for uid in checkpoints if uid not in self.gone}


async def plan_deletion(
    store: ObjectStore,
    plans: Sequence[RunPlan],
    *,
    max_delete: int,
    record: StoreRecord,
    clock: Clock,
) -> CollectionPlan:
    """Return what of the target to delete, and what of it must stay all the same. Reads only.

    Raises ``ConflictError``, for everything or nothing is deleted, if that is more than
    ``max_delete`` checkpoints.
    """
    count = sum(len(plan.gone) for plan in plans)
    if count > max_delete:
        raise ConflictError(
            f"{count} checkpoints are gone at the source, more than --max-delete {max_delete}: "
            "none was deleted; look at them with --dry-run, and allow more if that is right"
        )
    plan = CollectionPlan()
    for one in plans:
        gone = frozenset(commit.attempt.uid for commit in one.gone)
        if gone or one.target_retired:  # An earlier deletion may have left something of those.
            policy = _KeepOthers(gone=gone)
            found = await plan_collection(store, one.run, policy, record=record, clock=clock)
            plan = CollectionPlan(
                (
                    *plan.garbage,
                    *(g for g in found.garbage if g.why in (Why.RETENTION, Why.RETIRED)),
                ),
                (*plan.kept, *(kept for kept in found.kept if kept.uid in gone)),
            )
    return plan


async def delete_gone(
    store: ObjectStore,
    plans: Sequence[RunPlan],
    report: SyncReport,
    *,
    max_delete: int,
    record: StoreRecord,
    clock: Clock,
) -> None:
    """Delete what is gone, and add to the report what became of it.

    Nothing is deleted after any failure. Each checkpoint is marked first, then it is looked who
    needs it, and only then it is deleted: a reader that came before keeps what it reads.
    """
    if report.failed:
        return
    try:
        plan = await plan_deletion(store, plans, max_delete=max_delete, record=record, clock=clock)
        collected = await collect(store, plan, record=record, clock=clock)
    except CkptStoreError as error:
        report.failed.append(Failure(None, None, error))
        return
    report.deleted += collected.collected
    report.spared += [(kept.run, kept.uid, "; ".join(kept.reasons)) for kept in plan.kept]
    report.spared += [(one.garbage.run, one.garbage.uid, one.reason) for one in collected.spared]
    report.failed += [Failure(one.run, one.uid, error) for one, error in collected.failed]
