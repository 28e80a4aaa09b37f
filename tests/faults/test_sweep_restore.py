"""Restore with any request failing in any way: the right bytes, or an error that says why not."""

from __future__ import annotations

import pytest

from ckptstore.clock import Deadline
from ckptstore.errors import CheckpointNotFoundError, CkptStoreError, IntegrityError
from ckptstore.load import find_checkpoint
from ckptstore.location import AtStep, Latest, Selector
from ckptstore.testing.simulated.fates import Fate, Nth, fair
from tests.faults.checks import read_back, saved_data
from tests.faults.job import Job
from tests.faults.sweeping import HARMLESS, costs_nothing, each_fate, saved, sweep
from tests.world import RUN

READ_FATES = tuple(fate for fate in Fate if any(map(fate.strikes, ("get", "list_objects"))))
SELECTORS = pytest.mark.parametrize("selector", [Latest(), AtStep(1)], ids=str)


async def restore(job: Job, selector: Selector) -> None:
    """Restore, and fail if what is handed out is not a checkpoint that the job was told of."""
    store = job.store()
    async with Deadline.after(job.deadline_s).enforce("restoring"):
        commit = await find_checkpoint(store, RUN, selector)
        assert commit in job.attempts[commit.attempt.uid].answers
        assert await read_back(store, commit) == saved_data(commit)


@SELECTORS
@each_fate(READ_FATES)
def test_a_restore_with_one_request_failing(selector: Selector, fate: Fate) -> None:
    async def story(job: Job, luck: Nth) -> None:
        await saved(job, step=2)
        job.sim.luck = luck
        try:
            await restore(job, selector)
        except CheckpointNotFoundError:
            assert fate is Fate.TRUNCATED  # A store that hides objects hides checkpoints.
        except CkptStoreError:
            assert not costs_nothing(luck)
            assert fate is Fate.DENIED or luck.struck[0].verb != "get_into"  # It is read again.
        job.sim.luck = fair
        await restore(job, selector)

    assert sweep("restore", fate, story)


@each_fate([fate for fate in READ_FATES if fate is not Fate.TRUNCATED])
def test_a_restore_with_all_requests_failing_from_one_on(fate: Fate) -> None:
    async def story(job: Job, luck: Nth) -> None:
        job.sim.luck = luck
        try:
            await restore(job, Latest())
        except CheckpointNotFoundError:
            raise
        except IntegrityError:
            assert fate not in HARMLESS
        except CkptStoreError:
            assert luck.struck
        else:
            assert not luck.struck or fate in (Fate.CUT, Fate.RESET)

    assert sweep("restore in an outage", fate, story, deadline_s=60.0, lasting=True)
