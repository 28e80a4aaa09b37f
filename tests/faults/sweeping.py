"""Fail the n-th request of an operation, for every n, and look each time what is left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from ckptstore.manifest.model import Commit
from ckptstore.testing.simulated.fates import Fate, Nth, fair
from ckptstore.testing.simulated.seeds import run_seed
from ckptstore.testing.simulated.store import SimulatedStore
from tests.faults.checks import check_all, check_nothing_left_running, check_uploads, logged
from tests.faults.job import Job, Told
from tests.faults.swept import SWEPT

SEED = 7  # The same for every n, or some request might never be the n-th.
GRACE_S = 2.0

# One of these costs nothing but time, unless it strikes a completion: that may not be repeated,
# and is waited for longer than these saves have time.
HARMLESS = frozenset(Fate) - {Fate.DENIED, Fate.SHORT, Fate.FLIPPED, Fate.ROTTEN, Fate.TRUNCATED}
NOT_REPEATED = frozenset(
    {Fate.LOST_BEFORE, Fate.LATE, Fate.SILENT, Fate.SILENT_LATE, Fate.SILENT_AFTER}
)

Story = Callable[[Job, Nth], Awaitable[None]]


def each_fate(fates: Sequence[Fate] = tuple(Fate)) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fate", fates, ids=lambda fate: fate.name.lower())


async def saved(job: Job, step: int) -> Told:
    """Save a step with good luck."""
    job.sim.luck = fair
    told = await job.save(await job.begin(step))
    assert [type(answer) for answer in told.answers] == [Commit] * job.world_size
    return told


def sweep(
    name: str,
    fate: Fate,
    story: Story,
    *,
    world_size: int = 2,
    deadline_s: float = 400.0,
    lasting: bool = False,
) -> int:
    """Tell the story with the n-th request failing, for all n, and return how many there were.

    The story begins after a checkpoint of step 1 and sets the luck when it wants it.
    """
    for n in itertools.count():
        luck = Nth(n, fate, lasting=lasting)

        async def scenario(rng: random.Random, luck: Nth = luck) -> None:
            job = Job(SimulatedStore(rng), rng, world_size=world_size, deadline_s=deadline_s)
            await job.start()
            await saved(job, step=1)
            with logged() as log:
                await story(job, luck)
                check_nothing_left_running(job.sim)
                check_uploads(job, log)
            await check_all(job)
            check_nothing_left_running(job.sim)

        try:
            run_seed(scenario, SEED)
        except BaseException as error:
            error.add_note(f"request {n}, {fate.value}: {luck.struck[:1]}")
            raise
        if not luck.struck:
            SWEPT[name] += n
            return n
    raise AssertionError("unreachable")


def costs_nothing(luck: Nth) -> bool:
    """Return whether the operation should have succeeded in spite of what happened."""
    if not luck.struck:
        return True
    if luck.lasting or luck.fate not in HARMLESS:
        return False
    return luck.struck[0].verb != "multipart_complete" or luck.fate not in NOT_REPEATED
