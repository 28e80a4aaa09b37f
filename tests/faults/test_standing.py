"""A record that must be written once, under every kind of bad luck."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.commit.standing import put_standing
from ckptstore.errors import (
    ObjectExistsError,
    PermissionDeniedError,
    RetriesExhaustedError,
    StoreError,
)
from ckptstore.opening import layered
from ckptstore.store import ObjectStore
from ckptstore.testing.faults import Fault, FaultLayer
from ckptstore.testing.simulated.fates import Fate, Nth
from ckptstore.testing.simulated.store import LATE_S, SimulatedStore
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import parse_key
from tests.faults.job import SETTINGS
from tests.faults.sweeping import HARMLESS, each_fate

KEY = parse_key("runs/llama/decisions/one")
OURS, THEIRS = b"ours", b"theirs"
PUT_FATES = tuple(fate for fate in Fate if fate in HARMLESS and fate.strikes("put"))


def simulated(tell: Callable[[SimulatedStore, ObjectStore], Awaitable[None]]) -> SimulatedStore:
    """Tell a story of a disk far away, and of the way to it that the product takes."""
    rng = random.Random(0)

    async def whole() -> SimulatedStore:
        sim = SimulatedStore(rng)
        await tell(sim, layered(sim, "", SETTINGS, rng=rng))
        await sim.calm()
        return sim

    return run_virtual(whole())


@pytest.mark.parametrize("times", [1, 2, 5])
@each_fate(PUT_FATES)
def test_ours_stands_once_it_is_told_to(fate: Fate, times: int) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        lucks = [Nth(0, fate, verb="put") for _ in range(times)]
        sim.luck = lambda request: next((bad for luck in lucks if (bad := luck(request))), None)
        assert await put_standing(store, KEY, OURS) == OURS
        assert lucks[0].struck
        await sim.calm()
        assert await sim.disk.get(KEY) == OURS

    assert not simulated(tell).disk.changed


@each_fate([Fate.LOST_BEFORE, Fate.LOST_AFTER, Fate.LATE, Fate.SILENT_AFTER])
def test_a_put_without_an_answer_is_read_back_before_it_is_sent_again(fate: Fate) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        sim.luck = Nth(0, fate, verb="put")
        await put_standing(store, KEY, OURS)
        assert [verb for _, verb, _, _ in sim.trace][:2] == ["put", "get"]

    simulated(tell)


@each_fate(PUT_FATES)
def test_theirs_stands_if_it_was_there_first(fate: Fate) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        await sim.disk.put(KEY, THEIRS)
        sim.luck = luck = Nth(0, fate, verb="put")
        assert await put_standing(store, KEY, OURS) == THEIRS
        assert luck.struck

    assert not simulated(tell).disk.changed


@each_fate(PUT_FATES)
def test_two_who_write_at_once_are_told_the_same(fate: Fate) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        sim.luck = luck = Nth(0, fate, verb="put")
        told = await asyncio.gather(*(put_standing(store, KEY, data) for data in (OURS, THEIRS)))
        assert told[0] == told[1] in (OURS, THEIRS)
        assert luck.struck
        await sim.calm()
        assert await sim.disk.get(KEY) == told[0]

    assert not simulated(tell).disk.changed


def test_what_is_written_too_late_changes_nothing() -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        sim.luck = luck = Nth(0, Fate.SILENT_LATE, verb="put", lasting=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20.0):
                await put_standing(store, KEY, OURS)
        assert len(luck.struck) == 1
        sim.luck = lambda request: None
        assert await put_standing(store, KEY, THEIRS) == THEIRS
        assert sim.late
        await asyncio.sleep(LATE_S[1])
        assert await sim.disk.get(KEY) == THEIRS

    assert not simulated(tell).disk.changed


def test_a_late_record_of_ours_may_stand_although_we_gave_up() -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        sim.luck = Nth(0, Fate.SILENT_LATE, verb="put", lasting=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20.0):
                await put_standing(store, KEY, OURS)
        await sim.calm()
        assert await put_standing(store, KEY, THEIRS) == OURS

    simulated(tell)


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.THROTTLED])
def test_what_never_lands_goes_on_until_the_deadline_and_stands_nowhere(fate: Fate) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        sim.luck = luck = Nth(0, fate, verb="put", lasting=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await put_standing(store, KEY, OURS)
        assert asyncio.get_running_loop().time() == pytest.approx(60.0)
        assert 5 < len(luck.struck) < 400  # It paused in between.

    assert len(simulated(tell).trace) < 1000


@each_fate([Fate.LOST_BEFORE, Fate.SILENT])
def test_a_lost_answer_that_cannot_be_read_back_is_no_answer(fate: Fate) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        lost, unread = Nth(0, Fate.LOST_AFTER, verb="put"), Nth(0, fate, verb="get", lasting=True)
        sim.luck = lambda request: lost(request) or unread(request)
        with pytest.raises(RetriesExhaustedError):
            await put_standing(store, KEY, OURS)
        assert lost.struck
        assert unread.struck
        await sim.calm()
        assert await put_standing(store, KEY, THEIRS) == OURS

    simulated(tell)


@pytest.mark.parametrize("verb", ["put", "get"])
def test_what_is_forbidden_is_said_at_once(verb: str) -> None:
    async def tell(sim: SimulatedStore, store: ObjectStore) -> None:
        await sim.disk.put(KEY, THEIRS)
        sim.luck = Nth(0, Fate.DENIED, verb=verb)
        with pytest.raises(PermissionDeniedError):
            await put_standing(store, KEY, OURS)
        assert asyncio.get_running_loop().time() < 1.0

    simulated(tell)


def test_a_refusal_by_nobody_is_not_believed() -> None:
    """A 412 while nothing is there: somebody's write that did not last, or a store's slip."""

    async def tell() -> None:
        faulty = FaultLayer(MemoryStore())
        faulty.script("put", *[Fault(ObjectExistsError("said the store"))] * 3)
        assert await put_standing(faulty, KEY, OURS) == OURS
        assert await faulty.get(KEY) == OURS
        faulty.assert_all_used()

    run_virtual(tell())


def test_a_put_that_is_refused_by_our_own_record_is_a_success() -> None:
    async def tell() -> None:
        faulty = FaultLayer(MemoryStore())
        faulty.script("put", Fault(ObjectExistsError("said the store"), landed=True))
        assert await put_standing(faulty, KEY, OURS) == OURS
        faulty.assert_all_used()

    run_virtual(tell())


def test_any_other_error_is_the_callers() -> None:
    async def tell() -> None:
        faulty = FaultLayer(MemoryStore())
        faulty.script("put", Fault(StoreError("odd")))
        with pytest.raises(StoreError, match="odd"):
            await put_standing(faulty, KEY, OURS)

    run_virtual(tell())
