"""``ckptstore push``: a directory of any files becomes a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.options import S3Writing
from ckptstore.cli.units import counted, human_bytes, human_seconds
from ckptstore.errors import UsageError
from ckptstore.location import AtStep, parse_run

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.push.directory import Pushed


async def push(
    command: Command,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What to push.")],
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN@STEP", help="What it becomes.")],
    rank: Annotated[int, typer.Option("--rank", metavar="R", help="This node, from 0.")] = 0,
    world_size: Annotated[
        int, typer.Option("--world-size", metavar="W", help="How many nodes push together.")
    ] = 1,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="ID", help="What nodes that push together find each other by."
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Push although the step is committed already.")
    ] = False,
    *,
    s3: S3Writing,
) -> int:
    """Save a directory of any files as a checkpoint.

    All of it is committed, or nothing.

    Paths stay relative to DIR. Empty files are kept, empty directories are not. A symbolic link
    to a file inside DIR stands for that file; links that lead outside or to a directory, pipes
    and devices are refused, and so are names that would clash or mean something else on another
    system. A file that changes while it is pushed fails the push.

    A step that is committed is refused, unless --again: the new checkpoint then takes its place.
    The push that began last makes the latest checkpoint of the run, whatever its step.

    Several nodes: each pushes its own DIR with its --rank, the same --world-size and the same
    --job. The id is how they find each other through the store, so it must be new for every
    push and for every restart of one: the scheduler's job id with its count of restarts does
    ("$SLURM_JOB_ID-$SLURM_RESTART_COUNT"). Nothing is committed until all ranks are done, and if
    one fails or does not come before the deadline, nothing is.
    """
    from ckptstore.cli.progress import shown
    from ckptstore.push.directory import push_directory
    from ckptstore.push.rendezvous import Part

    run = parse_run(checkpoint)
    if not isinstance(run.selector, AtStep):
        raise UsageError(f"{checkpoint}: say which step this is: {run}@STEP")
    command = command.with_s3(**asdict(s3))
    part = Part(rank=rank, world_size=world_size, job=job)
    began_s = command.deadline.left_s
    async with command.opened(run.store) as store, shown(command.output, "push") as progress:
        pushed = await push_directory(
            directory,
            store,
            run=run.run,
            step=run.selector.step,
            deadline=command.deadline,
            part=part,
            again=again,
            settings=command.settings,
            progress=progress,
        )
    return _summarize(command.output, str(run), rank, pushed, began_s - command.deadline.left_s)


def _summarize(output: Output, run: str, rank: int, pushed: Pushed, took_s: float) -> int:
    attempt = pushed.commit.attempt
    if pushed.latest is False:
        output.note(
            f"note: a push or a job that began later owns @latest of {run}; "
            f"this checkpoint is {run}@{attempt.step}"
        )
    output.summary(
        f"pushed {counted(pushed.files, 'file')}, {human_bytes(pushed.bytes)} in "
        f"{human_seconds(took_s)} as {run}@{attempt.step} ({attempt.uid})",
        exit_code=0,
        run=attempt.run,
        step=attempt.step,
        uid=attempt.uid,
        rank=rank,
        ranks=attempt.world_size,
        files=pushed.files,
        bytes=pushed.bytes,
        latest=pushed.latest,
    )
    return 0
