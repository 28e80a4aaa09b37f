"""``ckptstore ls``: what checkpoints there are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.units import human_bytes, human_time
from ckptstore.errors import UsageError
from ckptstore.location import Latest

if TYPE_CHECKING:
    from ckptstore.commit.catalog import CheckpointInfo

COLUMNS = ("RUN", ">STEP", "STATE", ">SIZE", ">OBJECTS", ">RANKS", "COMMITTED", "UID", "KEPT")


async def ls(
    command: Command,
    url: Annotated[str, typer.Argument(metavar="STORE[/RUN]", help="A store, or one run of it.")],
) -> int:
    """List the checkpoints of a run or a store.

    The newest come first. Attempts that were aborted, or that nobody decided (see resolve), are
    listed as such. KEPT says by what retention is held off: tags, and pins (see pin).
    """
    from ckptstore.cli.kept import Kept, kept_in
    from ckptstore.cli.targets import opened_target
    from ckptstore.commit.catalog import list_checkpoints, list_runs
    from ckptstore.load import find_checkpoint

    infos: list[CheckpointInfo] = []
    kept: dict[str, Kept] = {}
    async with command.deadline.enforce(f"listing {url}"), opened_target(command, url) as target:
        if target.run and target.run.selector != Latest():
            raise UsageError(f"ls lists a whole run; ckptstore show {url} shows one checkpoint")
        runs = [target.run.run] if target.run else await list_runs(target.store)
        for run in runs:
            infos += await list_checkpoints(target.store, run)
            kept |= await kept_in(target.store, run)
        if target.run and not infos:
            await find_checkpoint(target.store, target.run.run, Latest())  # Says there is none.
    for info in infos:
        held = kept.get(info.uid, Kept())
        command.output.record("checkpoint", **asdict(info), **asdict(held))
    if infos:
        rows = [(*_row(info), str(kept.get(info.uid, Kept()))) for info in infos]
        command.output.table(COLUMNS, rows)
    committed = [info for info in infos if info.state == "committed"]
    command.output.summary(
        "" if infos else "there are no checkpoints yet",
        exit_code=0,
        runs=len(runs),
        checkpoints=len(committed),
        bytes=sum(info.bytes for info in committed),
    )
    return 0


def _row(info: CheckpointInfo) -> tuple[str, ...]:
    known = info.state in ("committed", "retired")
    return (
        info.run,
        str(info.step),
        info.state,
        human_bytes(info.bytes) if known else "-",
        str(info.objects) if known else "-",
        str(info.ranks),
        human_time(info.committed_at),
        info.uid,
    )
