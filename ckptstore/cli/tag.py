"""``ckptstore tag``: name a checkpoint, so that retention keeps it."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.errors import UsageError
from ckptstore.location import Latest, parse_run
from ckptstore.manifest.layout import check_tag


async def tag(
    command: Command,
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@SEL]", help="What to name.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name, one of a kind in a run.")],
    delete: Annotated[
        bool, typer.Option("--delete", help="Take the name away, from whichever has it.")
    ] = False,
) -> int:
    """Give a checkpoint a name. As long as it has one, gc keeps it.

    A name stays where it is: to move it, delete it first. gc shows which checkpoint has which.
    """
    from ckptstore.cli.targets import opened_run
    from ckptstore.clock import SystemClock
    from ckptstore.commit.tags import delete_tag, put_tag
    from ckptstore.load import find_checkpoint

    run = parse_run(checkpoint)
    try:
        check_tag(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if delete and run.selector != Latest():
        raise UsageError(f"{checkpoint}: to delete a tag, leave the @ away")
    uid: str | None = None
    async with command.deadline.enforce(f"tagging {run}"), opened_run(command, run) as store:
        if delete:
            await delete_tag(store, run.run, name)
            text = f"{run.run} has no tag {name} now"
        else:
            commit = await find_checkpoint(store, run.run, run.selector)
            uid = commit.attempt.uid
            await put_tag(store, run.run, name, uid, clock=SystemClock())
            text = f"{run.run}@{commit.attempt.step} ({uid}) is tagged {name}"
    command.output.summary(text, exit_code=0, run=run.run, tag=name, uid=uid)
    return 0
