"""Jobs whose whole life is drawn by chance, over many seeds."""

from __future__ import annotations

import random

from ckptstore.testing.simulated.seeds import run_seed, with_seeds
from tests.faults.schedule import Schedule


@with_seeds(60)
async def test_a_job_with_crashes_zombies_and_bad_luck_all_at_once(rng: random.Random) -> None:
    await Schedule(rng).run()


@with_seeds(20)
async def test_a_job_over_a_store_that_lies_and_rots(rng: random.Random) -> None:
    await Schedule(rng, lies=True).run()


@with_seeds(20)
async def test_a_job_over_a_store_that_ignores_create_only(rng: random.Random) -> None:
    await Schedule(rng, create_only=False).run()


def test_a_schedule_repeats_itself() -> None:
    """Or a seed that failed would be of no use."""
    traces: list[object] = []

    async def scenario(rng: random.Random) -> None:
        schedule = Schedule(rng)
        await schedule.run()
        traces.append(schedule.job.sim.trace)

    for seed in (1, 1, 2):
        run_seed(scenario, seed)
    assert traces[0] == traces[1] != traces[2]
