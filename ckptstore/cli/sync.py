"""``ckptstore sync``: checkpoints from one store to another, each of them whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.options import S3Writing
from ckptstore.errors import (
    CheckpointNotFoundError,
    CkptStoreError,
    PermissionDeniedError,
    UsageError,
)
from ckptstore.location import Latest, StoreLocation, parse_run, parse_store

if TYPE_CHECKING:
    from ckptstore.cli.sync_report import Deletion
    from ckptstore.sync.plan import RunPlan
    from ckptstore.sync.selection import Selection
    from ckptstore.sync.transfer import End


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Options that say how to reach either store, where that differs."""

    src_profile: Annotated[
        str | None, typer.Option("--src-profile", metavar="NAME", help="AWS profile for SRC.")
    ] = None
    src_endpoint_url: Annotated[
        str | None, typer.Option("--src-endpoint-url", metavar="URL", help="S3 endpoint of SRC.")
    ] = None
    dst_profile: Annotated[
        str | None, typer.Option("--dst-profile", metavar="NAME", help="AWS profile for DST.")
    ] = None
    dst_endpoint_url: Annotated[
        str | None, typer.Option("--dst-endpoint-url", metavar="URL", help="S3 endpoint of DST.")
    ] = None


async def sync(
    command: Command,
    source: Annotated[str, typer.Argument(metavar="SRC[/RUN]", help="A store, or one run of it.")],
    target: Annotated[
        str, typer.Argument(metavar="DST[/RUN]", help="A store, or the run of that name there.")
    ],
    newest: Annotated[
        int | None, typer.Option("--newest", metavar="N", min=1, help="Only the newest N.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="STEPS", help="Only these: 1000,2000 or 1000: or 1:9."),
    ] = None,
    every: Annotated[
        int | None, typer.Option("--every", metavar="K", min=1, help="Only steps that K divides.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete from DST what is gone from SRC.")
    ] = False,
    max_delete: Annotated[
        int,
        typer.Option(
            "--max-delete", metavar="N", min=0, help="If more than N are gone, delete none."
        ),
    ] = 5,
    *,
    sides: _Sides,
    s3: S3Writing,
) -> int:
    """Copy committed checkpoints from one store to another.

    A reader of DST sees a checkpoint once all of it is there, and never before. Every block is
    checked on the way, and nothing is staged on this machine. What is at DST already is not
    sent again, so an interrupted sync goes on where it ended. SRC and DST are two stores, or
    the run of one name in each.

    Of what --steps and --every choose, --newest is how many. --delete takes whole checkpoints
    away that SRC had and has no more, as gc does: never the latest, a tagged one, or one that is
    being read; never after any error; and if there are more than --max-delete, none.

    If jobs went on in both stores, so that one's checkpoints would displace the other's,
    nothing of that run is copied: exit code 10.

    --sse, --kms-key-id and --storage-class are for what is written to DST.
    """
    from ckptstore.sync.selection import Selection, parse_steps

    selection = Selection(newest=newest, steps=parse_steps(steps) if steps else (), every=every)
    reading = command.with_s3(
        profile=sides.src_profile,
        endpoint_url=sides.src_endpoint_url,
        request_payer=s3.request_payer,
    )
    writing = command.with_s3(
        profile=sides.dst_profile, endpoint_url=sides.dst_endpoint_url, **asdict(s3)
    )
    what = _What(selection=selection, delete=delete, max_delete=max_delete, dry_run=dry_run)
    async with (
        command.deadline.enforce(f"syncing {source} to {target}"),
        _opened_ends(reading, writing, source, target) as ends,
    ):
        return await _sync(command, ends, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class _What:
    """What was asked for."""

    selection: Selection
    delete: bool
    max_delete: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Ends:
    """Both stores, open, and the runs that the source has or that was asked for."""

    source: End
    target: End
    destination: StoreLocation
    runs: Sequence[str]


async def _sync(command: Command, ends: _Ends, what: _What) -> int:
    from ckptstore.cli.progress import shown
    from ckptstore.cli.sync_report import say_plan, say_report
    from ckptstore.clock import SystemClock
    from ckptstore.opening import prepared_record
    from ckptstore.sync.delete import delete_gone
    from ckptstore.sync.execute import carry_out, plan_runs

    plans = await plan_runs(ends.source, ends.target, ends.runs, what.selection)
    if not any(plan.items or plan.trouble for plan in plans):
        raise CheckpointNotFoundError(
            f"{ends.source.name} has no committed checkpoint that was asked for: nothing was done"
        )
    if what.dry_run:
        return say_plan(command.output, plans, await _deletion(ends, plans, what))
    began_s = command.deadline.left_s
    clock = SystemClock()
    store = ends.target.store
    record = await prepared_record(store, clock=clock)
    async with shown(command.output, "sync") as progress:
        report = await carry_out(
            plans,
            ends.source,
            ends.target,
            record=record,
            clock=clock,
            deadline=command.deadline,
            settings=command.settings.transfer,
            progress=progress,
        )
    if what.delete:
        await delete_gone(
            store, plans, report, max_delete=what.max_delete, record=record, clock=clock
        )
    return say_report(command.output, plans, report, began_s - command.deadline.left_s)


async def _deletion(ends: _Ends, plans: Sequence[RunPlan], what: _What) -> Deletion | None:
    """Return what a dry run has to say of deleting; nothing is deleted where anything is wrong."""
    from ckptstore.clock import SystemClock
    from ckptstore.opening import existing_record
    from ckptstore.sync.delete import plan_deletion

    troubled = any(plan.troubles() for plan in plans)
    if troubled or not what.delete or not any(plan.gone or plan.target_retired for plan in plans):
        return None
    store = ends.target.store
    try:
        record = await existing_record(store, ends.destination)
        return await plan_deletion(
            store, plans, max_delete=what.max_delete, record=record, clock=SystemClock()
        )
    except CkptStoreError as error:
        return error


def _access(command: Command) -> tuple[str | None, str | None]:
    """Return what two stores of one URL can differ in."""
    return command.settings.s3.profile, command.settings.s3.endpoint_url


@asynccontextmanager
async def _opened_ends(
    reading: Command, writing: Command, source: str, target: str
) -> AsyncIterator[_Ends]:
    """Open both stores. What the source is, a store or a run, the target must be too."""
    from ckptstore.cli.targets import opened_target
    from ckptstore.commit.catalog import list_runs
    from ckptstore.sync.transfer import End

    async with opened_target(reading, source) as found:
        if found.run is None:
            runs, location = await list_runs(found.store), parse_store(source)
            destination = await _store_for(writing, target)
        elif found.run.selector == Latest():
            runs, location = [found.run.run], found.run.store
            destination = _store_of_run(target, found.run.run)
        else:
            raise UsageError(f"{source}: sync takes a run or a store; choose by --steps, not by @")
        if (destination, _access(writing)) == (location, _access(reading)):
            raise UsageError(f"{source} and {target} are the same store")
        async with writing.opened(destination) as store:
            ends = End(store=found.store, name=source), End(store=store, name=target)
            yield _Ends(*ends, destination, runs)


async def _store_for(command: Command, url: str) -> StoreLocation:
    """Return the store that ``url`` is, or will be, having seen that it is not a run of one."""
    from ckptstore.cli.targets import opened_target

    with suppress(CheckpointNotFoundError, PermissionDeniedError):  # A store that is to be made.
        async with opened_target(command, url) as found:
            if found.run is not None:
                raise UsageError(f"{url} is a run of a store: give its store, or a run as SRC too")
    return parse_store(url)


def _store_of_run(url: str, run: str) -> StoreLocation:
    location = parse_run(url)
    if (location.run, location.selector) != (run, Latest()):
        raise UsageError(
            f"{url} is not where run {run} can go, because a run keeps its name: "
            f"write {url.rstrip('/')}/{run}, if that is the store"
        )
    return location.store
