"""``ckptstore restore``: a checkpoint becomes files again, every byte verified."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes, human_seconds
from ckptstore.location import parse_run

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.fetch.restore import Restored


class FormatName(Enum):
    """The values of ``--format``, without importing what carries them out."""

    NATIVE = "native"
    SAFETENSORS = "safetensors"
    TORCH = "torch"


async def restore(
    command: Command,
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@SEL]", help="What to restore.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A directory to be made.")],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Names to restore, like 'model.*'; repeat."),
    ] = None,
    form: Annotated[
        FormatName, typer.Option("--format", help="How tensors are to lie in DEST.")
    ] = FormatName.NATIVE,
    rank: Annotated[
        int | None,
        typer.Option("--rank", metavar="R", min=0, help="Only what this rank saved."),
    ] = None,
) -> int:
    """Bring a checkpoint back, verified.

    Every byte is verified on the way. DEST appears complete or not at all. It must not be there
    yet, or be an empty directory.

    Files that were pushed come back under their names. Tensors come, with --format native, as
    the safetensors files that the ranks wrote, with ckptstore-manifest.json beside them; with
    safetensors, as one model.safetensors of whole tensors; with torch, as one checkpoint.pt for
    torch.load, which is made in memory.

    --only takes shell patterns over names of tensors, items or files; only the parts of the
    checkpoint that hold them are read.
    """
    from ckptstore.cli.progress import shown
    from ckptstore.cli.targets import opened_run
    from ckptstore.fetch.restore import Format, restore_checkpoint
    from ckptstore.fetch.selection import Selection
    from ckptstore.load import opened_checkpoint

    run = parse_run(checkpoint)
    began_s = command.deadline.left_s
    async with (
        command.deadline.enforce(f"restoring {run}@{run.selector}"),
        opened_run(command, run) as store,
        opened_checkpoint(
            store, run.run, run.selector, holder="restore", deadline=command.deadline
        ) as manifest,
        shown(command.output, "restore") as progress,
    ):
        restored = await restore_checkpoint(
            store,
            manifest,
            destination,
            form=Format(form.value),
            selection=Selection(patterns=tuple(only or ()), rank=rank),
            settings=command.settings.transfer,
            progress=progress,
        )
    elapsed_s = began_s - command.deadline.left_s
    _say(command.output, restored, f"{run.run}@{restored.step}", destination, elapsed_s)
    return 0


def _say(
    output: Output, restored: Restored, name: str, destination: Path, elapsed_s: float
) -> None:
    if restored.left_out:
        names = restored.left_out
        output.note(
            f"note: left out what is not a tensor: {', '.join(names[:5])}"
            f"{f' and {len(names) - 5} more' if names[5:] else ''}; --format native keeps it"
        )
    output.summary(
        f"restored {name} ({restored.uid}) to {destination}: "
        f"{counted(restored.files, 'file')}, {human_bytes(restored.bytes)} in "
        f"{human_seconds(elapsed_s)}, "
        f"{human_bytes(restored.bytes_verified)} verified",
        exit_code=0,
        uid=restored.uid,
        step=restored.step,
        bytes=restored.bytes,
        bytes_verified=restored.bytes_verified,
        files=restored.files,
        left_out=restored.left_out,
    )
