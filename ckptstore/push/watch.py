"""Publish each checkpoint that appears in a directory, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ckptstore.clock import Deadline
from ckptstore.commit.catalog import commits_of_step
from ckptstore.errors import CkptStoreError
from ckptstore.push.directory import Pushed, push_directory
from ckptstore.push.finished import Local, State, find_finished
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint of the directory that was pushed, or why it could not be, this time."""

    local: Local
    outcome: Pushed | CkptStoreError


async def watch_directory(
    root: Path,
    store: ObjectStore,
    *,
    run: str,
    pause: Callable[[], Awaitable[None]],
    settings: Settings,
) -> AsyncGenerator[Published, None]:
    """Look again and again, with a ``pause`` between, and push what is new and finished.

    A checkpoint is finished if it looks so, and did not change since the last look. What the
    run has a commit of, by its step, is not pushed again, also after a restart: the store
    remembers. One that cannot be pushed is tried again at the next look. Each push has
    ``settings.deadline_s``. Goes on until it is closed, or ``pause`` raises.
    """
    seen: dict[Path, State] = {}
    done: set[int] = set()
    while True:
        found = await asyncio.to_thread(find_finished, root)
        for local in found:
            settled = seen.get(local.path) == local.state
            if local.step in done or not settled:
                continue
            published = await _published(local, store, run, settings)
            if published is None or isinstance(published.outcome, Pushed):
                done.add(local.step)
            if published is not None:
                yield published
        seen = {local.path: local.state for local in found}
        await pause()


async def _published(
    local: Local, store: ObjectStore, run: str, settings: Settings
) -> Published | None:
    """Push, unless the step is committed already."""
    deadline = Deadline.after(settings.deadline_s)
    try:
        async with deadline.enforce(f"run {run}: looking for step {local.step}"):
            if await commits_of_step(store, run, local.step):
                logger.info("%s: step %d is committed already", local.path, local.step)
                return None
        pushed = await push_directory(
            local.path, store, run=run, step=local.step, deadline=deadline, settings=settings
        )
    except CkptStoreError as error:
        return Published(local, error)
    return Published(local, pushed)
