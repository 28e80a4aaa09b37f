"""Which checkpoint is the latest, when a step is saved again or two jobs start at once."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from ckptstore.commit.begin import claim_incarnation
from ckptstore.commit.catalog import commits_of_step, latest_commit
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.load import find_checkpoint
from ckptstore.location import AtStep
from ckptstore.manifest.model import Commit
from ckptstore.store import ObjectStore
from ckptstore.testing.simulated.process import Process
from ckptstore.testing.simulated.seeds import run_seed, with_seeds
from ckptstore.testing.simulated.store import SimulatedStore
from ckptstore.types import ObjectInfo
from tests.faults.job import Job
from tests.faults.sweeping import SEED
from tests.world import RUN

T = TypeVar("T")


@with_seeds(1)
async def test_of_several_tries_at_a_step_the_last_one_is_the_newest(rng: random.Random) -> None:
    job = Job(SimulatedStore(rng), rng)
    await job.start()
    for step in (4, 5, 5, 5):
        told = await job.save(await job.begin(step))
        assert isinstance(told.answers[0], Commit)
    latest = await latest_commit(job.sim, RUN)
    assert latest == told.answers[0]
    tries = [commit.attempt.uid for commit in await commits_of_step(job.sim, RUN, 5)]
    assert tries == [uid for uid in reversed(job.attempts) if "-s000000000005-" in uid]


@with_seeds(5)
async def test_what_a_zombie_commits_after_the_restart_is_not_the_latest(
    rng: random.Random,
) -> None:
    """It stands still before any of its requests, and wakes up when the job went on without it."""
    job = Job(SimulatedStore(rng), rng, world_size=1)
    await job.start()
    before = await job.save(await job.begin(step=1))
    attempt = await job.begin(step=9)
    zombie = Process(job.store())
    saving = asyncio.ensure_future(job.save_rank(attempt, 0, zombie))
    await asyncio.sleep(rng.uniform(0.0, 0.05))
    zombie.stop()
    await job.start()
    zombie.resume()
    await saving
    (late,) = job.attempts[attempt.uid].answers
    assert isinstance(late, Commit)
    assert await latest_commit(job.sim, RUN) == before.answers[0]
    assert await find_checkpoint(job.sim, RUN, AtStep(9)) == late
    after = await job.save(await job.begin(step=2))
    assert await latest_commit(job.sim, RUN) == after.answers[0]


class Interrupted(AroundLayer):
    """Lets something else happen, all of it, just before request number ``at``, from 0."""

    def __init__(
        self, inner: ObjectStore, at: int, meanwhile: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(inner)
        self._left = at
        self._meanwhile = meanwhile

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        await self._count()
        return await send()

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._count()
        async for info in self._inner.list_objects(prefix):
            yield info

    async def _count(self) -> None:
        self._left -= 1
        if self._left == -1:
            await self._meanwhile()

    @property
    def happened(self) -> bool:
        return self._left < 0


@pytest.mark.parametrize("saved_before", [False, True])
def test_what_another_job_commits_while_one_starts_is_not_lost(saved_before: bool) -> None:
    """Whenever in the start it happens: the new job goes on from it, or comes before it."""
    for at in itertools.count():
        happened: list[bool] = []

        async def scenario(
            rng: random.Random, at: int = at, happened: list[bool] = happened
        ) -> None:
            sim = SimulatedStore(rng)
            job, other = Job(sim, rng), Job(sim, rng)
            if saved_before:
                await job.start()
                await job.save(await job.begin(step=1))

            async def other_job() -> None:
                await other.start()
                told = await other.save(await other.begin(step=2))
                assert isinstance(told.answers[0], Commit)

            store = Interrupted(job.store(), at, other_job)
            await claim_incarnation(store, run=RUN, parent_uid=None, facts={}, clock=job.clock)
            happened.append(store.happened)
            if store.happened:
                latest = await latest_commit(sim, RUN)
                assert latest is not None
                assert latest.attempt.uid in other.attempts

        run_seed(scenario, SEED)
        if not happened[0]:
            break
    assert at > 2
