"""``ckptstore diff``: what differs between two checkpoints."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.units import human_bytes
from ckptstore.location import parse_run

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.fetch.diff import Difference, Entry
    from ckptstore.fetch.diff_values import Compared
    from ckptstore.manifest.model import Manifest
    from ckptstore.store import ObjectStore

COLUMNS = ("CHANGE", "KIND", "TYPE", "SHAPE", ">SIZE", ">NORM", "NAME")


async def diff(
    command: Command,
    before: Annotated[str, typer.Argument(metavar="A", help="STORE/RUN[@SEL], the earlier one.")],
    after: Annotated[str, typer.Argument(metavar="B", help="STORE/RUN[@SEL], the later one.")],
    values: Annotated[
        bool, typer.Option("--values", help="Read the data where checksums do not tell.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 20 if anything differs.")
    ] = False,
) -> int:
    """Say what differs between two checkpoints, tensor by tensor.

    Without --values no data is read: checksums of whole blocks tell what is the same and, for
    all that is larger than a few blocks, what is not. What they cannot tell, because a block
    holds other bytes too or the tensor is sharded in another way, is unknown.

    With --values, whatever changed or is unknown is read, and verified, in pieces of 16 MiB;
    NORM is the norm of the change over that of what was. What is sharded in another way stays
    unknown.
    """
    async with command.deadline.enforce(f"comparing {before} with {after}"), AsyncExitStack() as ex:
        from ckptstore.fetch.diff import Change
        from ckptstore.fetch.diff import diff as differences

        sides = [await _opened(command, ex, url) for url in (before, after)]
        found = await _compared(
            command, sides, differences(sides[0][1], sides[1][1]), values=values
        )
    changed = [one for one in found if one.difference.change is not Change.SAME]
    _show(command.output, changed)
    counts = {c.value: sum(o.difference.change is c for o in found) for c in Change}
    code = exit_codes.OK
    if exit_code and changed:
        code = exit_codes.DIFFERENCES
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    attempts = [manifest.attempt for _, manifest in sides]
    names = [f"{attempt.run}@{attempt.step} ({attempt.uid})" for attempt in attempts]
    command.output.summary(
        f"{names[0]} and {names[1]}: {said}",
        exit_code=code,
        before=attempts[0].uid,
        after=attempts[1].uid,
        bytes_verified=sum(one.bytes_verified for one in found),
        **counts,
    )
    return code


async def _opened(
    command: Command, stack: AsyncExitStack, url: str
) -> tuple[ObjectStore, Manifest]:
    from ckptstore.cli.targets import opened_run
    from ckptstore.load import opened_checkpoint

    run = parse_run(url)
    store = await stack.enter_async_context(opened_run(command, run))
    manifest = await stack.enter_async_context(
        opened_checkpoint(store, run.run, run.selector, holder="diff", deadline=command.deadline)
    )
    return store, manifest


async def _compared(
    command: Command,
    sides: list[tuple[ObjectStore, Manifest]],
    found: list[Difference],
    *,
    values: bool,
) -> list[Compared]:
    from ckptstore.fetch.diff import Change
    from ckptstore.fetch.diff_values import Compared, compare_values
    from ckptstore.restore.reader import CheckedReader

    if not values:
        return [Compared(one) for one in found]
    readers = [CheckedReader(store, command.settings.transfer) for store, _ in sides]
    return [
        Compared(one)
        if one.change is Change.SAME
        else await compare_values(readers[0], readers[1], one)
        for one in found
    ]


def _show(output: Output, changed: list[Compared]) -> None:
    rows = []
    for one in changed:
        difference = one.difference
        sides = difference.before, difference.after
        output.record(
            "difference",
            name=difference.name,
            change=difference.change.value,
            before=_facts(sides[0]),
            after=_facts(sides[1]),
            relative_norm=one.relative_norm,
        )
        norm = "-" if one.relative_norm is None else f"{one.relative_norm:.3g}"
        shown = [_arrow(*(_cells(side)[at] for side in sides)) for at in range(4)]
        rows.append((difference.change.value, *shown, norm, difference.name))
    if rows:
        output.table(COLUMNS, rows)


def _facts(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    return {
        "kind": entry.kind,
        "dtype": entry.dtype,
        "shape": entry.shape,
        "bytes": entry.size_bytes,
    }


def _cells(entry: Entry | None) -> tuple[str, str, str, str]:
    if entry is None:
        return ("", "", "", "")
    shape = "-" if entry.shape is None else "x".join(map(str, entry.shape)) or "scalar"
    return entry.kind, entry.dtype or "-", shape, human_bytes(entry.size_bytes)


def _arrow(before: str, after: str) -> str:
    return before or after if before == after or not (before and after) else f"{before} -> {after}"
