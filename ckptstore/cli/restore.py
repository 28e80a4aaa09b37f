"""``ckptstore restore`` and ``export``: a checkpoint becomes files again, every byte verified."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes, human_seconds, parse_bytes
from ckptstore.errors import IntegrityError, UsageError
from ckptstore.location import ByUid, RunLocation, Selector, parse_run

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.fetch.restore import Care, Layout, Restored
    from ckptstore.fetch.selection import Selection
    from ckptstore.progress import Progress
    from ckptstore.store import ObjectStore


class FormatName(Enum):
    """The values of ``--format``, without importing what carries them out."""

    NATIVE = "native"
    SAFETENSORS = "safetensors"
    TORCH = "torch"


class DtypeName(Enum):
    """The values of ``--dtype``."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Check(Enum):
    """The values of ``--verify``."""

    STREAM = "stream"
    REREAD = "reread"


class Overwrite(Enum):
    """The values of ``--overwrite``."""

    NEVER = "never"
    IF_CHANGED = "if-changed"
    ALWAYS = "always"


DTYPES: Final = {
    DtypeName.BF16: "bfloat16",
    DtypeName.FP16: "float16",
    DtypeName.FP32: "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Options that say what of a checkpoint is wanted, and how it is to be written."""

    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Names to restore, like 'model.*'; repeat."),
    ] = None
    excluded: Annotated[
        list[str] | None,
        typer.Option(
            "--not", metavar="PATTERN", help="Names to leave out, like 'optim.*'; repeat."
        ),
    ] = None
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Leave out what only training goes on from.")
    ] = False
    max_shard_size: Annotated[
        str | None,
        typer.Option("--max-shard-size", metavar="SIZE", help="Cut safetensors: 5G, 500M."),
    ] = None
    dtype: Annotated[
        DtypeName | None,
        typer.Option("--dtype", help="Turn floating-point safetensors into this type."),
    ] = None
    check: Annotated[
        Check,
        typer.Option("--verify", help="stream checks what is written; reread, the disk as well."),
    ] = Check.STREAM
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Leave holes for zeros, which take no room.")
    ] = False
    overwrite: Annotated[
        Overwrite, typer.Option("--overwrite", help="Whether a directory at DEST may be replaced.")
    ] = Overwrite.NEVER
    fallback: Annotated[
        bool,
        typer.Option("--fallback", help="If it is damaged, restore the next older intact one."),
    ] = False


async def restore(
    command: Command,
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@SEL]", help="What to restore.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A directory to be made.")],
    form: Annotated[
        FormatName, typer.Option("--format", help="How tensors are to lie in DEST.")
    ] = FormatName.NATIVE,
    rank: Annotated[
        int | None,
        typer.Option("--rank", metavar="R", min=0, help="Only what this rank saved."),
    ] = None,
    *,
    chosen: Chosen,
) -> int:
    """Bring a checkpoint back, verified.

    Every byte is verified on the way. DEST appears complete or not at all. It must not be there
    yet, or be an empty directory. What an interrupted restore brought stays beside DEST, in
    .DEST.ckptstore-partial-*; the same command again checks it and fetches only the rest.

    Files that were pushed come back under their names. Tensors come, with --format native, as
    the safetensors files that the ranks wrote, with ckptstore-manifest.json beside them; with
    safetensors, as one model.safetensors of whole tensors, or several with an index, as Hugging
    Face has them; with torch, as one checkpoint.pt for torch.load, which is made in memory.

    --only and --not take shell patterns over names of tensors, items or files; only the parts
    of the checkpoint that hold them are read. --weights-only leaves out optimizers, schedulers,
    random states, data loaders and counters, by their usual names.

    With --fallback, a checkpoint that is damaged is said to be so, and the next older one that
    is intact comes in its place; which one that was is in the summary.
    """
    return await _restore(command, checkpoint, destination, form, rank, chosen)


async def export(
    command: Command,
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@SEL]", help="What to export.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A directory to be made.")],
    *,
    chosen: Chosen,
) -> int:
    """Restore tensors as safetensors, for whatever reads models.

    The same as restore --format safetensors: whole tensors, in model.safetensors or, with
    --max-shard-size, in several files and the index that Hugging Face's readers look for.
    """
    return await _restore(command, checkpoint, destination, FormatName.SAFETENSORS, None, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What was asked for, in the words of those who carry it out."""

    destination: Path
    layout: Layout
    selection: Selection
    care: Care
    fallback: bool


async def _restore(
    command: Command,
    checkpoint: str,
    destination: Path,
    form: FormatName,
    rank: int | None,
    chosen: Chosen,
) -> int:
    from ckptstore.cli.progress import shown
    from ckptstore.cli.targets import opened_run
    from ckptstore.fetch.restore import Care, Format, Layout
    from ckptstore.fetch.selection import Selection

    run = parse_run(checkpoint)
    asked = _Asked(
        destination=destination,
        layout=Layout(
            form=Format(form.value),
            dtype=DTYPES[chosen.dtype] if chosen.dtype else None,
            file_bytes_max=parse_bytes(chosen.max_shard_size) if chosen.max_shard_size else None,
        ),
        selection=Selection(
            patterns=tuple(chosen.only or ()),
            excluded=tuple(chosen.excluded or ()),
            weights_only=chosen.weights_only,
            rank=rank,
        ),
        care=Care(
            reread=chosen.check is Check.REREAD,
            sparse=chosen.sparse,
            replace=chosen.overwrite is not Overwrite.NEVER,
            keep_same=chosen.overwrite is Overwrite.IF_CHANGED,
        ),
        fallback=chosen.fallback,
    )
    if asked.layout.form is Format.TORCH and (asked.care.reread or asked.care.sparse):
        raise UsageError("--verify reread and --sparse do not go with --format torch")
    began_s = command.deadline.left_s
    async with (
        command.deadline.enforce(f"restoring {run}@{run.selector}"),
        opened_run(command, run) as store,
        shown(command.output, "restore") as progress,
    ):
        restored, damaged = await _restored(command, store, run, asked, progress)
    elapsed_s = began_s - command.deadline.left_s
    name = f"{run.run}@{restored.step}"
    _say(command.output, restored, name, destination, elapsed_s, damaged)
    return 0


async def _restored(
    command: Command, store: ObjectStore, run: RunLocation, asked: _Asked, progress: Progress
) -> tuple[Restored, list[str]]:
    """Restore, and return what of, and which checkpoints were damaged on the way to it."""
    from ckptstore.fetch.older import next_older
    from ckptstore.fetch.restore import restore_checkpoint
    from ckptstore.load import opened_checkpoint

    selector: Selector = run.selector
    damaged: list[str] = []
    while True:
        uid = selector.text if isinstance(selector, ByUid) else None
        try:
            async with opened_checkpoint(
                store, run.run, selector, holder="restore", deadline=command.deadline
            ) as manifest:
                uid = manifest.attempt.uid
                restored = await restore_checkpoint(
                    store,
                    manifest,
                    asked.destination,
                    layout=asked.layout,
                    selection=asked.selection,
                    care=asked.care,
                    settings=command.settings.transfer,
                    progress=progress,
                )
            return restored, damaged
        except IntegrityError as error:
            if not asked.fallback:
                raise
            older = await next_older(store, run.run, uid)
            if older is None:
                raise
            damaged.append(uid or str(selector))
            selector = ByUid(older.attempt.uid)
            command.output.note(f"warning: {error}; falling back to {run}@{selector}")


def _say(
    output: Output,
    restored: Restored,
    name: str,
    destination: Path,
    elapsed_s: float,
    damaged: list[str],
) -> None:
    if restored.left_out:
        names = restored.left_out
        output.note(
            f"note: left out what is not a tensor: {', '.join(names[:5])}"
            f"{f' and {len(names) - 5} more' if names[5:] else ''}; --format native keeps it"
        )
    resumed = restored.bytes_resumed
    output.summary(
        f"restored {name} ({restored.uid}) to {destination}: "
        f"{counted(restored.files, 'file')}, {human_bytes(restored.bytes)} in "
        f"{human_seconds(elapsed_s)}, {human_bytes(restored.bytes_verified)} verified"
        + (f", {human_bytes(resumed)} were there from an earlier try" if resumed else "")
        + (f"; {', '.join(damaged)} is damaged" if damaged else ""),
        exit_code=0,
        **asdict(restored),
        fallback_from=damaged,
    )
