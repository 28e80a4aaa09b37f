"""``ckptstore gc``: retention, and what saves that failed left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes, parse_seconds
from ckptstore.errors import UsageError
from ckptstore.location import Latest, parse_store

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.cli.targets import Target
    from ckptstore.gc.execute import CollectionReport
    from ckptstore.gc.plan import CollectionPlan, Garbage
    from ckptstore.gc.policy import RetentionPolicy

COLUMNS = ("ACTION", "RUN", ">STEP", ">SIZE", ">OBJECTS", ">UPLOADS", "UID", "WHY")


async def gc(
    command: Command,
    url: Annotated[str, typer.Argument(metavar="STORE[/RUN]", help="A store, or one run of it.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete; without it, only say what would be deleted.")
    ] = False,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", metavar="N", min=1, help="Keep the newest N.")
    ] = None,
    keep_every: Annotated[
        int | None,
        typer.Option("--keep-every", metavar="K", min=1, help="Keep steps that K divides."),
    ] = None,
    keep_best: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-best",
            metavar="METRIC:N",
            help="Keep the N lowest by a metric; METRIC:N:max the N highest; repeat.",
        ),
    ] = None,
    keep_tag: Annotated[
        bool, typer.Option("--keep-tag", help="Keep tagged ones only, if no other rule is given.")
    ] = False,
    only_verified: Annotated[
        bool,
        typer.Option("--only-verified", help="Count only checkpoints that verify found intact."),
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="How old data must be that no save began."
        ),
    ] = "24h",
) -> int:
    """Delete what nobody needs: checkpoints that no rule keeps, and leftovers of failed saves.

    Without a --keep option, every committed checkpoint is kept. With some, those are kept that
    any of them keeps, and in any case the latest, what the newest start of the job went on
    from, whatever has a tag, and whatever is being read or copied.

    Leftovers are data and open multipart uploads of aborted saves, and of saves that nobody
    decided by their deadline: these are settled first, as by resolve. A save that is under way
    is never touched.

    With --only-verified the rules count those alone that a full verify found intact; what is newer
    than the newest of them stays until it was verified.

    Only says what it would do, and why, unless --yes is given.
    """
    from ckptstore.gc.policy import RetentionPolicy, parse_keep_best

    policy = RetentionPolicy(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=tuple(map(parse_keep_best, keep_best or ())),
        keep_tagged=keep_tag,
        only_verified=only_verified,
    )
    return await _collect(command, url, policy, parse_seconds(older_than), yes=yes)


async def _collect(
    command: Command, url: str, policy: RetentionPolicy, older_than_s: float, *, yes: bool
) -> int:
    from ckptstore.cli.progress import shown
    from ckptstore.cli.targets import opened_target
    from ckptstore.clock import SystemClock
    from ckptstore.gc.execute import collect
    from ckptstore.gc.plan import CollectionPlan
    from ckptstore.gc.survey import plan_collection
    from ckptstore.load import find_checkpoint
    from ckptstore.opening import existing_record

    clock = SystemClock()
    async with command.deadline.enforce(f"collecting {url}"), opened_target(command, url) as target:
        location = target.run.store if target.run else parse_store(url)
        record = await existing_record(target.store, location)
        plan = await plan_collection(
            target.store,
            _run_of(target, url),
            policy,
            record=record,
            clock=clock,
            orphans_older_than_s=older_than_s,
        )
        if target.run and plan == CollectionPlan():
            await find_checkpoint(target.store, target.run.run, Latest())  # Says there is none.
        if not yes:
            return _say_plan(command.output, plan)
        async with shown(command.output, "gc") as progress:
            report = await collect(
                target.store, plan, record=record, clock=clock, progress=progress
            )
    return _say_report(command.output, plan, report)


def _run_of(target: Target, url: str) -> str | None:
    if target.run is None:
        return None
    if target.run.selector != Latest():
        raise UsageError(f"{url}: gc takes a whole run or store; leave the @ away")
    return target.run.run


def _say_plan(output: Output, plan: CollectionPlan) -> int:
    _say_rows(output, [*(_garbage("delete", one) for one in plan.garbage), *_the_rest(plan)])
    attempts = len(plan.garbage)
    text = "there is nothing to delete"
    if attempts:
        text = f"would delete {_how_much(plan, attempts)}; run again with --yes to do so"
    output.summary(text, exit_code=exit_codes.OK, dry_run=True, **_totals(plan, plan, attempts))
    return exit_codes.OK


def _say_report(output: Output, plan: CollectionPlan, report: CollectionReport) -> int:
    rows = [_garbage("deleted", one) for one in report.collected]
    rows += [_garbage("spared", one.garbage, one.reason) for one in report.spared]
    rows += [_garbage("failed", garbage, str(error)) for garbage, error in report.failed]
    _say_rows(output, [*rows, *_the_rest(plan)])
    code = exit_codes.worst(exit_codes.code_of(error) for _, error in report.failed)
    attempts = len(report.collected)
    text = f"deleted {_how_much(report, attempts)}"
    if report.failed:
        text += f"; {counted(len(report.failed), 'attempt')} could not be: run gc again"
    output.summary(
        text,
        exit_code=code,
        dry_run=False,
        **_totals(plan, report, attempts),
        spared=len(report.spared),
        failed=len(report.failed),
    )
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is, or would be, done to what, and why."""

    action: str
    run: str | None = None
    step: int | None = None
    uid: str | None = None
    key: str | None = None  # Of an object that belongs to no attempt.
    why: str
    objects: int | None = None
    bytes: int
    uploads: int = 0

    def cells(self) -> tuple[str, ...]:
        return (
            self.action,
            self.run or "-",
            "-" if self.step is None else str(self.step),
            human_bytes(self.bytes),
            "-" if self.objects is None else str(self.objects),
            str(self.uploads),
            self.uid or self.key or "-",
            self.why,
        )


def _garbage(action: str, garbage: Garbage, why: str = "") -> Row:
    return Row(
        action=action,
        run=garbage.run,
        step=garbage.step,
        uid=garbage.uid,
        why=why or garbage.why.value,
        objects=garbage.objects,
        bytes=garbage.bytes,
        uploads=len(garbage.uploads),
    )


def _the_rest(plan: CollectionPlan) -> Iterator[Row]:
    for kept in plan.kept:
        why = "; ".join(kept.reasons)
        yield Row(
            action="keep", run=kept.run, step=kept.step, uid=kept.uid, why=why, bytes=kept.bytes
        )
    for left in plan.left_alone:
        yield Row(
            action="leave",
            run=left.run,
            uid=left.uid,
            key=left.key,
            why=left.reason,
            objects=left.objects,
            bytes=left.bytes,
            uploads=left.uploads,
        )


def _say_rows(output: Output, rows: Sequence[Row]) -> None:
    for row in rows:
        output.record("item", **asdict(row))
    if rows:
        output.table(COLUMNS, [row.cells() for row in rows])


def _how_much(what: CollectionPlan | CollectionReport, attempts: int) -> str:
    return (
        f"{human_bytes(what.bytes)} in {counted(what.objects, 'object')} and "
        f"{counted(what.uploads, 'open upload')} of {counted(attempts, 'attempt')}"
    )


def _totals(
    plan: CollectionPlan, what: CollectionPlan | CollectionReport, attempts: int
) -> dict[str, int]:
    return {
        "attempts": attempts,
        "objects": what.objects,
        "bytes": what.bytes,
        "uploads": what.uploads,
        "kept": len(plan.kept),
        "left_alone": len(plan.left_alone),
    }
