"""The byte budget: bounded, fair, and never a deadlock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.budget import ByteBudget
from ckptstore.testing.virtual_time import run_virtual


@given(st.lists(st.integers(1, 15), max_size=20), st.randoms(use_true_random=False))
def test_the_budget_is_kept_and_everybody_gets_through(sizes: list[int], rng: object) -> None:
    budget = ByteBudget(10)
    done: list[int] = []

    async def hold(index: int, size: int) -> None:
        async with budget.hold(size):
            assert budget.bytes_held <= 10 or budget.bytes_held == size  # Alone, if oversized.
            await asyncio.sleep(size)
            done.append(index)

    async def everybody() -> None:
        await asyncio.gather(*(hold(index, size) for index, size in enumerate(sizes)))

    run_virtual(everybody())
    assert sorted(done) == list(range(len(sizes)))
    assert budget.bytes_held == 0


def test_nobody_overtakes_an_oversized_part() -> None:
    budget = ByteBudget(10)
    order: list[str] = []

    async def hold(name: str, size: int) -> None:
        async with budget.hold(size):
            order.append(name)
            await asyncio.sleep(1)

    async def everybody() -> None:
        await asyncio.gather(hold("small", 6), hold("huge", 20), hold("late", 1))

    run_virtual(everybody())
    assert order == ["small", "huge", "late"]


@pytest.mark.parametrize("others", [0, 3])
def test_a_holder_that_is_cancelled_gives_its_place_back(others: int) -> None:
    budget = ByteBudget(10)

    async def hold(size: int) -> None:
        async with budget.hold(size):
            await asyncio.sleep(5)

    async def story() -> None:
        first = asyncio.ensure_future(hold(10))
        waiting = asyncio.ensure_future(hold(9))
        rest = [asyncio.ensure_future(hold(2)) for _ in range(others)]
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(first, waiting, *rest, return_exceptions=True)
        assert waiting.cancelled()

    run_virtual(story())
    assert budget.bytes_held == 0
    assert str(budget) == "0 of 10 bytes in flight, 0 parts waiting for room"


def test_a_holder_cancelled_as_it_is_admitted_holds_nothing() -> None:
    budget = ByteBudget(10)

    async def hold() -> None:
        async with budget.hold(10):
            await asyncio.sleep(5)

    async def story() -> None:
        waiting = asyncio.ensure_future(hold())
        await asyncio.sleep(0)  # Admitted, and not yet awake.
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    run_virtual(story())
    assert budget.bytes_held == 0


@pytest.mark.parametrize("holders", [2, 3, 5])
def test_all_who_wait_may_be_cancelled_at_once(holders: int) -> None:
    budget = ByteBudget(10)

    async def hold() -> None:
        async with budget.hold(10):
            await asyncio.sleep(5)

    async def story() -> None:
        tasks = [asyncio.ensure_future(hold()) for _ in range(holders)]
        await asyncio.sleep(1)
        for task in tasks:  # As a task group does when one of its tasks fails.
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * holders

    run_virtual(story())
    assert budget.bytes_held == 0
    assert str(budget) == "0 of 10 bytes in flight, 0 parts waiting for room"
