"""Resolve what is in doubt, or overdue, with any request failing in any way."""

from __future__ import annotations

import asyncio

from ckptstore.clock import Deadline
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import CheckpointInDoubtError, CkptStoreError
from ckptstore.manifest.model import Abort, Attempt, Commit, Decision
from ckptstore.testing.simulated.fates import Fate, Nth, fair
from tests.faults.checks import excusing_rot
from tests.faults.job import Job
from tests.faults.sweeping import costs_nothing, each_fate, saved, sweep


async def in_doubt(job: Job) -> Attempt:
    """Return an attempt that all ranks are ready for, and that nobody could decide."""
    attempt = await job.begin(step=2)
    job.sim.luck = Nth(0, Fate.DENIED, lasting=True, verb="put", key="/decisions/")
    told = await job.save(attempt)
    assert [type(answer) for answer in told.answers] == [CheckpointInDoubtError] * 2
    return attempt


async def resolved(job: Job, attempt: Attempt) -> Decision | None:
    async with Deadline.after(job.deadline_s).enforce("resolving"):
        return await resolve_attempt(job.store(), attempt, create_only=True, clock=job.clock)


async def resolve_twice(job: Job, attempt: Attempt, luck: Nth, expected: type[Decision]) -> None:
    job.sim.luck = luck
    first = None
    try:
        first = await resolved(job, attempt)
    except CkptStoreError:
        assert not costs_nothing(luck)
    job.sim.luck = fair
    with excusing_rot(job.sim):
        again = await resolved(job, attempt)
        assert again is not None
        assert first in (None, again)
        if costs_nothing(luck):
            assert isinstance(again, expected)
            assert first is not None
    await saved(job, step=3)


async def resolve_what_is_in_doubt(job: Job, luck: Nth) -> None:
    await resolve_twice(job, await in_doubt(job), luck, Commit)


async def resolve_what_is_overdue(job: Job, luck: Nth) -> None:
    attempt = await job.begin(step=2)
    await asyncio.sleep(job.deadline_s)
    await resolve_twice(job, attempt, luck, Abort)


@each_fate()
def test_what_is_in_doubt_is_resolved_with_one_request_failing(fate: Fate) -> None:
    sweep("resolve", fate, resolve_what_is_in_doubt)


@each_fate()
def test_what_is_overdue_is_resolved_with_one_request_failing(fate: Fate) -> None:
    sweep("resolve", fate, resolve_what_is_overdue)
