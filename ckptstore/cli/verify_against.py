"""``ckptstore verify --against``: is a restored directory still what the checkpoint is?"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.units import human_bytes
from ckptstore.errors import UsageError
from ckptstore.location import parse_run

if TYPE_CHECKING:
    from ckptstore.fetch.against import Compared


async def verify_against(command: Command, url: str, directory: Path) -> int:
    """Compare, say a line a file, and return the exit code."""
    import asyncio

    from ckptstore.cli.targets import opened_run
    from ckptstore.fetch.against import compare_directory, native_plan
    from ckptstore.load import find_checkpoint, read_manifest

    run = parse_run(url)
    if not await asyncio.to_thread(directory.is_dir):
        raise UsageError(f"{directory} is not a directory to compare with {url}")
    async with (
        command.deadline.enforce(f"comparing {directory}"),
        opened_run(command, run) as store,
    ):
        manifest = await read_manifest(store, await find_checkpoint(store, run.run, run.selector))
        plan = native_plan(manifest)
        found = await asyncio.to_thread(lambda: list(compare_directory(plan, directory)))
    for one in found:
        command.output.record("file", **asdict(one))
        command.output.text(f"{one.sign} {one.path}{f' ({one.why})' if one.why else ''}")
    return _summarize(command, f"{run.run}@{manifest.attempt.step}", directory, found)


def _summarize(command: Command, name: str, directory: Path, found: list[Compared]) -> int:
    signs = Counter(one.sign for one in found)
    code = exit_codes.worst(CODES[sign] for sign in signs)
    bytes_verified = sum(one.size_bytes for one in found if one.sign == "=")
    command.output.summary(
        f"{directory} and {name}: {signs['=']} the same ({human_bytes(bytes_verified)}), "
        f"{signs['*']} different, {signs['-']} missing, {signs['+']} more, "
        f"{signs['!']} not readable, {signs['?']} unknown",
        exit_code=code,
        ok=code == exit_codes.OK,
        same=signs["="],
        different=signs["*"],
        missing=signs["-"],
        extra=signs["+"],
        unreadable=signs["!"],
        unknown=signs["?"],
        bytes_verified=bytes_verified,
    )
    return code


CODES = {  # What is there besides does no harm to what was restored.
    "=": exit_codes.OK,
    "+": exit_codes.OK,
    "*": exit_codes.INTEGRITY,
    "-": exit_codes.INTEGRITY,
    "!": exit_codes.LOCAL_RESOURCE,
    "?": exit_codes.UNVERIFIABLE,
}
