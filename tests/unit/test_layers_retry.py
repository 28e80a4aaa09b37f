"""Retry: what is tried again, for how long, and what must never be."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import (
    CredentialsExpiredError,
    DamagedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    RetriesExhaustedError,
    StalledError,
    StoreError,
    ThrottledError,
    TransientStoreError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.layers import retry
from ckptstore.layers.retry import RetryLayer
from ckptstore.settings import RetrySettings
from ckptstore.testing.conformance import KEY
from ckptstore.testing.faults import Damage, Fault, FaultLayer, Silence
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import ByteRange, CreateOnly, Key, ObjectInfo, Part, UploadId, parse_key

RESET = Fault(TransientStoreError("connection reset"))
SLOW_DOWN = Fault(ThrottledError("SlowDown"))
SETTINGS = RetrySettings(fault_s_max=10, throttle_s_max=100, backoff_s_first=0.1, backoff_s_max=1)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def retrying(faulty: FaultLayer, settings: RetrySettings = SETTINGS) -> RetryLayer:
    return RetryLayer(faulty, settings, rng=random.Random(0))


async def started() -> tuple[FaultLayer, RetryLayer]:
    faulty = FaultLayer(MemoryStore())
    await faulty.put(KEY, b"0123")
    faulty.calls.clear()
    return faulty, retrying(faulty)


def test_faults_are_ridden_out() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", RESET, SLOW_DOWN, Fault(StalledError("stalled")))
        assert await store.get(KEY) == b"0123"
        assert faulty.calls["get"] == 4
        faulty.assert_all_used()

    run_virtual(story())


def test_a_permanent_failure_is_not_tried_again() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", Fault(StoreError("InvalidArgument")))
        with pytest.raises(StoreError, match="InvalidArgument"):
            await store.get(KEY)
        with pytest.raises(ObjectNotFoundError):
            await store.get(parse_key("no/such"))
        assert faulty.calls["get"] == 2
        assert now_s() == 0

    run_virtual(story())


def test_a_bug_is_not_tried_again() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", Fault(RuntimeError("Event loop is closed")))
        with pytest.raises(RuntimeError):
            await store.get(KEY)
        assert faulty.calls["get"] == 1

    run_virtual(story())


@pytest.mark.parametrize(("fault", "budget_s"), [(RESET, 10), (SLOW_DOWN, 100)])
def test_each_kind_of_failure_has_its_budget(fault: Fault, budget_s: float) -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", *[fault] * 1000)
        with pytest.raises(RetriesExhaustedError) as caught:
            await store.get(KEY)
        assert budget_s - 1 <= now_s() <= budget_s
        said = str(caught.value)
        assert f"{faulty.calls['get']} tries in {now_s():.1f} s" in said
        assert (caught.value.verb, caught.value.key) == ("get", KEY)
        assert caught.value.__cause__ is fault.error

    run_virtual(story())


def test_throttling_does_not_use_up_the_budget_for_faults() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", *[SLOW_DOWN] * 60, *[RESET] * 5)
        assert await store.get(KEY) == b"0123"
        assert now_s() > SETTINGS.fault_s_max
        faulty.assert_all_used()

    run_virtual(story())


def test_time_that_a_try_itself_takes_counts() -> None:
    class Slow(FaultLayer):
        async def get(self, key: Key) -> bytes:
            await asyncio.sleep(4)
            return await super().get(key)

    async def story() -> None:
        faulty = Slow(MemoryStore())
        faulty.script("get", *[RESET] * 100)
        with pytest.raises(RetriesExhaustedError):
            await retrying(faulty).get(KEY)
        assert faulty.calls["get"] == 3

    run_virtual(story())


def test_waits_grow_are_random_and_bounded() -> None:
    async def waits(seed: int) -> list[float]:
        moments: list[float] = []

        class Watched(FaultLayer):
            async def get(self, key: Key) -> bytes:
                moments.append(now_s())
                return await super().get(key)

        faulty = Watched(MemoryStore())
        faulty.script("get", *[RESET] * 1000)
        store = RetryLayer(faulty, SETTINGS, rng=random.Random(seed))
        with pytest.raises(RetriesExhaustedError):
            await store.get(KEY)
        return [later - sooner for sooner, later in itertools.pairwise(moments)]

    one, two = run_virtual(waits(1)), run_virtual(waits(2))
    assert one != two
    assert all(wait_s <= min(0.1 * 2**n, 1) for n, wait_s in enumerate(one))
    assert max(one) > 0.5
    assert one == run_virtual(waits(1))


def test_what_the_store_asks_for_is_honoured() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", Fault(ThrottledError("SlowDown", retry_after_s=30)))
        await store.get(KEY)
        assert now_s() >= 30

    run_virtual(story())


def test_a_store_that_asks_for_more_than_there_is_time_ends_it_at_once() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get", Fault(ThrottledError("SlowDown", retry_after_s=3000)))
        with pytest.raises(RetriesExhaustedError):
            await store.get(KEY)
        assert now_s() == 0

    run_virtual(story())


def test_damage_is_sent_again_twice_and_no_more() -> None:
    async def story() -> None:
        faulty, store = await started()
        damaged = Fault(DamagedError("BadDigest"))
        faulty.script("put", damaged, damaged)
        await store.put(KEY, b"x")
        faulty.script("put", *[damaged] * 10)
        faulty.calls.clear()
        with pytest.raises(RetriesExhaustedError):
            await store.put(KEY, b"x")
        assert faulty.calls["put"] == 3

    run_virtual(story())


def test_expired_credentials_are_tried_once_more() -> None:
    async def story() -> None:
        faulty, store = await started()
        expired = Fault(CredentialsExpiredError("ExpiredToken"))
        faulty.script("put", expired)
        await store.put(parse_key("new"), b"x", mode=CreateOnly())
        faulty.script("get", expired, expired)
        with pytest.raises(CredentialsExpiredError):
            await store.get(KEY)
        faulty.assert_all_used()

    run_virtual(story())


def test_retried_read_leaves_nothing_of_the_failed_one() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("get_into", RESET)
        memory = bytearray(4)
        await store.get_into(KEY, ByteRange(0, 4), memoryview(memory))
        assert memory == b"0123"
        faulty.assert_all_used()

    run_virtual(story())


# writes that must not be repeated


@pytest.mark.parametrize("landed", [True, False])
def test_a_conditional_put_without_an_answer_is_not_repeated(landed: bool) -> None:
    async def story() -> None:
        faulty, store = await started()
        key = parse_key("decision")
        faulty.script("put", Fault(TransientStoreError("reset"), landed=landed))
        with pytest.raises(WriteOutcomeUnknownError, match="1 try"):
            await store.put(key, b"ours", mode=CreateOnly())
        assert faulty.calls["put"] == 1
        there = [info.key async for info in store.list_objects("decision")]
        assert there == ([key] if landed else [])

    run_virtual(story())


@pytest.mark.parametrize("error", [ThrottledError("503"), RefusedError("409"), DamagedError("bad")])
def test_a_conditional_put_that_did_nothing_is_repeated(error: StoreError) -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("put", Fault(error))
        await store.put(parse_key("decision"), b"ours", mode=CreateOnly())
        with pytest.raises(ObjectExistsError):
            await store.put(parse_key("decision"), b"theirs", mode=CreateOnly())
        faulty.assert_all_used()

    run_virtual(story())


def test_a_lost_answer_after_a_refusal_is_still_unknown() -> None:
    async def story() -> None:
        faulty, store = await started()
        lost = Fault(TransientStoreError("reset"), landed=True)
        faulty.script("put", SLOW_DOWN, lost)
        with pytest.raises(WriteOutcomeUnknownError, match="2 tries"):
            await store.put(parse_key("decision"), b"ours", mode=CreateOnly())
        faulty.assert_all_used()

    run_virtual(story())


def test_a_store_that_keeps_refusing_a_conditional_put_leaves_no_doubt() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("put", *[SLOW_DOWN] * 1000)
        with pytest.raises(RetriesExhaustedError):
            await store.put(parse_key("decision"), b"ours", mode=CreateOnly())

    run_virtual(story())


def test_completing_without_an_answer_is_not_repeated() -> None:
    async def story() -> None:
        faulty, store = await started()
        part = Part(0, ByteRange(0, 3))
        upload_id = await store.multipart_create(KEY)
        crc = crc64nvme(b"new")
        etag = await store.put_part(KEY, upload_id, part, [b"new"], crc64nvme=crc)
        faulty.script("multipart_complete", Fault(StalledError("no answer"), landed=True))
        with pytest.raises(WriteOutcomeUnknownError):
            await store.multipart_complete(KEY, upload_id, [etag], size_bytes=3, crc64nvme=crc)
        assert faulty.calls["multipart_complete"] == 1
        assert await store.get(KEY) == b"new"

    run_virtual(story())


@pytest.mark.parametrize("verb", ["multipart_create", "multipart_abort", "delete", "head"])
def test_every_other_verb_is_repeated(verb: str) -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script(verb, RESET)
        arguments = (KEY, UploadId("gone")) if verb == "multipart_abort" else (KEY,)
        await getattr(store, verb)(*arguments)
        assert faulty.calls[verb] == 2

    run_virtual(story())


def test_an_unconditional_put_and_a_part_are_repeated() -> None:
    async def story() -> None:
        faulty, store = await started()
        faulty.script("put", RESET)
        faulty.script("put_part", RESET)
        await store.put(KEY, b"x")
        upload_id = await store.multipart_create(KEY)
        part = Part(0, ByteRange(0, 1))
        await store.put_part(KEY, upload_id, part, [b"x"], crc64nvme=crc64nvme(b"x"))
        faulty.assert_all_used()

    run_virtual(story())


# listings

NAMES = [f"p/{number}" for number in range(10)]


async def with_ten() -> tuple[FaultLayer, RetryLayer]:
    faulty = FaultLayer(MemoryStore())
    for name in NAMES:
        await faulty.put(parse_key(name), b"")
    return faulty, retrying(faulty)


def test_a_listing_survives_failures_in_its_middle() -> None:
    async def story() -> None:
        faulty, store = await with_ten()
        for after in (0, 1, 1, 9, 10):
            error = ThrottledError("503") if after % 2 else TransientStoreError("reset")
            faulty.script("list_objects", Fault(error, after_entries=after))
        assert [info.key async for info in store.list_objects("p/")] == NAMES
        faulty.assert_all_used()

    run_virtual(story())


def test_a_listing_that_keeps_failing_is_an_error_and_not_an_end() -> None:
    async def story() -> None:
        faulty, store = await with_ten()
        fault = Fault(TransientStoreError("reset"), after_entries=4)
        faulty.script("list_objects", *[fault] * 1000)
        with pytest.raises(RetriesExhaustedError):
            _ = [info async for info in store.list_objects("p/")]

    run_virtual(story())


def test_whoever_wants_only_the_first_entries_does_not_wait_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "BATCH", 3)

    async def story() -> None:
        faulty, store = await with_ten()
        faulty.script("list_objects", Fault(StoreError("broken"), after_entries=4))
        assert (await anext(store.list_objects("p/"))).key == NAMES[0]
        assert [info.key async for info in store.list_objects("p/")] == NAMES
        faulty.assert_all_used()

    run_virtual(story())


def test_a_listing_out_of_order_loses_nothing_either() -> None:
    class Shuffled(MemoryStore):
        async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
            found = [info async for info in super().list_objects(prefix)]
            for info in reversed(found):
                yield info

    async def story() -> None:
        faulty = FaultLayer(Shuffled())
        for name in NAMES:
            await faulty.put(parse_key(name), b"")
        faulty.script("list_objects", Fault(TransientStoreError("reset"), after_entries=4))
        found = [info.key async for info in retrying(faulty).list_objects("p/")]
        assert found == NAMES[::-1]
        faulty.assert_all_used()

    run_virtual(story())


# the script itself


async def test_a_fault_that_never_happened_fails_the_test() -> None:
    faulty = FaultLayer(MemoryStore())
    faulty.script("head", RESET, key="another")
    with pytest.raises(ObjectNotFoundError):
        await faulty.head(KEY)
    with pytest.raises(AssertionError, match="never happened"):
        faulty.assert_all_used()


async def test_damage_flips_one_bit_of_what_was_read() -> None:
    faulty, _ = await started()
    faulty.script("get", Damage(at=1))
    faulty.script("get_into", Damage(at=2))
    assert await faulty.get(KEY) == b"0023"
    memory = bytearray(4)
    await faulty.get_into(KEY, ByteRange(0, 4), memoryview(memory))
    assert memory == b"0133"
    assert await faulty.get(KEY) == b"0123"
    with pytest.raises(ValueError, match="nothing to damage"):
        faulty.script("put", Damage())


def test_silence_ends_only_by_being_cancelled() -> None:
    async def story() -> None:
        faulty, _ = await started()
        faulty.script("put", Silence(landed=True))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await faulty.put(KEY, b"landed")
        assert await faulty.get(KEY) == b"landed"

    run_virtual(story())
