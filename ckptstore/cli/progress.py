"""How far a transfer has come, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from ckptstore.cli.output import Output
from ckptstore.cli.units import human_bytes, human_seconds
from ckptstore.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

BAR_S: Final = 0.2


@asynccontextmanager
async def shown(output: Output, verb: str) -> AsyncIterator[Progress]:
    """Give counters to work with, and show them while the block runs; nothing when quiet."""
    progress = Progress()
    if output.quiet:
        yield progress
        return
    at_terminal = sys.stderr.isatty()
    task = asyncio.create_task(
        _bar(progress, verb) if at_terminal and not output.as_json else _lines(progress, output)
    )
    try:
        yield progress
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def line(progress: Progress, verb: str, elapsed_s: float) -> str:
    """Return it all in a line: ``~`` while the total is unknown, and no 100% before the end."""
    total = progress.bytes_total
    percent = f"{_percent(progress):3d}%  " if total else ""
    return (
        f"{verb}  {percent}{human_bytes(progress.bytes_done)} of "
        f"{human_bytes(total) if total else '~'}  "
        f"{human_bytes(progress.bytes_done / max(elapsed_s, 0.001))}/s  "
        f"after {human_seconds(elapsed_s)}"
    )


def _percent(progress: Progress) -> int:
    """Return how much is done; what is only sent or written is not all: it must be committed."""
    return min(100 * progress.bytes_done // progress.bytes_total, 99)


async def _lines(progress: Progress, output: Output) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        await asyncio.sleep(output.stats_s)
        elapsed_s = loop.time() - began_s
        if output.as_json:
            output.status(elapsed_s=round(elapsed_s, 3), **asdict(progress))
        else:
            output.note(line(progress, output.verb, elapsed_s))


async def _bar(progress: Progress, verb: str) -> None:
    with _new_bar() as bar:
        task = bar.add_task(verb, total=None)
        try:
            while True:
                await asyncio.sleep(BAR_S)
                total = progress.bytes_total
                done = min(progress.bytes_done, max(total - 1, 0)) if total else 0
                bar.update(task, total=total or None, completed=done)
        finally:  # What was done since the last look belongs to the picture too.
            bar.update(task, total=progress.bytes_total or None, completed=progress.bytes_done)


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        auto_refresh=False,
    )
