"""A job's life, drawn by chance: crashes, zombies, restarts and bad luck, all at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from ckptstore.clock import Deadline
from ckptstore.commit.catalog import list_undecided
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.concurrency import task_group
from ckptstore.errors import CheckpointNotFoundError, CkptStoreError
from ckptstore.layers._around import Request
from ckptstore.load import find_checkpoint
from ckptstore.location import Latest
from ckptstore.manifest.layout import parse_uid
from ckptstore.manifest.model import Attempt, Commit
from ckptstore.testing.simulated.buckets import TokenBuckets
from ckptstore.testing.simulated.fates import HONEST, Fate, Weather
from ckptstore.testing.simulated.process import Process
from ckptstore.testing.simulated.store import SimulatedStore
from tests.faults.checks import (
    check_all,
    check_nothing_left_running,
    check_uploads,
    logged,
    read_back,
    saved_data,
)
from tests.faults.job import Job
from tests.faults.sweeping import GRACE_S
from tests.world import RUN

ROUNDS = 3
ZOMBIE_S = 3000.0  # A process that stands still does not notice that its time is up.
LIES = (Fate.SHORT, Fate.FLIPPED, Fate.TRUNCATED, Fate.ROTTEN)


class Schedule:
    """One run: ``ROUNDS`` steps are saved, each tried until a save of it is committed."""

    def __init__(self, rng: random.Random, *, lies: bool = False, create_only: bool = True) -> None:
        self.rng = rng
        self.honest = not lies
        self.lag_s = rng.choice([0.0, 0.0, 20.0])
        sim = SimulatedStore(
            rng,
            keeps_create_only=create_only,
            lag_s_max=self.lag_s,
            buckets=rng.choice([None, None, TokenBuckets(per_s=5.0, burst=10.0)]),
        )
        self.job = Job(
            sim,
            rng,
            world_size=rng.randint(2, 4),
            deadline_s=rng.choice([40.0, 150.0, 400.0]),
            create_only=create_only,
        )
        self.luck = self._weather(lies)
        self.told_last: str = ""  # The newest uid of which a rank was told that it is committed.

    async def run(self) -> None:
        with logged() as log:
            async with task_group() as self.aside:
                reader = self.aside.create_task(self._read_now_and_then())
                for step in range(1, ROUNDS + 1):
                    while not await self._round(step):
                        pass
                await self.job.sim.calm()
                reader.cancel()
            await self.job.sim.calm()  # The zombies may have left something on its way.
            check_uploads(self.job, log)
        await check_all(self.job)
        check_nothing_left_running(self.job.sim)

    def _weather(self, lies: bool) -> Weather:
        fates = (*self.rng.sample(HONEST, k=self.rng.randint(0, 4)), *(LIES if lies else ()))
        rates = {fate: self.rng.uniform(0.0, 0.04) for fate in fates}
        return Weather(self.rng, rates, storm_rate=self.rng.choice([0.0, 0.002, 0.01]))

    def _luck(self, request: Request) -> Fate | None:
        fate = self.luck(request)
        if fate is Fate.ROTTEN and not request.key.startswith("data/"):
            return None  # Or soon nothing would be left that anybody could start from.
        return fate

    async def _round(self, step: int) -> bool:
        """Try to save a step once, and return whether anybody heard that it was committed."""
        self.job.sim.luck = self._luck
        if not self.job.incarnation or self.rng.random() < 0.3:
            await self._restart()
        try:
            attempt = await self.job.begin(step)
        except CkptStoreError:
            return False
        if self.rng.random() < 0.3:
            self.aside.create_task(self._resolve_after(self.rng.uniform(0.0, 500.0)))
        ranks = [self._rank(attempt, rank) for rank in range(self.job.world_size)]
        await asyncio.gather(*ranks)
        return any(isinstance(answer, Commit) for answer in self._answers(attempt))

    async def _restart(self) -> None:
        """Start the job anew; what its zombies commit from now on is nobody's latest."""
        self.job.incarnation = 0
        while not self.job.incarnation:
            await asyncio.sleep(self.lag_s)
            with suppress(CkptStoreError):
                await self.job.start(within_s=self.job.deadline_s)

    async def _rank(self, attempt: Attempt, rank: int) -> None:
        kind = self.rng.choices(["well", "dies", "stops", "is interrupted"], [8, 1, 1, 1])[0]
        dies_at = self.rng.randrange(15) if kind == "dies" else None
        process = Process(self.job.store(), dies_at=dies_at, dies_after_it=self.rng.random() < 0.5)
        if kind == "stops":
            self.aside.create_task(self._zombie(attempt, rank, process))
            return
        began_s = asyncio.get_running_loop().time()
        saving = asyncio.ensure_future(self._save_rank(attempt, rank, process, self.job.deadline_s))
        if kind == "is interrupted":
            await asyncio.wait({saving}, timeout=self.rng.expovariate(1.0))
            saving.cancel()
        await asyncio.wait({saving})
        if not saving.cancelled():
            saving.result()
        lasted_s = asyncio.get_running_loop().time() - began_s
        assert lasted_s <= self.job.deadline_s + GRACE_S

    async def _zombie(self, attempt: Attempt, rank: int, process: Process) -> None:
        """Save, but stand still somewhere for minutes."""

        async def stand_still() -> None:
            await asyncio.sleep(self.rng.expovariate(2.0))
            process.stop()
            await asyncio.sleep(self.rng.uniform(10.0, 2000.0))
            process.resume()

        async with task_group() as group:
            group.create_task(stand_still())
            group.create_task(self._save_rank(attempt, rank, process, ZOMBIE_S))

    async def _save_rank(
        self, attempt: Attempt, rank: int, process: Process, deadline_s: float
    ) -> None:
        await self.job.save_rank(attempt, rank, process, deadline_s=deadline_s)
        current = parse_uid(attempt.uid).incarnation == self.job.incarnation
        if current and any(isinstance(answer, Commit) for answer in self._answers(attempt)):
            self.told_last = max(self.told_last, attempt.uid)

    def _answers(self, attempt: Attempt) -> list[Commit | Exception]:
        return self.job.attempts[attempt.uid].answers

    async def _resolve_after(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if not self.job.create_only:
            return
        store = self.job.store()
        try:
            async with Deadline.after(self.job.deadline_s).enforce("resolving"):
                for attempt in await list_undecided(store, RUN):
                    await resolve_attempt(store, attempt, create_only=True, clock=self.job.clock)
        except CkptStoreError:
            pass

    async def _read_now_and_then(self) -> None:
        """Read the latest again and again: never less than was told, and never a wrong byte."""
        while True:
            await asyncio.sleep(self.rng.uniform(1.0, 200.0))
            told_last = self.told_last
            store = self.job.store()
            try:
                async with Deadline.after(self.job.deadline_s).enforce("reading"):
                    commit = await find_checkpoint(store, RUN, Latest())
                    assert await read_back(store, commit) == saved_data(commit)
            except CheckpointNotFoundError:
                assert self.lag_s or not self.honest or not told_last
            except CkptStoreError:
                pass
            else:
                assert self.lag_s or not self.honest or commit.attempt.uid >= told_last
