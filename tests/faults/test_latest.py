"""Which checkpoint is the latest, when the same step is saved again."""

from __future__ import annotations

import random

from ckptstore.commit.catalog import commits_of_step, latest_commit
from ckptstore.manifest.model import Commit
from ckptstore.testing.simulated.seeds import with_seeds
from ckptstore.testing.simulated.store import SimulatedStore
from tests.faults.job import Job
from tests.world import RUN


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
