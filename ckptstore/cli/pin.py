"""``ckptstore pin``: keep a checkpoint for a while."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_time, parse_seconds
from ckptstore.errors import UsageError
from ckptstore.location import RunLocation, parse_run

if TYPE_CHECKING:
    from ckptstore.manifest.model import Pin
    from ckptstore.store import ObjectStore

COLUMNS = (">STEP", "UID", "UNTIL", "HOLDER")


async def pin(
    command: Command,
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@SEL]", help="What to keep.")],
    how_long: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="For how long: 12h, 7d.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Say what of the run is pinned, by whom, until when.")
    ] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Take the pins away that pin --for put on it.")
    ] = False,
) -> int:
    """Keep a checkpoint from gc for a while, also while nobody reads it.

    A pin ends by itself; a tag does not. Whoever restores, verifies or copies a checkpoint
    pins it as well, for as long as that takes: --list shows these too, --release leaves them.
    """
    from ckptstore.cli.targets import opened_run

    run = parse_run(checkpoint)
    if [how_long is not None, listing, release].count(True) != 1:
        raise UsageError("pin takes one of --for TIME, --list and --release")
    for_s = parse_seconds(how_long) if how_long is not None else 0.0
    async with command.deadline.enforce(f"pinning {run}"), opened_run(command, run) as store:
        if listing:
            return await _list(command, store, run)
        if release:
            return await _release(command, store, run)
        return await _keep(command, store, run, for_s)


async def _keep(command: Command, store: ObjectStore, run: RunLocation, for_s: float) -> int:
    from ckptstore.clock import SystemClock
    from ckptstore.commit.pins import keep_pinned
    from ckptstore.load import find_checkpoint

    attempt = (await find_checkpoint(store, run.run, run.selector)).attempt
    holder = f"{_user()} on {socket.gethostname()}"
    made = await keep_pinned(
        store, run.run, attempt.uid, for_s=for_s, clock=SystemClock(), holder=holder
    )
    command.output.summary(
        f"{run.run}@{attempt.step} ({attempt.uid}) is pinned until "
        f"{human_time(made.expires_unix_s)}",
        exit_code=0,
        run=run.run,
        step=attempt.step,
        uid=attempt.uid,
        expires_at=made.expires_unix_s,
    )
    return 0


async def _release(command: Command, store: ObjectStore, run: RunLocation) -> int:
    from ckptstore.commit.pins import release_kept
    from ckptstore.load import find_checkpoint

    attempt = (await find_checkpoint(store, run.run, run.selector)).attempt
    released = await release_kept(store, run.run, attempt.uid)
    command.output.summary(
        f"{run.run}@{attempt.step} ({attempt.uid}): {counted(released, 'pin')} taken away",
        exit_code=0,
        run=run.run,
        step=attempt.step,
        uid=attempt.uid,
        released=released,
    )
    return 0


async def _list(command: Command, store: ObjectStore, run: RunLocation) -> int:
    from ckptstore.clock import SystemClock
    from ckptstore.commit.pins import list_pins

    now_unix_s = SystemClock().unix_s()
    pins = [p for _, p in await list_pins(store, run.run) if now_unix_s < p.expires_unix_s]
    pins.sort(key=lambda one: (one.uid, one.expires_unix_s))
    for one in pins:
        command.output.record(
            "pin", run=one.run, uid=one.uid, holder=one.holder, expires_at=one.expires_unix_s
        )
    if pins:
        command.output.table(COLUMNS, map(_row, pins))
    command.output.summary(
        "" if pins else f"nothing of {run.run} is pinned", exit_code=0, run=run.run, pins=len(pins)
    )
    return 0


def _row(one: Pin) -> tuple[str, ...]:
    from ckptstore.manifest.layout import parse_uid

    return str(parse_uid(one.uid).step), one.uid, human_time(one.expires_unix_s), one.holder


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return "somebody"
