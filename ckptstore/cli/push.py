"""``ckptstore push``: a directory of any files becomes a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.options import S3Writing
from ckptstore.cli.push_watch import push_watched
from ckptstore.cli.units import counted, human_bytes, human_seconds, parse_seconds
from ckptstore.errors import UsageError
from ckptstore.location import AtStep, Latest, RunLocation, parse_run

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.push.directory import Pushed


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Options that say which node of how many this is."""

    rank: Annotated[int, typer.Option("--rank", metavar="R", help="This node, from 0.")] = 0
    world_size: Annotated[
        int, typer.Option("--world-size", metavar="W", help="How many nodes push together.")
    ] = 1
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="ID", help="What nodes that push together find each other by."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Options of a sidecar."""

    watch: Annotated[
        bool, typer.Option("--watch", help="Push each finished checkpoint that appears in DIR.")
    ] = False
    settle: Annotated[
        str, typer.Option("--settle", metavar="TIME", help="With --watch: how often to look.")
    ] = "15s"


async def push(
    command: Command,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What to push.")],
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@STEP]", help="What it becomes.")],
    again: Annotated[
        bool, typer.Option("--again", help="Push although the step is committed already.")
    ] = False,
    compress: Annotated[
        bool, typer.Option("--compress", help="Compress what gets smaller by it, with zstd.")
    ] = False,
    *,
    node: Node,
    watch: Watch,
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

    With --watch, DIR holds checkpoints, and each that is finished is pushed to STORE/RUN at the
    step that its name ends with. Finished is what has DCP's .metadata, or all files of Hugging
    Face's index, or to what DeepSpeed's latest has come, and what did not change between two
    looks. A step that the run has is not pushed again, also after a restart. --deadline is for
    each push; what fails is tried again at the next look. A signal ends it: exit code 130.
    """
    run = parse_run(checkpoint)
    command = command.with_s3(**asdict(s3)).with_compression(compress)
    if watch.watch:
        if again or node != Node() or run.selector != Latest():
            raise UsageError("--watch pushes from one node to a run; leave --again and the @ away")
        return await push_watched(command, directory, run, parse_seconds(watch.settle))
    if not isinstance(run.selector, AtStep):
        raise UsageError(f"{checkpoint}: say which step this is: {run}@STEP")
    return await _push(command, directory, run, run.selector.step, node, again=again)


async def _push(
    command: Command, directory: Path, run: RunLocation, step: int, node: Node, *, again: bool
) -> int:
    from ckptstore.cli.progress import shown
    from ckptstore.push.directory import push_directory
    from ckptstore.push.rendezvous import Part

    part = Part(rank=node.rank, world_size=node.world_size, job=node.job)
    began_s = command.deadline.left_s
    async with command.opened(run.store) as store, shown(command.output, "push") as progress:
        pushed = await push_directory(
            directory,
            store,
            run=run.run,
            step=step,
            deadline=command.deadline,
            part=part,
            again=again,
            settings=command.settings,
            progress=progress,
        )
    took_s = began_s - command.deadline.left_s
    return _summarize(command.output, str(run), node.rank, pushed, took_s)


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
