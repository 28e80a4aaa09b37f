"""A small job that saves and restores over connections that misbehave."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import Latest, StoreLocation, parse_store
from ckptstore.manifest.model import Attempt, Commit, StoreRecord
from ckptstore.opening import opened_store, prepared_record
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.save import save_checkpoint
from ckptstore.settings import (
    CommitSettings,
    RequestSettings,
    RetrySettings,
    Settings,
    TransferSettings,
)
from ckptstore.store import ObjectStore
from ckptstore.types import MIB
from tests.crashes.shards import contents_of, shards_of

RUN: Final = "run"
RANKS: Final = 2
LEFT_S_MAX: Final = 2.0
UNHURRIED_S: Final = 60.0
QUICK: Final = Settings(
    retry=RetrySettings(backoff_s_first=0.02, backoff_s_max=0.3),
    request=RequestSettings(  # After twice the stall, the kernel would give up by itself.
        in_flight_max=8, connect_s_max=0.5, stall_s_max=1.5, answer_s_max=2.5, complete_s_max=8.0
    ),
    transfer=TransferSettings(block_size_bytes=MIB // 4, part_size_bytes=5 * MIB),
    commit=CommitSettings(poll_s_max=0.2, watch_s=0.5),
)


@dataclass
class Job:
    """``RANKS`` ranks in one process, each with a store, and so a client, of its own."""

    location: StoreLocation
    stores: list[ObjectStore]
    record: StoreRecord | None = None

    async def begin(self, deadline_s: float = UNHURRIED_S) -> Attempt:
        clock = SystemClock()
        self.record = await prepared_record(self.stores[0], clock=clock)
        claim = await claim_incarnation(
            self.stores[0], run=RUN, parent_uid=None, facts={}, clock=clock
        )
        return await begin_attempt(
            self.stores[0],
            run=RUN,
            step=1,
            incarnation=claim.number,
            attempt_number=0,
            world_size=RANKS,
            deadline=Deadline.after(deadline_s),
            clock=clock,
        )

    async def save(
        self, attempt: Attempt, deadline_s: float = UNHURRIED_S
    ) -> list[Commit | BaseException]:
        """Save on all ranks at once, and return how it ended on each."""
        saves = (self._save_rank(attempt, rank, deadline_s) for rank in range(RANKS))
        return await asyncio.gather(*saves, return_exceptions=True)

    async def _save_rank(self, attempt: Attempt, rank: int, deadline_s: float) -> Commit:
        assert self.record is not None
        shards = shards_of(self.location, attempt.uid, rank)
        return await save_checkpoint(
            shards,
            contents_of(shards),
            attempt=attempt,
            rank=rank,
            store=self.stores[rank],
            record=self.record,
            deadline=Deadline.after(deadline_s),
            settings=QUICK,
        )

    async def check_latest(self, attempt: Attempt) -> None:
        """Read the newest checkpoint back: it is this attempt's, bit for bit."""
        store = self.stores[0]
        commit = await find_checkpoint(store, RUN, Latest())
        assert commit.attempt == attempt
        manifest = await read_manifest(store, commit)
        targets = [bytearray(shard.size_bytes) for shard in manifest.shards]
        pairs = zip(manifest.shards, targets, strict=True)
        wanted = [Wanted(shard, 0, memoryview(target)) for shard, target in pairs]
        await CheckedReader(store, QUICK.transfer).read_wanted(wanted)
        shards = [s for rank in range(RANKS) for s in shards_of(self.location, attempt.uid, rank)]
        assert targets == [shard.content for shard in shards]


@asynccontextmanager
async def opened_job(url: str) -> AsyncIterator[Job]:
    """Yield a job over the store that the environment leads to."""
    location = parse_store(url)
    async with AsyncExitStack() as opened:
        stores = [
            await opened.enter_async_context(opened_store(location, QUICK)) for _ in range(RANKS)
        ]
        yield Job(location, stores)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Require that soon after the block no descriptor, thread or task of it is left."""
    before = _held()
    yield
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LEFT_S_MAX
    while (left := _held() - before) and loop.time() < until_s:  # noqa: ASYNC110 (no event)
        await asyncio.sleep(0.01)
    assert not left, left


def _held() -> set[str]:
    """Return what this process holds, but the loop's own threads: they end with it."""
    threads = {thread.name for thread in threading.enumerate()}
    held = {f"thread {name}" for name in threads if not name.startswith("asyncio_")}
    held |= {f"task {task.get_name()}" for task in asyncio.all_tasks() - {asyncio.current_task()}}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The one that this very listing needed.
            held.add(f"descriptor {name}: {os.readlink(f'/proc/self/fd/{name}')}")
    return held
