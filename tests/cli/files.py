"""Checkpoints of files, under names that a push might refuse; and what lies in directories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import Latest
from ckptstore.manifest.model import FileEntry, Manifest
from ckptstore.save import Contents, save_checkpoint
from tests.world import RUN, SETTINGS, BytesShard, World

Files: TypeAlias = Mapping[str, bytes]


async def pushed(ranks: Sequence[Files]) -> tuple[MemoryStore, Manifest]:
    """Save these files, whatever they are called: a push would refuse some of the names."""
    store = MemoryStore()
    world = World(store, world_size=len(ranks))
    attempt = await world.begin()

    async def save(rank: int, files: Files) -> None:
        entries = tuple(
            FileEntry(path=path, shard=index, start=0, stop=len(data), executable=path == "run.sh")
            for index, (path, data) in enumerate(files.items())
        )
        await save_checkpoint(
            [BytesShard(data) for data in files.values()],
            Contents(files=entries),
            attempt=attempt,
            rank=rank,
            store=store,
            record=world.record,
            deadline=Deadline.after(60.0),
            settings=SETTINGS,
            clock=world.clock,
        )

    await asyncio.gather(*(save(rank, files) for rank, files in enumerate(ranks)))
    return store, await read_manifest(store, await find_checkpoint(store, RUN, Latest()))


def files_in(directory: Path) -> Files:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_files(directory: Path, files: Files) -> Path:
    """Write the files and return the directory."""
    for path, data in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    return directory
