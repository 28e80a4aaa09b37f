"""How far a transfer has come, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ckptstore.cli.output import Output
from ckptstore.cli.units import human_bytes, human_seconds
from ckptstore.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

BAR_S: Final = 0.2
LINE_S: Final = 30.0


@asynccontextmanager
async def shown(output: Output, verb: str) -> AsyncIterator[Progress]:
    """Give counters to work with, and show them while the block runs; nothing when quiet."""
    progress = Progress()
    if output.quiet:
        yield progress
        return
    at_terminal = sys.stderr.isatty()
    task = asyncio.create_task(
        _bar(progress, verb) if at_terminal else _lines(progress, verb, output.note)
    )
    try:
        yield progress
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def line(progress: Progress, verb: str, elapsed_s: float) -> str:
    """Return it all in a line; no percentage while it is not known what of."""
    total = progress.bytes_total
    percent = f"{100 * progress.bytes_done // total:3d}%  " if total else ""
    return (
        f"{verb}  {percent}{human_bytes(progress.bytes_done)} of {human_bytes(total)}  "
        f"{human_bytes(progress.bytes_done / max(elapsed_s, 0.001))}/s  "
        f"after {human_seconds(elapsed_s)}"
    )


async def _lines(progress: Progress, verb: str, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        await asyncio.sleep(LINE_S)
        say(line(progress, verb, loop.time() - began_s))


async def _bar(progress: Progress, verb: str) -> None:
    with _new_bar() as bar:
        task = bar.add_task(verb, total=None)
        try:
            while True:
                await asyncio.sleep(BAR_S)
                bar.update(task, total=progress.bytes_total or None, completed=progress.bytes_done)
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
