"""``ckptstore push --watch``: a sidecar that publishes what a job writes to a local disk."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes
from ckptstore.errors import CkptStoreError, UsageError
from ckptstore.location import RunLocation

if TYPE_CHECKING:
    from ckptstore.push.watch import Published

HOPELESS: Final = (exit_codes.CONFIGURATION,)  # Looking again does not help.


async def push_watched(command: Command, directory: Path, run: RunLocation, settle_s: float) -> int:
    """Push until a signal comes, or what no other look can cure."""
    import asyncio

    from ckptstore.push.watch import watch_directory

    if not await asyncio.to_thread(directory.is_dir):
        raise UsageError(f"{directory} is not a directory to watch")
    command.go_on()

    async def pause() -> None:
        await asyncio.sleep(settle_s)

    command.output.note(f"watching {directory}; each finished checkpoint goes to {run}")
    async with (
        command.opened(run.store) as store,
        aclosing(
            watch_directory(directory, store, run=run.run, pause=pause, settings=command.settings)
        ) as watching,
    ):
        async for published in watching:
            _say(command, published)
    raise AssertionError("watching has no end")


def _say(command: Command, published: Published) -> None:
    local, outcome = published.local, published.outcome
    if isinstance(outcome, CkptStoreError):
        if exit_codes.code_of(outcome) in HOPELESS:
            raise outcome
        command.output.error(outcome)
        return
    attempt = outcome.commit.attempt
    command.output.record(
        "pushed",
        path=str(local.path),
        step=attempt.step,
        uid=attempt.uid,
        files=outcome.files,
        bytes=outcome.bytes,
    )
    command.output.text(
        f"pushed {local.path}: {counted(outcome.files, 'file')}, {human_bytes(outcome.bytes)} as "
        f"{attempt.run}@{attempt.step} ({attempt.uid})"
    )
