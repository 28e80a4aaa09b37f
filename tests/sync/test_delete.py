"""Deleting what is gone: whole checkpoints, through retention, and rather too few than too many."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ckptstore.cli.exit_codes import code_of
from ckptstore.clock import Deadline
from ckptstore.commit.catalog import list_checkpoints
from ckptstore.commit.pins import pinned
from ckptstore.commit.tags import put_tag
from ckptstore.errors import IntegrityError
from ckptstore.gc.policy import RetentionPolicy
from ckptstore.manifest.layout import decision_key, retired_key
from ckptstore.sync.delete import delete_gone
from ckptstore.sync.execute import Failure, SyncReport
from ckptstore.testing.faults import Fault, FaultLayer
from tests.distributed.test_save import story
from tests.gc.history import CLOCK
from tests.sync.watched import BeforePutStore, BrokenError
from tests.sync.world import Pair, assert_whole, contents, keys_of
from tests.world import RECORD, RUN

LAST_2 = RetentionPolicy(keep_last=2)


async def mirrored_and_collected(*steps: int) -> tuple[Pair, list[str]]:
    """Return a pair whose target has all, and whose source has let go of all but two."""
    pair = Pair()
    uids = await pair.history.commits(*steps)
    await pair.sync()
    await pair.history.collect(LAST_2)
    return pair, uids


async def delete(pair: Pair, *, max_delete: int = 5, failed: bool = False) -> SyncReport:
    report = SyncReport()
    if failed:
        report.failed.append(Failure(RUN, None, IntegrityError("damaged")))
    plans = [await pair.plan()]
    await delete_gone(pair.target, plans, report, max_delete=max_delete, record=RECORD, clock=CLOCK)
    return report


@story
async def test_what_is_gone_is_retired_and_deleted_and_the_rest_stays_whole() -> None:
    pair, uids = await mirrored_and_collected(1, 2, 3, 4)
    report = await delete(pair)
    assert {garbage.uid for garbage in report.deleted} == set(uids[:2])
    assert (report.failed, report.spared) == ([], [])
    left = {key for key in await keys_of(pair.target) if any(uid in key for uid in uids[:2])}
    assert left == {
        *(decision_key(RUN, uid) for uid in uids[:2]),
        *(retired_key(RUN, uid) for uid in uids[:2]),
    }
    assert await pair.committed() == uids[:1:-1]
    assert (await pair.sync()).copied == []


@story
async def test_more_than_allowed_is_none_at_all() -> None:
    pair, _ = await mirrored_and_collected(1, 2, 3, 4)
    before = await contents(pair.target)
    report = await delete(pair, max_delete=1)
    (failure,) = report.failed
    assert code_of(failure.error) == 10
    assert "--max-delete 1" in str(failure.error)
    assert await contents(pair.target) == before
    assert len((await delete(pair, max_delete=2)).deleted) == 2


@story
async def test_after_any_failure_nothing_is_deleted() -> None:
    pair, _ = await mirrored_and_collected(1, 2, 3)
    before = await contents(pair.target)
    report = await delete(pair, failed=True)
    assert (len(report.failed), report.deleted) == (1, [])
    assert await contents(pair.target) == before


@story
async def test_a_source_that_was_emptied_deletes_nothing() -> None:
    pair = Pair()
    await pair.history.commits(1, 2)
    await pair.sync()
    before = await contents(pair.target)
    pair.history.store._objects.clear()
    report = await delete(pair)
    assert (report.deleted, report.failed) == ([], [])
    assert await contents(pair.target) == before


@story
async def test_what_somebody_needs_at_the_target_stays() -> None:
    pair, uids = await mirrored_and_collected(1, 2, 3, 4, 5)
    await put_tag(pair.target, RUN, "paper", uids[0], clock=CLOCK)
    deadline = Deadline.after(9)
    async with pinned(pair.target, RUN, uids[1], clock=CLOCK, holder="x", deadline=deadline):
        report = await delete(pair)
    assert [garbage.uid for garbage in report.deleted] == [uids[2]]
    assert {uid: reason for _, uid, reason in report.spared} == {
        uids[0]: "tagged paper",
        uids[1]: "pinned by somebody who reads or copies it",
    }
    states = {info.uid: info.state for info in await list_checkpoints(pair.target, RUN)}
    assert states[uids[0]] == states[uids[1]] == "committed"


@story
async def test_the_latest_of_the_target_stays_even_if_the_source_lost_it() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2)
    await pair.sync()
    await pair.history.store.delete(decision_key(RUN, uids[1]))
    report = await delete(pair)
    assert report.deleted == []
    assert [(uid, reason) for _, uid, reason in report.spared] == [(uids[1], "the latest")]


@story
async def test_a_listing_that_fails_half_way_deletes_nothing() -> None:
    pair, _ = await mirrored_and_collected(1, 2, 3)
    before = await contents(pair.target)
    plans = [await pair.plan()]
    faulty = FaultLayer(pair.target)
    faulty.script(
        "list_objects", Fault(BrokenError("broken"), after_entries=1), key=f"data/01/{RUN}/"
    )
    report = SyncReport()
    await delete_gone(faulty, plans, report, max_delete=5, record=RECORD, clock=CLOCK)
    faulty.assert_all_used()
    assert [type(failure.error) for failure in report.failed] == [BrokenError]
    assert await contents(pair.target) == before


@story
async def test_what_failed_saves_left_at_the_target_is_none_of_its_business() -> None:
    pair, uids = await mirrored_and_collected(1, 2, 3)
    aborted = await pair.history.abort(9)
    for key in await pair.history.keys_of(aborted.uid):
        await pair.target.put(key, await pair.history.store.get(key))
    report = await delete(pair)
    assert [garbage.uid for garbage in report.deleted] == [uids[0]]
    assert len([key for key in await keys_of(pair.target) if aborted.uid in key]) == 3


@story
async def test_what_is_pinned_since_it_was_looked_at_is_spared() -> None:
    pair, uids = await mirrored_and_collected(1, 2, 3)
    inner = pair.target
    async with AsyncExitStack() as pins:
        pin = pinned(inner, RUN, uids[0], clock=CLOCK, holder="x", deadline=Deadline.after(9))
        pair.target = before = BeforePutStore(
            inner, retired_key(RUN, uids[0]), lambda: pins.enter_async_context(pin)
        )
        report = await delete(pair)
    assert before.acted
    assert (report.deleted, [uid for _, uid, _ in report.spared]) == ([], [uids[0]])
    await assert_whole(inner, uids[0])


@story
async def test_a_deletion_that_fails_is_a_failure_and_another_one_finishes() -> None:
    pair, uids = await mirrored_and_collected(1, 2, 3)
    inner = pair.target
    pair.target = faulty = FaultLayer(inner)
    faulty.script("delete", Fault(BrokenError("broken")))
    report = await delete(pair)
    faulty.assert_all_used()
    assert [(failure.uid, type(failure.error)) for failure in report.failed] == [
        (uids[0], BrokenError)
    ]
    assert await pair.committed() == uids[:0:-1]
    assert [garbage.uid for garbage in (await delete(pair)).deleted] == [uids[0]]
    assert (await delete(pair)).deleted == []
    left = {key for key in await keys_of(inner) if uids[0] in key}
    assert left == {decision_key(RUN, uids[0]), retired_key(RUN, uids[0])}
