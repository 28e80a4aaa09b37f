"""Claim an incarnation and begin an attempt with any request failing in any way."""

from __future__ import annotations

from ckptstore.commit.catalog import newest_incarnation
from ckptstore.errors import CkptStoreError
from ckptstore.testing.simulated.fates import Fate, Nth, fair
from tests.faults.checks import excusing_rot
from tests.faults.job import Job
from tests.faults.sweeping import costs_nothing, each_fate, saved, sweep
from tests.world import RUN


async def restart_and_save(job: Job, luck: Nth) -> None:
    job.sim.luck = luck
    try:
        await job.start()
        await job.begin(step=2)
    except CkptStoreError:
        assert not costs_nothing(luck)
    job.sim.luck = fair
    with excusing_rot(job.sim):
        await job.start()
        assert job.incarnation == await newest_incarnation(job.sim.disk, RUN)
    await saved(job, step=2)


@each_fate()
def test_a_job_starts_and_begins_with_one_request_failing(fate: Fate) -> None:
    assert sweep("start and begin", fate, restart_and_save) or fate is Fate.SHORT
