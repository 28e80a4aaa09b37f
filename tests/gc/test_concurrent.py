"""A job that saves and retains, readers of whatever is newest, and a second collector."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ckptstore.clock import Deadline
from ckptstore.commit.catalog import list_checkpoints
from ckptstore.commit.pins import PIN_S
from ckptstore.errors import CheckpointNotFoundError
from ckptstore.gc.policy import RetentionPolicy
from ckptstore.layers._around import Request
from ckptstore.load import opened_checkpoint
from ckptstore.location import AtStep, Latest, Selector
from ckptstore.restore.verify import verify_shards
from ckptstore.store import ObjectStore
from ckptstore.testing.virtual_time import run_virtual
from tests.gc.history import CLOCK, DAY_S, History, SteppedStore, wait
from tests.world import RUN, SETTINGS, BytesShard

T = TypeVar("T")

POLICY = RetentionPolicy(keep_last=2, keep_every=10)
STEPS = 25


class SlowStore(SteppedStore):
    """Every request takes a while, and no two the same."""

    def __init__(self, inner: ObjectStore, rng: random.Random) -> None:
        super().__init__(inner)
        self._rng = rng

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        answer = await send()
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        return answer


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.store = SlowStore(self.history.store, self.rng)
        self.is_over = False
        self.read = 0
        self.found_none = 0

    async def train(self) -> None:
        world = self.history.world
        world.store = self.store
        for step in range(1, STEPS + 1):
            if self.rng.random() < 0.1:
                await self.history.restart()
            attempt = await self.history.begin(step)
            if self.rng.random() < 0.2:
                await self.history.write(attempt)  # And dies; nobody decides this one for a while.
                continue
            await world.save_rank(attempt, 0, BytesShard(bytes(range(step))))
            await self.history.collect(POLICY, self.store)
            await wait(self.rng.uniform(0, 3000))
        self.is_over = True

    async def read_now_and_then(self) -> None:
        while not self.is_over:
            selector: Selector = Latest()
            if self.rng.random() < 0.5:
                selector = AtStep(self.rng.randint(1, STEPS))
            try:
                await self._read(selector)
                self.read += 1
            except CheckpointNotFoundError:
                self.found_none += 1
            await wait(self.rng.uniform(0, 100))

    async def _read(self, selector: Selector) -> None:
        async with opened_checkpoint(
            self.store, RUN, selector, holder="x", deadline=Deadline.after(60), clock=CLOCK
        ) as manifest:
            await wait(self.rng.uniform(0, 8 * PIN_S))
            report = await verify_shards(self.store, manifest.shards, settings=SETTINGS.transfer)
            assert report.ok, f"{manifest.attempt.uid}: {report.damaged}"
            assert [shard.size_bytes for shard in manifest.shards] == [manifest.attempt.step]

    async def collect_now_and_then(self) -> None:
        while not self.is_over:
            await self.history.collect(RetentionPolicy(keep_last=1), self.store)
            await wait(self.rng.uniform(0, 1000))


@pytest.mark.parametrize("seed", range(8))
def test_readers_and_jobs_and_collectors_do_not_harm_each_other(seed: int) -> None:
    async def tell() -> None:
        life = Life(seed)
        async with asyncio.TaskGroup() as group:
            group.create_task(life.train())
            group.create_task(life.read_now_and_then())
            group.create_task(life.read_now_and_then())
            group.create_task(life.collect_now_and_then())
        assert life.read > 5
        await life.history.assert_latest_intact()
        await wait(2 * DAY_S)
        await life.history.collect(RetentionPolicy(keep_last=1))
        infos = await list_checkpoints(life.history.store, RUN)
        kept = {info.uid for info in infos if info.state == "committed"}
        await life.history.assert_nothing_left(kept)

    run_virtual(tell())
