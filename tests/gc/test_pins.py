"""Pins: put before the check, renewed while held, gone at the end on every path."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ckptstore.clock import Deadline
from ckptstore.commit.pins import PIN_GRACE_S, PIN_S, list_pinned, pinned
from ckptstore.commit.retire import retire
from ckptstore.commit.tags import delete_tag, list_tags, put_tag
from ckptstore.errors import (
    CheckpointNotFoundError,
    ConflictError,
    DeadlineExceededError,
    IntegrityError,
    PermissionDeniedError,
    TransientStoreError,
)
from ckptstore.load import opened_checkpoint
from ckptstore.location import AtStep, ByUid, Latest
from ckptstore.manifest.codec import decode_pin
from ckptstore.manifest.layout import pin_key, pins_prefix, retired_key
from ckptstore.store import ObjectStore
from ckptstore.testing.faults import Fault, FaultLayer, Silence
from tests.distributed.test_save import story
from tests.gc.history import CLOCK, LAST_1, History, SteppedStore, wait
from tests.world import RUN


async def pins_of(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list_objects(pins_prefix(RUN))]


def pin(store: ObjectStore, uid: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
    return pinned(store, RUN, uid, clock=CLOCK, holder="a test", deadline=Deadline.after(60))


@story
async def test_a_pin_is_there_while_it_is_held_and_says_whose_it_is() -> None:
    history = History()
    uid = await history.commit(1)
    async with pin(history.store, uid):
        (key,) = await pins_of(history.store)
        record = decode_pin(await history.store.get(key), key)  # type: ignore[arg-type]
        assert (record.run, record.uid) == (RUN, uid)
        assert record.holder.startswith("a test on ")
        assert await list_pinned(history.store, RUN, clock=CLOCK) == {uid}
    assert await pins_of(history.store) == []


@story
async def test_a_pin_is_renewed_for_as_long_as_it_is_held() -> None:
    history = History()
    uid = await history.commit(1)
    async with pin(history.store, uid):
        for _ in range(30):
            await wait(PIN_S)
            assert await list_pinned(history.store, RUN, clock=CLOCK) == {uid}
    assert await pins_of(history.store) == []


@story
async def test_a_pin_that_cannot_be_renewed_for_a_while_is_renewed_later() -> None:
    history = History()
    faulty = FaultLayer(history.store)
    uid = await history.commit(1)
    async with pin(faulty, uid):
        faulty.script("put", *[Fault(TransientStoreError("reset"))] * 5)
        await wait(3 * PIN_S)
        assert await list_pinned(history.store, RUN, clock=CLOCK) == {uid}
    faulty.assert_all_used()


@story
async def test_the_pin_of_a_dead_holder_expires_after_a_grace() -> None:
    history = History()
    uid = await history.commit(1)
    holding = pin(history.store, uid)
    await holding.__aenter__()
    (key,) = await pins_of(history.store)
    left_behind = await history.store.get(key)  # type: ignore[arg-type]
    await holding.__aexit__(None, None, None)
    await history.store.put(key, left_behind)  # type: ignore[arg-type]
    await wait(PIN_S + PIN_GRACE_S - 1)
    assert await list_pinned(history.store, RUN, clock=CLOCK) == {uid}
    await wait(2)
    assert await list_pinned(history.store, RUN, clock=CLOCK) == frozenset()


@pytest.mark.parametrize("ending", ["error", "cancelled"])
def test_the_pin_is_gone_also_when_the_block_fails(ending: str) -> None:
    @story
    async def test() -> None:
        history = History()
        uid = await history.commit(1)

        async def hold() -> None:
            async with pin(history.store, uid):
                if ending == "error":
                    raise ZeroDivisionError
                await wait(1e6)

        holding = asyncio.ensure_future(hold())
        await wait(1)
        holding.cancel()
        with pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
            await holding
        assert await pins_of(history.store) == []
        assert len(asyncio.all_tasks()) == 1

    test()


@story
async def test_a_pin_whose_answer_was_lost_or_late_is_taken_back() -> None:
    history = History()
    uid = await history.commit(1)
    for misfortune in (Fault(TransientStoreError("reset"), landed=True), Silence(landed=True)):
        faulty = FaultLayer(history.store)
        faulty.script("put", misfortune)
        with pytest.raises((TransientStoreError, DeadlineExceededError)):
            async with pin(faulty, uid):
                raise AssertionError("it was never pinned")
        faulty.assert_all_used()
        assert await pins_of(history.store) == []


@story
async def test_letting_go_of_a_pin_never_takes_long_and_never_fails() -> None:
    history = History()
    faulty = FaultLayer(history.store)
    uid = await history.commit(1)
    for misfortune in (Silence(), Fault(PermissionDeniedError("no"))):
        faulty.script("delete", misfortune)
        before_s = asyncio.get_running_loop().time()
        async with pin(faulty, uid):
            pass
        assert asyncio.get_running_loop().time() - before_s <= 2
    faulty.assert_all_used()
    assert len(await pins_of(history.store)) == 2


@story
async def test_a_store_that_may_only_be_read_is_read_without_a_pin() -> None:
    history = History()
    faulty = FaultLayer(history.store)
    uid = await history.commit(1)
    faulty.script("put", Fault(PermissionDeniedError("read-only")))
    async with pin(faulty, uid):
        assert await pins_of(history.store) == []
        await wait(10 * PIN_S)
    assert faulty.calls["put"] == 1
    assert faulty.calls["delete"] == 0


def test_reading_without_a_pin_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ckptstore"):
        test_a_store_that_may_only_be_read_is_read_without_a_pin()
    assert "read without a pin" in caplog.text


@story
async def test_a_retired_checkpoint_is_refused_also_where_no_pin_can_be_put() -> None:
    history = History()
    old, _ = await history.commits(1, 2)
    await retire(history.store, RUN, old, reason="a test", clock=CLOCK)
    faulty = FaultLayer(history.store)
    for forbidden in (False, True):
        if forbidden:
            faulty.script("put", Fault(PermissionDeniedError("read-only")))
        with pytest.raises(CheckpointNotFoundError, match="retention removed") as caught:
            async with pin(faulty, old):
                raise AssertionError("it may not be read")
        assert old in str(caught.value)
        assert "step 1" in str(caught.value)
    assert await pins_of(history.store) == []


@story
async def test_a_retired_checkpoint_may_be_read_while_it_is_the_latest() -> None:
    history = History()
    uid = await history.commit(1)
    await retire(history.store, RUN, uid, reason="by mistake", clock=CLOCK)
    async with pin(history.store, uid):
        pass


@story
async def test_a_mark_counts_whatever_it_says() -> None:
    history = History()
    old, _ = await history.commits(1, 2)
    await history.store.put(retired_key(RUN, old), b"torn")
    with pytest.raises(CheckpointNotFoundError):
        async with pin(history.store, old):
            raise AssertionError("it may not be read")


@story
async def test_a_pin_that_cannot_be_read_is_an_error_and_never_no_pin() -> None:
    history = History()
    uid = await history.commit(1)
    await history.store.put(pin_key(RUN, uid, "x"), b"torn")
    with pytest.raises(IntegrityError, match=pin_key(RUN, uid, "x")):
        await list_pinned(history.store, RUN, clock=CLOCK)


# reading with a pin


@pytest.mark.parametrize("selector", [Latest(), AtStep(2), "uid"])
def test_an_opened_checkpoint_is_pinned_and_survives_collection(
    selector: Latest | AtStep | str,
) -> None:
    @story
    async def test() -> None:
        history = History()
        _, uid = await history.commits(1, 2)
        wanted = ByUid(uid) if isinstance(selector, str) else selector
        async with opened_checkpoint(
            history.store, RUN, wanted, holder="a test", deadline=Deadline.after(60), clock=CLOCK
        ) as manifest:
            assert manifest.attempt.uid == uid
            assert len(await pins_of(history.store)) == 1
            await history.commits(3, 4)
            await history.collect(LAST_1)
            await history.assert_intact(uid)
        await history.collect(LAST_1)
        assert await history.data_keys(uid) == []

    test()


@story
async def test_the_latest_is_looked_for_again_if_it_was_removed_meanwhile() -> None:
    history = History()
    await history.commit(1)
    requests = SteppedStore(history.store)
    deadline = Deadline.after(60)
    async with opened_checkpoint(
        requests, RUN, Latest(), holder="x", deadline=deadline, clock=CLOCK
    ):
        pass
    pinning = next(i for i, request in enumerate(requests.requests) if request.verb == "put")

    async def meddle() -> None:
        await history.commit(2)
        await history.collect(LAST_1)

    stepped = SteppedStore(history.store, pinning, meddle)
    async with opened_checkpoint(
        stepped, RUN, Latest(), holder="x", deadline=deadline, clock=CLOCK
    ) as manifest:
        assert manifest.attempt.step == 2
    assert stepped.acted


@story
async def test_a_step_that_retention_removed_is_not_found_and_says_so() -> None:
    history = History()
    await history.commits(1, 2)
    await history.collect(LAST_1)
    with pytest.raises(CheckpointNotFoundError, match="retention removed"):
        async with opened_checkpoint(
            history.store, RUN, AtStep(1), holder="x", deadline=Deadline.after(60), clock=CLOCK
        ):
            raise AssertionError("it may not be read")


# tags


@story
async def test_a_tag_is_given_once_and_may_be_taken_away() -> None:
    history = History()
    one, two = await history.commits(1, 2)
    await put_tag(history.store, RUN, "best", one, clock=CLOCK)
    await put_tag(history.store, RUN, "best", one, clock=CLOCK)
    with pytest.raises(ConflictError, match=one):
        await put_tag(history.store, RUN, "best", two, clock=CLOCK)
    assert await list_tags(history.store, RUN) == {"best": one}
    await delete_tag(history.store, RUN, "best")
    await put_tag(history.store, RUN, "best", two, clock=CLOCK)
    assert await list_tags(history.store, RUN) == {"best": two}


@story
async def test_a_retired_checkpoint_takes_no_tag_and_keeps_those_it_has() -> None:
    history = History()
    old, _ = await history.commits(1, 2)
    await put_tag(history.store, RUN, "before", old, clock=CLOCK)
    await retire(history.store, RUN, old, reason="a test", clock=CLOCK)
    for name in ("after", "before"):
        with pytest.raises(CheckpointNotFoundError, match="retention removed"):
            await put_tag(history.store, RUN, name, old, clock=CLOCK)
    assert await list_tags(history.store, RUN) == {"before": old}
    async with pin(history.store, old):  # Whoever collects sees the tag, too.
        pass


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 101])
def test_a_tag_has_a_name_that_every_store_can_keep(name: str) -> None:
    @story
    async def test() -> None:
        history = History()
        with pytest.raises(ValueError, match="not a tag"):
            await put_tag(history.store, RUN, name, await history.commit(1), clock=CLOCK)

    test()
