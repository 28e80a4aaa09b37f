"""Kill a rank at any of its requests, before the store does it or after."""

from __future__ import annotations

import itertools
import random

import pytest

from ckptstore.testing.simulated.process import Process
from ckptstore.testing.simulated.seeds import run_seed
from ckptstore.testing.simulated.store import SimulatedStore
from tests.faults.checks import check_all, check_nothing_left_running, check_uploads, logged
from tests.faults.job import Job
from tests.faults.sweeping import SEED, saved
from tests.faults.swept import SWEPT


async def crash(job: Job, victims: set[int], n: int, *, after: bool) -> bool:
    """Save with the victims killed at their n-th request; return whether any got that far."""
    processes = [
        Process(job.store(), dies_at=n if rank in victims else None, dies_after_it=after)
        for rank in range(job.world_size)
    ]
    told = await job.save(await job.begin(step=2), processes)
    return bool(told.killed)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("victims", [{0}, {1}, {0, 1}], ids=str)
def test_a_rank_killed_at_any_request(victims: set[int], after: bool) -> None:
    for n in itertools.count():
        killed: list[bool] = []

        async def scenario(rng: random.Random, n: int = n, killed: list[bool] = killed) -> None:
            job = Job(SimulatedStore(rng), rng, deadline_s=60.0)
            await job.start()
            await saved(job, step=1)
            with logged() as log:
                killed.append(await crash(job, victims, n, after=after))
                check_nothing_left_running(job.sim)
                check_uploads(job, log)
            await job.start()
            await saved(job, step=2)
            await check_all(job)

        run_seed(scenario, SEED)
        if killed == [False]:
            break
        SWEPT["crash"] += 1
    assert n > 5
