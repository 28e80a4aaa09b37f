"""What a sync copies, in which order, and what it does not send again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ckptstore.backends.local import LocalStore
from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline
from ckptstore.commit.begin import claim_incarnation
from ckptstore.commit.catalog import latest_commit, read_decision
from ckptstore.commit.pins import UNPIN_S_MAX
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.commit.retire import retire
from ckptstore.errors import DeadlineExceededError
from ckptstore.gc.execute import collect
from ckptstore.gc.policy import KEEP_ALL
from ckptstore.gc.survey import plan_collection
from ckptstore.manifest.layout import begin_key, decision_key, incarnation_key
from ckptstore.manifest.model import Commit
from ckptstore.progress import Progress
from ckptstore.sync.plan import Action
from ckptstore.sync.selection import Selection, parse_steps
from ckptstore.testing.faults import Fault, FaultLayer
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import Capabilities, parse_key
from tests.distributed.test_save import story
from tests.gc.history import CLOCK, SteppedStore
from tests.sync.watched import (
    BeforePutStore,
    BrokenError,
    CountingStore,
    FlakyStore,
    ForgetfulStore,
    ReadAlongStore,
    SilentStore,
)
from tests.sync.world import Pair, assert_whole, contents
from tests.world import RECORD, RUN


@story
async def test_everything_committed_arrives_byte_for_byte() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2, 3)
    await pair.history.abort(4)
    report = await pair.sync()
    assert [copied.commit.attempt.step for copied in report.copied] == [1, 2, 3]
    assert (report.failed, report.not_tried) == ([], 0)
    assert report.bytes_sent == report.bytes_verified == 30
    await pair.assert_mirrored(uids)
    assert await pair.latest() == uids[2]


@story
async def test_a_second_sync_writes_nothing_at_all() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2)
    await pair.sync()
    before = await contents(pair.target)
    report = await pair.sync()
    assert (report.copied, report.failed) == ([], [])
    assert await contents(pair.target) == before
    assert [item.uid for item in (await pair.plan()).of(Action.THERE)] == uids[::-1]


@story
async def test_data_goes_first_and_the_decision_last() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    watched = ReadAlongStore(pair.target)
    pair.target = watched
    await pair.sync()
    written = [key for key in watched.written if "/pins/" not in key]
    assert written[0] == incarnation_key(RUN, 1)  # It has no parent: it harms nobody.
    assert written[1].startswith("data/")
    assert written[2].endswith("/rank-000000.json.zst")
    assert written[3:] == [begin_key(RUN, uid), decision_key(RUN, uid)]


@pytest.mark.parametrize("size_bytes", [0, 1, 3, 4, 5, 7, 8, 9])
def test_every_size_around_a_block_and_a_part_arrives(size_bytes: int) -> None:
    async def story() -> None:
        pair = Pair()
        uid = await pair.history.commit(1, bytes(range(size_bytes)))
        report = await pair.sync()
        assert report.bytes_sent == size_bytes
        await pair.assert_mirrored([uid])

    run_virtual(story())


async def test_from_memory_to_a_directory_and_back(tmp_path: object) -> None:
    there = Pair(target=LocalStore(f"{tmp_path}/store"))
    uids = await there.history.commits(1, 2)
    await there.sync()
    await there.assert_mirrored(uids)
    back = Pair(history=there.history, source=there.target)
    await back.sync()
    await back.assert_mirrored(uids)
    await there.target.aclose()


@story
async def test_where_puts_are_not_exclusive_copies_are_made_all_the_same() -> None:
    pair = Pair(target=MemoryStore(Capabilities(create_only=False), clock=CLOCK))
    uids = await pair.history.commits(1, 2)
    assert (await pair.sync(create_only=False)).failed == []
    assert (await pair.sync(create_only=False)).copied == []
    await pair.assert_mirrored(uids)


@story
async def test_a_reader_of_the_target_never_sees_part_of_one_nor_loses_the_latest() -> None:
    pair = Pair()
    await pair.history.commits(1, 2)
    await pair.history.restart()
    newest = await pair.history.commit(3)
    watched = ReadAlongStore(pair.target)
    pair.target = watched
    await pair.sync(Selection(newest=1))  # What its incarnation went on from stays away.
    assert watched.seen[-1] == newest
    await pair.sync()
    at = watched.seen.index(newest)
    assert set(watched.seen[:at]) == {None}
    assert set(watched.seen[at:]) == {newest}


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("nth", [3, 4, 7])
def test_a_sync_gets_through_while_every_nth_request_fails(side: str, nth: int) -> None:
    async def story() -> None:
        pair = Pair()
        uids = await pair.history.commits(1, 2, 3)
        watched = ReadAlongStore(pair.target)
        pair.target = watched
        inner = watched if side == "target" else pair.history.store
        flaky = FlakyStore(inner, nth)
        setattr(pair, side, flaky)
        for _ in range(9):
            report = await pair.sync()
            if not report.failed:
                break
        assert flaky.failures > 3
        pair.target = watched
        await pair.assert_mirrored(uids)

    run_virtual(story())


def sweep(side: str, *, landed: bool) -> None:
    """Break a sync at every request in turn: nothing partial is seen, and another one finishes."""

    async def fail() -> None:
        raise BrokenError("broken")

    async def story(at: int) -> bool:
        pair = Pair()
        uids = await pair.history.commits(1)
        await pair.history.restart()
        uids.append(await pair.history.commit(2))
        watched = ReadAlongStore(pair.target)
        inner = watched if side == "target" else pair.history.store
        stepped = SteppedStore(inner, at, fail, landed=landed)
        pair.target = watched
        setattr(pair, side, stepped)
        try:
            report = await pair.sync()
        except BrokenError:
            pass
        else:
            pins = [request for request in stepped.requests if "/pins/" in request.key]
            assert not stepped.acted or report.failed or stepped.requests[at] in pins
        setattr(pair, side, watched if side == "target" else None)
        for uid in await pair.committed():
            await assert_whole(watched, uid)
        assert (await pair.sync()).failed == []
        keys = [key for key in await contents(watched) if "/pins/" in key]
        assert len(keys) <= 1  # The one that could not be taken away, which expires.
        for key in keys:
            await watched.delete(key)
        for key in [key for key in await pair.history.keys() if "/pins/" in key]:
            await pair.history.store.delete(key)
        await pair.assert_mirrored(uids)
        assert await pair.latest() == uids[-1]
        return stepped.acted

    at = 0
    while run_virtual(story(at)):
        at += 1
    assert at > 20


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("side", ["source", "target"])
def test_broken_at_any_request_nothing_is_half_there_and_a_second_run_finishes(
    side: str, landed: bool
) -> None:
    sweep(side, landed=landed)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_store_that_falls_silent_at_any_request_ends_the_sync_at_its_deadline(side: str) -> None:
    async def story(at: int) -> bool:
        pair = Pair()
        uids = await pair.history.commits(1, 2)
        inner = pair.target
        dead = SilentStore(inner if side == "target" else pair.history.store, at)
        setattr(pair, side, dead)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with suppress(DeadlineExceededError):
            async with Deadline.after(60.0).enforce("syncing"):
                await pair.sync()
        assert loop.time() - began_s <= 60.0 + 4 * UNPIN_S_MAX
        assert asyncio.all_tasks() == {asyncio.current_task()}
        pair.target, pair.source = inner, None
        for uid in await pair.committed():
            await assert_whole(inner, uid)
        assert (await pair.sync()).failed == []
        assert set(await pair.committed()) == set(uids)
        return dead.silent

    at = 0
    while run_virtual(story(at)):
        at += 1
    assert at > 20


@story
async def test_what_is_there_is_not_sent_again_object_by_object() -> None:
    pair = Pair()
    pair.history.world.world_size = 4
    attempt = await pair.history.begin(1)
    await pair.history.world.save(attempt)
    faulty = FaultLayer(pair.target)
    faulty.script("put", Fault(BrokenError("broken")), key=begin_key(RUN, attempt.uid))
    counting = CountingStore(faulty)
    pair.target = counting
    assert len((await pair.sync()).failed) == 1
    faulty.assert_all_used()
    assert sum(counting.sent.values()) == 40
    await pair.target.delete(parse_key(min(counting.sent)))
    counting.sent.clear()
    report = await pair.sync()
    assert len(counting.sent) == 1
    assert (report.bytes_sent, report.bytes_verified) == (10, 40)
    await pair.assert_mirrored([attempt.uid])


@pytest.mark.parametrize("keeps_checksums", [True, False])
def test_what_is_there_but_wrong_is_sent_again(keeps_checksums: bool) -> None:
    async def story() -> None:
        pair = Pair()
        (uid,) = await pair.history.commits(1)
        (key,) = await pair.history.data_keys()
        counting = CountingStore(pair.target)
        await counting.put(key, b"0123456780")  # Of the right size.
        counting.sent.clear()
        pair.target = counting if keeps_checksums else ForgetfulStore(counting)
        await pair.sync()
        assert counting.sent == {key: 10}
        await pair.assert_mirrored([uid])

    run_virtual(story())


@story
async def test_a_target_without_checksums_is_read_back_before_anything_is_sent_again() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    counting = CountingStore(pair.target)
    pair.target = ForgetfulStore(counting)
    (key,) = await pair.history.data_keys()
    await pair.target.put(key, await pair.history.store.get(key))
    counting.sent.clear()
    report = await pair.sync()
    assert (counting.sent, report.bytes_sent, report.bytes_verified) == ({}, 0, 10)
    await pair.assert_mirrored([uid])


# what others do at the target meanwhile


@story
async def test_a_copy_that_was_resolved_before_its_decision_came_is_there() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    faulty = FaultLayer(pair.target)
    faulty.script("put", Fault(BrokenError("broken")), key=decision_key(RUN, uid))
    pair.target = faulty
    assert len((await pair.sync()).failed) == 1
    commit = await read_decision(pair.history.store, RUN, uid)
    resolved = await resolve_attempt(pair.target, commit.attempt, create_only=True, clock=CLOCK)
    assert isinstance(resolved, Commit)
    assert resolved != commit
    report = await pair.sync()
    assert (report.copied, report.failed) == ([], [])
    await assert_whole(pair.target, uid)


@story
async def test_a_copy_that_is_resolved_at_the_very_last_moment_is_a_success() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    commit = await read_decision(pair.history.store, RUN, uid)
    inner = pair.target
    pair.target = before = BeforePutStore(
        inner,
        decision_key(RUN, uid),
        lambda: resolve_attempt(inner, commit.attempt, create_only=True, clock=CLOCK),
    )
    assert (await pair.sync()).failed == []
    assert before.acted
    assert await read_decision(inner, RUN, uid) != commit
    await assert_whole(inner, uid)


@story
async def test_progress_ends_where_the_plan_said_also_if_something_was_there() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2, 3)
    (key,) = await pair.history.data_keys(uids[1])
    await pair.target.put(key, await pair.history.store.get(key))
    progress = Progress()
    await pair.sync(progress=progress)
    assert progress == Progress(objects_total=3, objects_done=3, bytes_total=30, bytes_done=30)


def test_a_collection_at_any_moment_takes_nothing_of_a_copy() -> None:
    async def story(at: int) -> bool:
        pair = Pair()
        uids = await pair.history.commits(1, 2)
        inner = pair.target

        async def collect_now() -> None:
            plan = await plan_collection(
                inner, None, KEEP_ALL, record=RECORD, clock=CLOCK, orphans_older_than_s=0
            )
            await collect(inner, plan, record=RECORD, clock=CLOCK)

        stepped = SteppedStore(inner, at, collect_now)
        pair.target = stepped
        assert (await pair.sync()).failed == []
        pair.target = inner
        await pair.assert_mirrored(uids)
        return stepped.acted

    at = 0
    while run_virtual(story(at)):
        at += 1
    assert at > 20


@story
async def test_what_the_target_let_go_of_is_not_copied_again() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2)
    await pair.sync()
    await retire(pair.target, RUN, uids[0], reason="old", clock=CLOCK)
    report = await pair.sync()
    assert (report.copied, report.failed) == ([], [])
    assert [item.uid for item in (await pair.plan()).of(Action.LET_GO)] == [uids[0]]


@story
async def test_what_the_source_let_go_of_is_not_asked_for() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2)
    await retire(pair.history.store, RUN, uids[0], reason="old", clock=CLOCK)
    await pair.sync()
    assert await pair.committed() == [uids[1]]


# incarnations


@story
async def test_a_job_that_starts_at_the_target_goes_on_where_the_source_was() -> None:
    pair = Pair()
    await pair.history.commits(1, 2)
    await pair.history.restart()
    newest = await pair.history.commit(3)
    await pair.sync(Selection(newest=1))
    claim = await claim_incarnation(pair.target, run=RUN, parent_uid=None, facts={}, clock=CLOCK)
    assert (claim.number, claim.parent_uid) == (3, newest)


@story
async def test_a_job_never_claims_what_a_copied_decision_proves_to_be_claimed() -> None:
    pair = Pair()
    await pair.history.commits(1, 2)
    await pair.history.restart()
    newest = await pair.history.commit(3)
    faulty = FaultLayer(pair.target)
    faulty.script("put", Fault(BrokenError("broken")), key=incarnation_key(RUN, 2))
    pair.target = faulty
    assert len((await pair.sync(Selection(newest=1))).failed) == 1
    faulty.assert_all_used()
    assert await pair.latest() == newest
    claim = await claim_incarnation(pair.target, run=RUN, parent_uid=None, facts={}, clock=CLOCK)
    assert (claim.number, claim.parent_uid) == (3, newest)


@story
async def test_a_job_that_went_back_has_gone_back_at_the_target_too() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2, 3)
    await pair.sync()
    assert await pair.latest() == uids[2]
    await pair.history.restart(parent_uid=uids[0])
    await pair.sync()
    assert await pair.latest() == uids[0]
    latest = await latest_commit(pair.history.store, RUN)
    assert latest is not None
    assert latest.attempt.uid == uids[0]


@story
async def test_a_claim_whose_parent_is_not_at_the_target_stays_away() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2)
    await pair.history.restart(parent_uid=uids[1])
    await pair.sync(Selection(steps=parse_steps("1")))
    assert await pair.latest() == uids[0]
    assert incarnation_key(RUN, 2) not in await contents(pair.target)
