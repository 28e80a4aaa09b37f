"""Save with any request failing in any way."""

from __future__ import annotations

import asyncio

import pytest

from ckptstore.manifest.model import Commit
from ckptstore.testing.simulated.fates import Fate, Nth
from tests.faults.checks import check_nothing_left_running
from tests.faults.job import Job
from tests.faults.sweeping import GRACE_S, costs_nothing, each_fate, saved, sweep

OUTAGES = (
    Fate.LOST_BEFORE,
    Fate.LOST_AFTER,
    Fate.LATE,
    Fate.SILENT,
    Fate.SILENT_AFTER,
    Fate.SILENT_LATE,
    Fate.THROTTLED,
    Fate.THROTTLED_ASKED,
    Fate.DENIED,
)
WORLD_SIZES = pytest.mark.parametrize("world_size", [1, 2])


async def save_and_try_again(job: Job, luck: Nth) -> None:
    loop = asyncio.get_running_loop()
    attempt = await job.begin(step=2)
    job.sim.luck = luck
    began_s = loop.time()
    told = await job.save(attempt)
    assert loop.time() <= began_s + job.deadline_s + GRACE_S
    check_nothing_left_running(job.sim)
    if luck.fate is Fate.DENIED and luck.struck and luck.struck[0].key.startswith("data/"):
        assert loop.time() <= began_s + job.deadline_s / 4  # A rank that fails says so at once.
    if costs_nothing(luck):
        assert [type(answer) for answer in told.answers] == [Commit] * job.world_size
    await saved(job, step=2)


@WORLD_SIZES
@each_fate()
def test_a_save_with_one_request_failing(world_size: int, fate: Fate) -> None:
    assert sweep("save", fate, save_and_try_again, world_size=world_size)


@WORLD_SIZES
@each_fate(OUTAGES)
def test_a_save_with_all_requests_failing_from_one_on(world_size: int, fate: Fate) -> None:
    swept = sweep(
        "save in an outage",
        fate,
        save_and_try_again,
        world_size=world_size,
        deadline_s=60.0,
        lasting=True,
    )
    assert swept
