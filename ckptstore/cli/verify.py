"""``ckptstore verify``: is what lies there what was saved?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes, parse_bytes, parse_seconds
from ckptstore.cli.verify_against import verify_against
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
    from ckptstore.restore.sample import Sample


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
    newest: Annotated[
        int | None, typer.Option("--newest", metavar="N", min=1, help="The newest N of each run.")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="PART", help="Read a part: 5%, 50G, or 2/7."),
    ] = None,
    max_duration: Annotated[
        str | None,
        typer.Option("--max-duration", metavar="TIME", help="Read as much as goes: 20m, 2h."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="Compare a restored directory instead."),
    ] = None,
) -> int:
    """Read checkpoints back and check every block.

    Of a run the newest checkpoint is verified, of a store the newest of each run. Damage is
    listed with the object, the block, the place in bytes, and what was expected and found
    there; the exit code is then 4. Objects that --quick cannot judge, because the store keeps
    no checksum of them, are unverifiable: exit code 3. A checkpoint that was read in full and
    is intact is noted as verified in the store, for gc --only-verified.

    --sample reads a part of each checkpoint: a share or so many bytes of it, and the next time
    the part after that, as the store remembers; or the 2nd of 7 parts. --max-duration reads on
    from the last such part until the time is over; if not all that was asked for could be
    read, the rest is unknown: exit code 3.

    --against compares what restore made, as files or with --format native, with the checksums
    of the checkpoint: = same, - missing, + not from there, * other content, ! not readable. No
    data of the store is read.
    """
    from ckptstore.cli.progress import shown
    from ckptstore.cli.targets import opened_target

    what = _What.of(everything, quick, newest, sample, max_duration)
    if against is not None:
        return await verify_against(command, url, against)
    verified: list[Verified] = []
    async with (
        command.deadline.enforce(f"verifying {url}"),
        opened_target(command, url) as target,
        shown(command.output, "verify") as progress,
    ):
        async for run, found in _wanted(target, what):
            try:
                one = await _verified(command, target, run, found, what, progress)
            except CheckpointNotFoundError:
                if what.several:
                    continue  # Retention removed it since it was listed.
                raise
            verified.append(one)
            _say(command.output, one)
    if not verified:
        raise CheckpointNotFoundError(f"{url} holds no committed checkpoint to verify")
    return _summarize(command.output, verified)


@dataclass(frozen=True, slots=True, kw_only=True)
class _What:
    """What was asked for. ``until_s`` is on the loop's clock."""

    newest: int | None
    quick: bool
    sample: Sample | None
    said: str
    until_s: float | None

    @property
    def several(self) -> bool:
        return self.newest != 1

    @classmethod
    def of(
        cls,
        everything: bool,
        quick: bool,
        newest: int | None,
        sample: str | None,
        max_duration: str | None,
    ) -> _What:
        import asyncio

        from ckptstore.restore.sample import Bytes, Rolling, parse_share

        if quick and (sample or max_duration):
            raise UsageError("--quick reads nothing; it does not go with --sample, --max-duration")
        if everything and newest is not None:
            raise UsageError("take one of --all and --newest N")
        chosen: Sample | None = None
        if sample:
            chosen = parse_share(sample) or Bytes(parse_bytes(sample))
        elif max_duration:
            chosen = Rolling(1.0)
        until_s = None
        if max_duration:
            until_s = asyncio.get_running_loop().time() + parse_seconds(max_duration)
        return cls(
            newest=None if everything else newest or 1,
            quick=quick,
            sample=chosen,
            said=sample or "100%",
            until_s=until_s,
        )


async def _verified(
    command: Command,
    target: Target,
    run: str,
    found: Commit | IntegrityError,
    what: _What,
    progress: Progress,
) -> Verified:
    """Verify one checkpoint, with retention kept away from it: what it deletes is no damage."""
    from ckptstore.clock import SystemClock
    from ckptstore.commit.pins import pinned
    from ckptstore.commit.verified import next_sample_ppm
    from ckptstore.fetch.verify import unreadable, verify_checkpoint

    if isinstance(found, IntegrityError):
        return unreadable(run, found)
    clock, deadline = SystemClock(), command.deadline
    uid = found.attempt.uid
    async with pinned(target.store, run, uid, clock=clock, holder="verify", deadline=deadline):
        start_ppm = await next_sample_ppm(target.store, run, uid) if what.sample else 0
        verified = await verify_checkpoint(
            target.store,
            found,
            quick=what.quick,
            sample=what.sample,
            start_ppm=start_ppm,
            until_s=what.until_s,
            settings=command.settings.transfer,
            progress=progress,
        )
        if verified.report.ok and not what.quick:
            await _note(target, uid, verified, what)
    return verified


async def _note(target: Target, uid: str, verified: Verified, what: _What) -> None:
    """Leave word for retention; who may only read cannot, and need not."""
    from ckptstore.clock import SystemClock
    from ckptstore.commit.verified import note_sampled, note_verified

    part = verified.part
    with suppress(PermissionDeniedError):
        if part is not None:
            await note_sampled(
                target.store,
                verified.run,
                uid,
                sample=what.said,
                start_ppm=part.start_ppm,
                stop_ppm=part.stop_ppm,
                bytes_verified=verified.report.bytes_verified,
                bytes_total=part.bytes_total,
                clock=SystemClock(),
            )
            if not part.is_everything or verified.report.bytes_verified < part.bytes_total:
                return
        await note_verified(
            target.store,
            verified.run,
            uid,
            objects=verified.report.objects,
            bytes_verified=verified.report.bytes_verified,
            clock=SystemClock(),
        )


async def _wanted(
    target: Target, what: _What
) -> AsyncIterator[tuple[str, Commit | IntegrityError]]:
    from ckptstore.commit.catalog import list_runs
    from ckptstore.fetch.verify import every_commit

    one = target.run
    if what.several and one and one.selector != Latest():
        raise UsageError("--all and --newest verify several checkpoints of a run; leave the @ away")
    for run in [one.run] if one else await list_runs(target.store):
        if what.several:
            left = what.newest
            async for found in every_commit(target.store, run):
                if left == 0:
                    break
                yield run, found
                left = None if left is None else left - 1
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
        ok=one.ok,
        objects=report.objects,
        bytes_verified=report.bytes_verified,
        bytes_total=one.part.bytes_total if one.part else None,
        bytes_unknown=one.part.bytes_left if one.part else 0,
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
    of = f" of {human_bytes(one.part.bytes_total)}" if one.part else ""
    if one.part and one.part.bytes_left:
        output.text(
            f"unknown: {name}: {human_bytes(report.bytes_verified)}{of} verified before the time "
            f"was over; {human_bytes(one.part.bytes_left)} were not read"
        )
    if one.ok:
        output.text(
            f"ok: {name}: {counted(report.objects, 'object')}, "
            f"{human_bytes(report.bytes_verified)}{of} verified"
        )


def _summarize(output: Output, verified: list[Verified]) -> int:
    damaged = [asdict(damage) for one in verified for damage in one.report.damaged]
    unverifiable = [key for one in verified for key in one.report.unverifiable]
    bytes_verified = sum(one.report.bytes_verified for one in verified)
    unknown = sum(one.part.bytes_left for one in verified if one.part)
    code = exit_codes.worst(
        [
            exit_codes.INTEGRITY if damaged else exit_codes.OK,
            exit_codes.UNVERIFIABLE if unverifiable or unknown else exit_codes.OK,
        ]
    )
    sound = sum(one.ok for one in verified)
    output.summary(
        f"verified {counted(len(verified), 'checkpoint')}, {human_bytes(bytes_verified)}: "
        f"{sound} intact, {len(damaged)} places damaged, {len(unverifiable)} objects unverifiable"
        + (f", {human_bytes(unknown)} unknown" if unknown else ""),
        exit_code=code,
        ok=code == exit_codes.OK,
        checkpoints=len(verified),
        objects=sum(one.report.objects for one in verified),
        bytes_verified=bytes_verified,
        damaged=damaged,
        unverifiable=unverifiable,
        bytes_unknown=unknown,
    )
    return code
