"""``ckptstore verify``: is what lies there what was saved?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes
from ckptstore.errors import (
    CheckpointNotFoundError,
    IntegrityError,
    PermissionDeniedError,
    UsageError,
)
from ckptstore.location import Latest, RunLocation

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.cli.targets import Target
    from ckptstore.fetch.verify import Verified
    from ckptstore.manifest.model import Commit
    from ckptstore.progress import Progress


async def verify(
    command: Command,
    url: Annotated[
        str, typer.Argument(metavar="STORE[/RUN[@SEL]]", help="A checkpoint, a run or a store.")
    ],
    everything: Annotated[
        bool, typer.Option("--all", help="Every committed checkpoint, not the newest alone.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare sizes and the store's checksums, read no data.")
    ] = False,
) -> int:
    """Read checkpoints back and check every block.

    Of a run the newest checkpoint is verified, of a store the newest of each run. Damage is
    listed with the object, the block, the place in bytes, and what was expected and found
    there; the exit code is then 4. Objects that --quick cannot judge, because the store keeps
    no checksum of them, are unverifiable: exit code 3. A checkpoint that was read in full and
    is intact is noted as verified in the store, for gc --only-verified.
    """
    from ckptstore.cli.progress import shown
    from ckptstore.cli.targets import opened_target

    verified: list[Verified] = []
    async with (
        command.deadline.enforce(f"verifying {url}"),
        opened_target(command, url) as target,
        shown(command.output, "verify") as progress,
    ):
        async for run, found in _wanted(target, everything):
            try:
                one = await _verified(command, target, run, found, quick, progress)
            except CheckpointNotFoundError:
                if everything:
                    continue  # Retention removed it since it was listed.
                raise
            verified.append(one)
            _say(command.output, one)
    if not verified:
        raise CheckpointNotFoundError(f"{url} holds no committed checkpoint to verify")
    return _summarize(command.output, verified)


async def _verified(
    command: Command,
    target: Target,
    run: str,
    found: Commit | IntegrityError,
    quick: bool,
    progress: Progress,
) -> Verified:
    """Verify one checkpoint, with retention kept away from it: what it deletes is no damage."""
    from ckptstore.clock import SystemClock
    from ckptstore.commit.pins import pinned
    from ckptstore.fetch.verify import unreadable, verify_checkpoint

    if isinstance(found, IntegrityError):
        return unreadable(run, found)
    clock, deadline = SystemClock(), command.deadline
    uid = found.attempt.uid
    async with pinned(target.store, run, uid, clock=clock, holder="verify", deadline=deadline):
        verified = await verify_checkpoint(
            target.store,
            found,
            quick=quick,
            settings=command.settings.transfer,
            progress=progress,
        )
        if verified.report.ok and not quick:
            await _note(target, uid, verified)
    return verified


async def _note(target: Target, uid: str, verified: Verified) -> None:
    """Leave word for retention; who may only read cannot, and need not."""
    from ckptstore.clock import SystemClock
    from ckptstore.commit.verified import note_verified

    with suppress(PermissionDeniedError):
        await note_verified(
            target.store,
            verified.run,
            uid,
            objects=verified.report.objects,
            bytes_verified=verified.report.bytes_verified,
            clock=SystemClock(),
        )


async def _wanted(
    target: Target, everything: bool
) -> AsyncIterator[tuple[str, Commit | IntegrityError]]:
    from ckptstore.commit.catalog import list_runs
    from ckptstore.fetch.verify import every_commit

    one = target.run
    if everything and one and one.selector != Latest():
        raise UsageError("--all verifies every checkpoint of a run; leave the @ away")
    for run in [one.run] if one else await list_runs(target.store):
        if everything:
            async for found in every_commit(target.store, run):
                yield run, found
        else:
            newest = await _chosen(target, run, one)
            if newest is not None:
                yield run, newest


async def _chosen(
    target: Target, run: str, asked: RunLocation | None
) -> Commit | IntegrityError | None:
    from ckptstore.load import find_checkpoint

    try:
        return await find_checkpoint(target.store, run, asked.selector if asked else Latest())
    except IntegrityError as error:
        return error
    except CheckpointNotFoundError:
        if asked:
            raise
        return None  # A run of a store that has not committed anything yet.


def _say(output: Output, one: Verified) -> None:
    report = one.report
    output.record(
        "checkpoint",
        run=one.run,
        step=one.step,
        uid=one.uid,
        ok=report.ok,
        objects=report.objects,
        bytes_verified=report.bytes_verified,
        damaged=[asdict(damage) for damage in report.damaged],
        unverifiable=report.unverifiable,
    )
    name = f"{one.run}@{one.step} ({one.uid})" if one.uid else one.run
    for damage in report.damaged:
        output.text(f"damaged: {name}: {damage}")
    if report.unverifiable:
        output.text(
            f"unverifiable: {name}: the store keeps no checksum of "
            f"{counted(len(report.unverifiable), 'object')}; verify without --quick"
        )
    if report.ok:
        output.text(
            f"ok: {name}: {counted(report.objects, 'object')}, "
            f"{human_bytes(report.bytes_verified)} verified"
        )


def _summarize(output: Output, verified: list[Verified]) -> int:
    damaged = [asdict(damage) for one in verified for damage in one.report.damaged]
    unverifiable = [key for one in verified for key in one.report.unverifiable]
    bytes_verified = sum(one.report.bytes_verified for one in verified)
    code = exit_codes.worst(
        [
            exit_codes.INTEGRITY if damaged else exit_codes.OK,
            exit_codes.UNVERIFIABLE if unverifiable else exit_codes.OK,
        ]
    )
    sound = sum(one.report.ok for one in verified)
    output.summary(
        f"verified {counted(len(verified), 'checkpoint')}, {human_bytes(bytes_verified)}: "
        f"{sound} intact, {len(damaged)} places damaged, {len(unverifiable)} objects unverifiable",
        exit_code=code,
        ok=code == exit_codes.OK,
        checkpoints=len(verified),
        objects=sum(one.report.objects for one in verified),
        bytes_verified=bytes_verified,
        damaged=damaged,
        unverifiable=unverifiable,
    )
    return code
