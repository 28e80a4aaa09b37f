"""Interrupt a rank at any of its requests: it says so to the others, in the little time it has."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ckptstore.errors import CheckpointAbortedError
from ckptstore.layers._around import Request
from ckptstore.save import GIVE_UP_S_MAX
from ckptstore.store import ObjectStore
from ckptstore.testing.simulated.fates import Fate, Nth
from ckptstore.testing.simulated.process import Process
from ckptstore.testing.simulated.seeds import run_seed
from ckptstore.testing.simulated.store import SimulatedStore
from ckptstore.upload.uploader import ABORT_S_MAX
from tests.faults.checks import check_all, check_nothing_left_running, check_uploads, logged
from tests.faults.job import Job
from tests.faults.sweeping import GRACE_S, SEED, saved
from tests.faults.swept import SWEPT

T = TypeVar("T")


class Interruptible(Process):
    """A process whose ``task`` is cancelled while its request number ``at`` is on its way."""

    def __init__(self, inner: ObjectStore, at: int, sim: SimulatedStore, fate: Fate | None) -> None:
        super().__init__(inner)
        self._left = at
        self._sim = sim
        self._fate = fate
        self.task: asyncio.Task[None] | None = None
        self.interrupted_s: float | None = None

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left == -1:
            loop = asyncio.get_running_loop()
            if self._fate:
                self._sim.luck = Nth(0, self._fate, verb=request.verb, key=request.key)
            delay_s = 0.05 if self._fate else 0.005  # Once it met its fate, or while it travels.
            loop.call_later(delay_s, self._interrupt)
            self.interrupted_s = loop.time() + delay_s
        return await super()._around(request, send)

    def _interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def interrupted(job: Job, rank: int, process: Interruptible) -> None:
    """Save, and look how long the interrupted rank takes to end, and the others to hear of it."""
    loop = asyncio.get_running_loop()
    attempt = await job.begin(step=2)
    process.task = asyncio.ensure_future(job.save_rank(attempt, rank, process))
    others = [
        job.save_rank(attempt, other, Process(job.store()))
        for other in range(job.world_size)
        if other != rank
    ]
    waiting = asyncio.ensure_future(asyncio.gather(*others))
    await asyncio.wait({process.task})
    if process.interrupted_s is not None:
        assert loop.time() <= process.interrupted_s + GIVE_UP_S_MAX + ABORT_S_MAX + GRACE_S
    await waiting
    told = job.attempts[attempt.uid]
    aborted = any(isinstance(answer, CheckpointAbortedError) for answer in told.answers)
    if process.interrupted_s is not None and aborted and job.create_only:
        assert loop.time() <= process.interrupted_s + job.deadline_s / 2


@pytest.mark.parametrize("fate", [None, Fate.SILENT_LATE], ids=["", "silent_late"])
@pytest.mark.parametrize("create_only", [True, False], ids=["create_only", "overwriting"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_interrupted_at_any_request(rank: int, create_only: bool, fate: Fate | None) -> None:
    for at in itertools.count():
        happened: list[bool] = []

        async def scenario(
            rng: random.Random, at: int = at, happened: list[bool] = happened
        ) -> None:
            sim = SimulatedStore(rng, keeps_create_only=create_only)
            job = Job(sim, rng, create_only=create_only)
            await job.start()
            await saved(job, step=1)
            with logged() as log:
                process = Interruptible(job.store(), at, sim, fate)
                await interrupted(job, rank, process)
                happened.append(process.interrupted_s is not None)
                check_nothing_left_running(sim)
                check_uploads(job, log)
            await saved(job, step=3)
            await check_all(job)

        run_seed(scenario, SEED)
        if not happened[0]:
            break
        SWEPT["interrupt"] += 1
    assert at > 5
