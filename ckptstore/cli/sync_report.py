"""What ``sync`` says: what it would do, or what it did, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from ckptstore.cli import exit_codes
from ckptstore.cli.output import Output
from ckptstore.cli.units import counted, human_bytes, human_seconds
from ckptstore.errors import CkptStoreError
from ckptstore.gc.plan import CollectionPlan, Garbage
from ckptstore.manifest.layout import parse_uid
from ckptstore.sync.plan import Action

if TYPE_CHECKING:
    from ckptstore.sync.execute import SyncReport
    from ckptstore.sync.plan import RunPlan

COLUMNS = ("ACTION", "RUN", ">STEP", ">SIZE", ">OBJECTS", "UID", "WHY")
Deletion: TypeAlias = CollectionPlan | CkptStoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is, or would be, done to a checkpoint, and why."""

    action: str  # copy, skip, delete, keep or fail.
    run: str | None
    uid: str | None = None
    bytes: int = 0
    objects: int = 0
    reason: str = ""

    @property
    def step(self) -> int | None:
        return parse_uid(self.uid).step if self.uid else None

    def cells(self) -> tuple[str, ...]:
        return (
            self.action,
            self.run or "-",
            "-" if self.step is None else str(self.step),
            human_bytes(self.bytes),
            str(self.objects),
            self.uid or "-",
            self.reason or "-",
        )


def _say_rows(output: Output, rows: Sequence[Row]) -> None:
    for row in rows:
        output.record("op", step=row.step, **asdict(row))


def say_plan(output: Output, plans: Sequence[RunPlan], deletion: Deletion | None) -> int:
    """Say what would be done, as things are now."""
    rows = [row for plan in plans for row in _planned(plan)]
    errors = [error for plan in plans for error in plan.troubles()]
    if isinstance(deletion, CkptStoreError):
        errors.append(deletion)
    elif deletion is not None:
        rows += [_deleted(garbage) for garbage in deletion.garbage]
        rows += [_kept(kept.run, kept.uid, "; ".join(kept.reasons)) for kept in deletion.kept]
    _say_rows(output, rows)
    if rows:
        output.table(COLUMNS, [row.cells() for row in rows])
    for error in errors:
        output.error(error)
    code = exit_codes.worst(map(exit_codes.code_of, errors))
    copies = [row for row in rows if row.action == "copy"]
    deletes = [row for row in rows if row.action == "delete"]
    total_bytes = sum(row.bytes for row in copies)
    output.summary(
        f"would copy {counted(len(copies), 'checkpoint')}, {human_bytes(total_bytes)} in "
        f"{counted(sum(row.objects for row in copies), 'object')}"
        + (f", and delete {counted(len(deletes), 'checkpoint')}" if deletes else ""),
        exit_code=code,
        dry_run=True,
        checkpoints=len(copies),
        bytes=total_bytes,
        deleted=len(deletes),
        failed=len(errors),
    )
    return code


def _planned(plan: RunPlan) -> Iterator[Row]:
    if plan.trouble:
        yield Row(action="fail", run=plan.run, reason="the whole run: see below")
        return
    for item in plan.items:
        is_copy = item.action is Action.COPY
        yield Row(
            action="copy" if is_copy else "fail" if item.trouble else "skip",
            run=plan.run,
            uid=item.uid,
            bytes=item.bytes,
            objects=item.objects,
            reason="" if is_copy else item.action.value,
        )


def _deleted(garbage: Garbage) -> Row:
    return Row(
        action="delete",
        run=garbage.run,
        uid=garbage.uid,
        bytes=garbage.bytes,
        objects=garbage.objects,
        reason="gone at the source",
    )


def _kept(run: str, uid: str, reason: str) -> Row:
    return Row(action="keep", run=run, uid=uid, reason=reason)


def say_report(output: Output, plans: Sequence[RunPlan], report: SyncReport, took_s: float) -> int:
    there = sum(len(plan.of(Action.THERE)) for plan in plans if not plan.trouble)
    let_go = sum(len(plan.of(Action.LET_GO)) for plan in plans if not plan.trouble)
    _say_rows(output, [*_done(plans, report), *map(_deleted, report.deleted)])
    for failure in report.failed:
        output.error(failure.error)
    code = exit_codes.worst(exit_codes.code_of(failure.error) for failure in report.failed)
    new = len(report.copied)
    text = (
        f"synced {counted(new + there, 'checkpoint')} ({new} new, {there} already there), "
        f"{human_bytes(report.bytes_sent)} in {human_seconds(took_s)}, "
        f"{human_bytes(report.bytes_verified)} verified, {len(report.failed)} failed"
    )
    for count, what in (
        (report.not_tried, "not tried"),
        (let_go, "let go of there"),
        (len(report.deleted), "deleted"),
        (len(report.spared), "kept although gone from the source"),
    ):
        text += f", {count} {what}" if count else ""
    output.summary(
        text,
        exit_code=code,
        checkpoints=new + there,
        new=new,
        already_there=there,
        let_go=let_go,
        not_tried=report.not_tried,
        failed=len(report.failed),
        bytes=report.bytes_sent,
        bytes_verified=report.bytes_verified,
        deleted=len(report.deleted),
        elapsed_s=round(took_s, 3),
    )
    return code


def _done(plans: Sequence[RunPlan], report: SyncReport) -> Iterator[Row]:
    for copied in report.copied:
        attempt = copied.commit.attempt
        yield Row(
            action="copy",
            run=attempt.run,
            uid=attempt.uid,
            bytes=copied.bytes_sent,
            objects=copied.objects_sent,
        )
    for plan in plans:
        for item in plan.items:
            if item.action in (Action.THERE, Action.LET_GO) and not plan.trouble:
                yield Row(action="skip", run=plan.run, uid=item.uid, reason=item.action.value)
    for failure in report.failed:
        yield Row(action="fail", run=failure.run, uid=failure.uid, reason=str(failure.error))
    for run, uid, reason in report.spared:
        yield _kept(run, uid, reason)
