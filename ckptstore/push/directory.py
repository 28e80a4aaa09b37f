"""Push a directory: look at it, meet the other nodes, save it as a checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptstore.clock import Clock, Deadline, SystemClock
from ckptstore.commit.catalog import commits_of_step, latest_commit
from ckptstore.errors import CkptStoreError, ConflictError
from ckptstore.manifest.model import Commit, FileEntry
from ckptstore.opening import prepared_record
from ckptstore.progress import Progress
from ckptstore.push.rendezvous import Meeting, Part
from ckptstore.push.source import FileSource
from ckptstore.push.walk import LocalFile, walk
from ckptstore.save import Contents, save_checkpoint
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A push that was committed. ``files`` and ``bytes`` are this node's, the rest is everybody's.

    ``latest`` is false if another push, or a training job, began after this one: then what
    that one commits, not this, is what ``@latest`` means. ``None`` if it could not be told.
    """

    commit: Commit
    files: int
    bytes: int
    latest: bool | None


async def push_directory(
    directory: Path,
    store: ObjectStore,
    *,
    run: str,
    step: int,
    deadline: Deadline,
    part: Part | None = None,
    again: bool = False,
    settings: Settings | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Pushed:
    """Save all files under ``directory`` as the run's checkpoint at ``step``.

    With several nodes, each calls this with its ``part``, and all of them end the same way.
    Returns once everything is committed. Raises ``UsageError`` before a byte is sent if
    ``directory`` cannot be pushed, ``ConflictError`` if the step is committed already (unless
    ``again``: then the new one takes its place, and the old one stays under its uid), and
    whatever ``save_checkpoint`` does; then nothing of this push is visible to anybody.
    """
    part, clock = part or Part(), clock or SystemClock()
    settings = settings or Settings()
    files = await asyncio.to_thread(walk, directory)
    async with deadline.enforce(f"run {run} step {step}: before the push"):
        if not again:
            await _refuse_committed(store, run, step)
        record = await prepared_record(store, clock=clock)
    meeting = Meeting(
        store=store,
        record=record,
        run=run,
        step=step,
        part=part,
        clock=clock,
        settings=settings.commit,
    )
    attempt = await meeting.attempt(deadline)
    logger.info(
        "run %s step %d: rank %d of %d pushes %d files as %s",
        run,
        step,
        part.rank,
        part.world_size,
        len(files),
        attempt.uid,
    )
    commit = await save_checkpoint(
        [FileSource(file) for file in files],
        Contents(files=_entries(files)),
        attempt=attempt,
        rank=part.rank,
        store=store,
        record=record,
        deadline=deadline,
        settings=settings,
        progress=progress,
        clock=clock,
    )
    return Pushed(
        commit=commit,
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        latest=await _is_latest(store, commit, deadline),
    )


async def _is_latest(store: ObjectStore, commit: Commit, deadline: Deadline) -> bool | None:
    try:
        async with deadline.enforce("looking which checkpoint is the latest"):
            latest = await latest_commit(store, commit.attempt.run)
    except CkptStoreError:  # The checkpoint is committed, whatever else fails.
        return None
    return latest is not None and latest.attempt.uid == commit.attempt.uid


async def _refuse_committed(store: ObjectStore, run: str, step: int) -> None:
    commits = await commits_of_step(store, run, step)
    if commits:
        raise ConflictError(
            f"run {run} step {step} is committed already, as {commits[0].attempt.uid}; push to "
            "another step, or with --again to put a new checkpoint in its place"
        )


def _entries(files: Sequence[LocalFile]) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry(
            path=file.path,
            shard=index,
            start=0,
            stop=file.size_bytes,
            executable=file.executable,
        )
        for index, file in enumerate(files)
    )
