"""The simulated store itself: a store like any other, whose bad luck is what it says it is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ckptstore.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    ThrottledError,
    TransientStoreError,
)
from ckptstore.store import ObjectStore
from ckptstore.testing import virtual_time
from ckptstore.testing.conformance import StoreContract
from ckptstore.testing.simulated.buckets import TokenBuckets
from ckptstore.testing.simulated.fates import Fate, Nth, Weather
from ckptstore.testing.simulated.process import KilledError, Process
from ckptstore.testing.simulated.seeds import run_seed, seeds, with_seeds
from ckptstore.testing.simulated.store import LATE_S, SimulatedStore
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import ByteRange, CreateOnly, Key, parse_key
from tests.faults.sweeping import each_fate

KEY = parse_key("data/00/one")
OLD, NEW = b"0123456789", b"abcdefghij"


class TestSimulated(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return SimulatedStore(random.Random(0), latency_s_max=0.0)


class TestProcess(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return Process(SimulatedStore(random.Random(0), latency_s_max=0.0))


def simulated(tell: Callable[[SimulatedStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        sim = SimulatedStore(random.Random(0))
        await sim.disk.put(KEY, OLD)
        await tell(sim)

    run_virtual(whole())


async def listed(store: ObjectStore) -> list[Key]:
    return [info.key async for info in store.list_objects("data/")]


@pytest.mark.parametrize(
    ("fate", "done", "done_later", "answered"),
    [
        (Fate.LOST_BEFORE, False, False, True),
        (Fate.LOST_AFTER, True, True, True),
        (Fate.LATE, False, True, True),
        (Fate.SILENT, False, False, False),
        (Fate.SILENT_AFTER, True, True, False),
        (Fate.SILENT_LATE, False, True, False),
        (Fate.THROTTLED, False, False, True),
        (Fate.THROTTLED_ASKED, False, False, True),
        (Fate.DENIED, False, False, True),
    ],
)
def test_a_write_meets_its_fate(fate: Fate, done: bool, done_later: bool, answered: bool) -> None:
    async def tell(sim: SimulatedStore) -> None:
        sim.luck = luck = Nth(0, fate)
        with pytest.raises(StoreError if answered else TimeoutError) as caught:
            async with asyncio.timeout(LATE_S[0] - 1.0):
                await sim.put(KEY, NEW)
        assert len(luck.struck) == 1
        assert (await sim.disk.get(KEY) == NEW) is done
        if fate is Fate.THROTTLED_ASKED:
            assert isinstance(caught.value, ThrottledError)
            assert caught.value.retry_after_s
        await sim.calm()
        assert (await sim.disk.get(KEY) == NEW) is done_later
        await sim.put(KEY, OLD)

    simulated(tell)


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        (Fate.SHORT, OLD[:5]),
        (Fate.FLIPPED, b"0123446789"),
    ],
)
def test_a_lie_is_told_once_and_leaves_the_disk_alone(fate: Fate, expected: bytes) -> None:
    async def tell(sim: SimulatedStore) -> None:
        sim.luck = Nth(0, fate)
        assert await sim.get(KEY) == expected
        target = bytearray(len(OLD))
        sim.luck = Nth(0, fate)
        await sim.get_into(KEY, ByteRange(0, len(OLD)), memoryview(target))
        assert bytes(target).rstrip(b"\0") == expected
        assert await sim.get(KEY) == OLD

    simulated(tell)


def test_a_connection_that_is_reset_leaves_half_of_the_body() -> None:
    async def tell(sim: SimulatedStore) -> None:
        target = bytearray(len(OLD))
        sim.luck = Nth(0, Fate.RESET, lasting=True)
        with pytest.raises(TransientStoreError):
            await sim.get_into(KEY, ByteRange(0, len(OLD)), memoryview(target))
        assert bytes(target) == OLD[:5] + bytes(5)
        with pytest.raises(TransientStoreError):
            await sim.get(KEY)

    simulated(tell)


def test_what_rots_stays_rotten_and_the_store_does_not_know() -> None:
    async def tell(sim: SimulatedStore) -> None:
        sim.luck = Nth(0, Fate.ROTTEN)
        await sim.put(KEY, NEW)
        assert sim.disk.rotten == {KEY}
        found = await sim.get(KEY)
        assert sum((one ^ two).bit_count() for one, two in zip(found, NEW, strict=True)) == 1
        assert (await sim.head(KEY)).size_bytes == len(NEW)

    simulated(tell)


@each_fate([Fate.CUT, Fate.TRUNCATED])
def test_a_listing_is_cut_with_an_error_or_without(fate: Fate) -> None:
    async def tell(sim: SimulatedStore) -> None:
        await sim.disk.put(parse_key("data/00/two"), NEW)
        sim.luck = Nth(0, fate)
        if fate is Fate.CUT:
            with pytest.raises(TransientStoreError):
                await listed(sim)
        else:
            assert len(await listed(sim)) < 2
        assert len(await listed(sim)) == 2

    simulated(tell)


def test_a_write_that_is_cancelled_on_its_way_may_land_later() -> None:
    async def tell(sim: SimulatedStore) -> None:
        landed = 0
        for index in range(20):
            key = parse_key(f"data/01/{index}")
            writing = asyncio.ensure_future(sim.put(key, NEW))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            with pytest.raises(ObjectNotFoundError):
                await sim.disk.get(key)
            await sim.calm()
            landed += [info.key async for info in sim.list_objects(key)] == [key]
        assert 0 < landed < 20

    simulated(tell)


def test_an_upload_nobody_was_told_of_is_remembered() -> None:
    async def tell(sim: SimulatedStore) -> None:
        for fate in (Fate.LOST_AFTER, Fate.LATE, Fate.SILENT_AFTER):
            sim.luck = Nth(0, fate)
            with pytest.raises((TransientStoreError, TimeoutError)):
                async with asyncio.timeout(5.0):
                    await sim.multipart_create(KEY)
        await sim.calm()
        assert sim.unheard == set(sim.disk.uploads)
        assert len(sim.unheard) == 3

    simulated(tell)


def test_a_store_may_ignore_create_only_and_it_shows() -> None:
    async def tell() -> None:
        sim = SimulatedStore(random.Random(0), keeps_create_only=False)
        await sim.put(KEY, OLD, mode=CreateOnly())
        await sim.put(KEY, NEW, mode=CreateOnly())
        assert sim.disk.changed == {KEY}

    run_virtual(tell())


def test_a_store_that_keeps_create_only_refuses() -> None:
    async def tell(sim: SimulatedStore) -> None:
        with pytest.raises(ObjectExistsError):
            await sim.put(KEY, NEW, mode=CreateOnly())
        assert not sim.disk.changed

    simulated(tell)


def test_new_keys_are_listed_late_and_found_at_once() -> None:
    async def tell() -> None:
        sim = SimulatedStore(random.Random(0), lag_s_max=60.0)
        await sim.put(KEY, OLD)
        assert await listed(sim) == []
        assert await sim.get(KEY) == OLD
        await asyncio.sleep(60.0)
        assert await listed(sim) == [KEY]

    run_virtual(tell())


def test_a_prefix_that_is_asked_too_often_is_throttled_and_the_others_are_not() -> None:
    async def tell() -> None:
        buckets = TokenBuckets(per_s=1.0, burst=3.0)
        sim = SimulatedStore(random.Random(0), latency_s_max=0.0, buckets=buckets)
        for _ in range(3):
            await sim.put(KEY, OLD)
        for _ in range(20):
            with pytest.raises(ThrottledError) as caught:
                await sim.put(KEY, OLD)
            assert caught.value.retry_after_s in (None, 1.0)
        await sim.put(parse_key("data/01/other"), OLD)
        await asyncio.sleep(1.0)
        await sim.put(KEY, OLD)

    run_virtual(tell())


def test_a_dead_process_reaches_nothing() -> None:
    async def tell(sim: SimulatedStore) -> None:
        process = Process(sim, dies_at=1)
        assert await process.get(KEY) == OLD
        with pytest.raises(KilledError):
            await process.put(KEY, NEW)
        with pytest.raises(KilledError):
            await listed(process)
        assert await sim.disk.get(KEY) == OLD
        last_words = Process(sim, dies_at=0, dies_after_it=True)
        with pytest.raises(KilledError):
            await last_words.put(KEY, NEW)
        assert await sim.disk.get(KEY) == NEW

    simulated(tell)


def test_a_dead_process_runs_no_further() -> None:
    async def tell(sim: SimulatedStore) -> None:
        process = Process(sim)
        running = asyncio.ensure_future(process.run(asyncio.sleep(100.0)))
        await asyncio.sleep(1.0)
        process.kill()
        with pytest.raises(KilledError):
            await running
        assert asyncio.get_running_loop().time() < 2.0

    simulated(tell)


def test_a_stopped_process_goes_on_where_it_was() -> None:
    async def tell(sim: SimulatedStore) -> None:
        process = Process(sim)
        process.stop()
        writing = asyncio.ensure_future(process.put(KEY, NEW))
        await asyncio.sleep(600.0)
        assert await sim.disk.get(KEY) == OLD
        process.resume()
        await writing
        assert await sim.disk.get(KEY) == NEW

    simulated(tell)


def test_bad_weather_brings_every_fate_and_storms() -> None:
    rng = random.Random(0)
    met: set[Fate] = set()

    async def tell(sim: SimulatedStore) -> None:
        sim.luck = Weather(rng, {fate: 0.02 for fate in Fate}, storm_rate=0.001)
        for _ in range(300):
            for request in (sim.get(KEY), sim.put(KEY, NEW), listed(sim)):
                try:
                    async with asyncio.timeout(5.0):
                        await request
                except (StoreError, TimeoutError):
                    pass
        met.update(fate for *_, fate in sim.trace if fate is not None)
        await sim.calm()
        assert await sim.get(KEY)

    simulated(tell)
    assert met == set(Fate)


def test_the_same_seed_gives_the_same_run() -> None:
    traces: list[object] = []

    async def scenario(rng: random.Random) -> None:
        sim = SimulatedStore(rng)
        sim.luck = Weather(rng, dict.fromkeys(Fate, 0.02), storm_rate=0.01)
        for index in range(50):
            async with asyncio.TaskGroup() as group:
                for rank in range(4):
                    group.create_task(quietly(sim.put(parse_key(f"data/{index}/{rank}"), NEW)))
        traces.append(sim.trace)

    for seed in (3, 3, 4):
        run_seed(scenario, seed)
    assert traces[0] == traces[1] != traces[2]


async def quietly(request: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(5.0):
            await request
    except (StoreError, TimeoutError, PermissionDeniedError):
        pass


def test_the_seed_that_failed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CKPTSTORE_SOAK_SEEDS", raising=False)

    @with_seeds(9)
    async def unlucky(rng: random.Random) -> None:
        assert rng.random() != random.Random(5).random()

    with pytest.raises(AssertionError) as caught:
        unlucky()
    assert caught.value.__notes__ == ["seed 5; again: CKPTSTORE_SOAK_SEEDS=5..5 pytest -k unlucky"]


@pytest.mark.parametrize(
    ("said", "expected"), [(None, range(7)), ("3", range(3)), ("17..19", range(17, 20))]
)
def test_the_environment_says_which_seeds(
    said: str | None, expected: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CKPTSTORE_SOAK_SEEDS", raising=False)
    if said is not None:
        monkeypatch.setenv("CKPTSTORE_SOAK_SEEDS", said)
    assert seeds(7) == expected


def test_a_deadlock_is_an_error_and_not_a_test_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "THREADS_S_MAX", 0.01)

    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is left that could wake it up"):
        run_virtual(wait_for_nobody())
