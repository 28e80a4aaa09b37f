"""What a collection finds, what it deletes, and what it leaves alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ckptstore.clock import Deadline
from ckptstore.commit.catalog import list_checkpoints, list_undecided
from ckptstore.commit.pins import pinned
from ckptstore.commit.tags import put_tag
from ckptstore.errors import (
    IntegrityError,
    PermissionDeniedError,
    TransientStoreError,
)
from ckptstore.gc.execute import collect
from ckptstore.gc.plan import Why
from ckptstore.gc.policy import KEEP_ALL, KeepBest, RetentionPolicy
from ckptstore.gc.survey import plan_collection
from ckptstore.manifest.layout import (
    decision_key,
    decisions_prefix,
    pin_key,
    rank_record_key,
    retired_key,
)
from ckptstore.manifest.model import StoreRecord
from ckptstore.opening import layered
from ckptstore.settings import Settings
from ckptstore.testing.faults import Fault, FaultLayer
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import Key
from tests.distributed.test_save import story
from tests.gc.history import (
    CLOCK,
    DAY_S,
    LAST_1,
    History,
    SteppedStore,
    history_of,
    wait,
)
from tests.world import RECORD, RUN

ORPHAN = "i000009-s000000000009-a00-0000beef"


@story
async def test_the_last_are_kept_and_the_rest_is_gone_but_its_decisions() -> None:
    history, uids = await history_of(1, 2, 3, 4)
    report = await history.collect(RetentionPolicy(keep_last=2))
    assert [garbage.uid for garbage in report.collected] == [uids[1], uids[0]]
    for uid in uids[2:]:
        await history.assert_intact(uid)
    left = {key for key in await history.keys() if any(uid in key for uid in uids[:2])}
    assert left == {
        *(decision_key(RUN, uid) for uid in uids[:2]),
        *(retired_key(RUN, uid) for uid in uids[:2]),
    }
    states = [info.state for info in await list_checkpoints(history.store, RUN)]
    assert states == ["committed", "committed", "retired", "retired"]


@story
async def test_a_plan_says_what_why_and_how_much_and_does_nothing() -> None:
    history, uids = await history_of(1, 2)
    aborted = await history.abort(3)
    before = await history.keys()
    plan = await history.plan(LAST_1)
    assert [(garbage.uid, garbage.why) for garbage in plan.garbage] == [
        (aborted.uid, Why.ABORTED),
        (uids[0], Why.RETENTION),
    ]
    keys = [key for key in await history.keys_of(uids[0]) if "decisions" not in key]
    sizes = [(await history.store.head(key)).size_bytes for key in keys]
    assert (plan.garbage[1].objects, plan.garbage[1].bytes) == (len(sizes), sum(sizes))
    assert plan.objects == len(sizes) + 2
    assert [(kept.uid, kept.reasons) for kept in plan.kept] == [
        (uids[1], ("number 1 of the last 1", "the latest"))
    ]
    assert await history.keys() == before


@story
async def test_without_a_rule_only_what_was_never_a_checkpoint_goes() -> None:
    history, uids = await history_of(1, 2, 3)
    aborted = await history.abort(4)
    report = await history.collect(KEEP_ALL)
    assert [garbage.uid for garbage in report.collected] == [aborted.uid]
    assert await history.keys_of(aborted.uid) == [decision_key(RUN, aborted.uid)]
    for uid in uids:
        await history.assert_intact(uid)


@story
async def test_the_plan_for_a_run_is_that_of_the_store_as_far_as_the_run_goes() -> None:
    history, _ = await history_of(1, 2)
    await history.abort(3)
    await history.leave_undecided(4)
    await history.store.put(Key(f"data/ff/{RUN}/{ORPHAN}/000000-0000.file"), b"foreign fan-out")
    await wait(2 * DAY_S)
    assert await history.plan(LAST_1, run=RUN) == await history.plan(LAST_1)
    other = await history.plan(LAST_1, run="another")
    assert (other.garbage, other.kept, other.left_alone) == ((), (), ())


@story
async def test_what_must_stay_stays_whatever_the_policy() -> None:
    history, uids = await history_of(1, 2, 3, 4, 5)
    await put_tag(history.store, RUN, "paper", uids[0], clock=CLOCK)
    back = await history.restart(parent_uid=uids[3])
    pin = pinned(history.store, RUN, uids[1], clock=CLOCK, holder="x", deadline=Deadline.after(9))
    async with pin:
        plan = await history.plan(RetentionPolicy(keep_tagged=True))
        report = await history.collect(RetentionPolicy(keep_tagged=True))
    assert back == 2
    assert {kept.uid: kept.reasons for kept in plan.kept} == {
        uids[0]: ("tagged paper",),
        uids[1]: ("pinned by somebody who reads or copies it",),
        uids[3]: ("the latest",),
    }
    assert {garbage.uid for garbage in report.collected} == {uids[2], uids[4]}
    new = await history.commit(40)
    assert {kept.uid: kept.reasons for kept in (await history.plan(LAST_1)).kept} == {
        new: ("number 1 of the last 1", "the latest"),
        uids[3]: ("the newest incarnation went on from it",),
        uids[0]: ("tagged paper",),
    }


@story
async def test_what_is_pinned_tagged_or_needed_since_the_plan_was_made_is_spared() -> None:
    history, uids = await history_of(1, 2, 3, 4)
    plan = await history.plan(LAST_1)
    await put_tag(history.store, RUN, "late", uids[0], clock=CLOCK)
    await history.restart(parent_uid=uids[1])
    pin = pinned(history.store, RUN, uids[2], clock=CLOCK, holder="x", deadline=Deadline.after(9))
    async with pin:
        report = await collect(history.store, plan, record=RECORD, clock=CLOCK)
    assert report.collected == []
    assert {spared.garbage.uid: spared.reason for spared in report.spared} == {
        uids[0]: "tagged late",
        uids[1]: "the latest",
        uids[2]: "pinned by somebody who reads or copies it",
    }
    states = [info.state for info in await list_checkpoints(history.store, RUN)]
    assert states == ["committed"] * 4  # They are not even marked.
    for uid in uids:
        await history.assert_intact(uid)


@story
async def test_a_zombie_of_an_older_incarnation_neither_hides_nor_costs_the_latest() -> None:
    history, uids = await history_of(1, 2)
    zombie = await history.begin(900)
    await history.restart(parent_uid=uids[1])
    await history.world.save_rank(zombie, 0)
    await history.collect(LAST_1)
    assert await history.assert_latest_intact() == uids[1]
    newest = await history.commit(3)
    await history.restart()
    await history.collect(LAST_1)
    assert await history.assert_latest_intact() == newest


@story
async def test_the_best_by_a_metric_are_kept() -> None:
    history = History()
    losses = {1: 0.9, 2: 0.2, 3: 0.5, 4: float("nan"), 5: 0.7}
    uids = {step: await history.commit_with({"loss": loss}, step) for step, loss in losses.items()}
    policy = RetentionPolicy(keep_best=(KeepBest("loss", 2),))
    plan = await history.plan(policy)
    assert {kept.step: kept.reasons for kept in plan.kept} == {
        2: ("number 1 by loss (0.2)",),
        3: ("number 2 by loss (0.5)",),
        5: ("the latest",),
    }
    damaged = rank_record_key(RUN, uids[1], 0)
    await history.store.put(damaged, b"torn")
    plan = await history.plan(policy)
    assert [kept.reasons for kept in plan.kept if kept.step == 1] == [("its loss cannot be read",)]


# attempts that nobody decided


@story
async def test_an_attempt_under_way_is_left_alone_and_so_are_its_uploads() -> None:
    history, _ = await history_of(1)
    attempt = await history.leave_undecided(2)
    await history.store.multipart_create(Key(f"{await history.write(attempt, 1)}"))
    plan = await history.plan(LAST_1)
    assert plan.garbage == ()
    (left,) = plan.left_alone
    assert left.uid == attempt.uid
    assert (left.reason, left.objects, left.uploads) == ("under way", 3, 1)


@story
async def test_an_attempt_past_its_deadline_is_aborted_first_and_then_collected() -> None:
    history, _ = await history_of(1)
    attempt = await history.leave_undecided(2)
    await history.store.multipart_create(await history.write(attempt, 1))
    await wait(DAY_S)
    report = await history.collect()
    assert [garbage.why for garbage in report.collected] == [Why.OVERDUE]
    assert await history.keys_of(attempt.uid) == [decision_key(RUN, attempt.uid)]
    assert history.store.uploads_open == 0
    states = [info.state for info in await list_checkpoints(history.store, RUN)]
    assert states == ["aborted", "committed"]


@story
async def test_an_attempt_whose_ranks_were_all_ready_is_committed_and_not_collected() -> None:
    history, _ = await history_of(1)
    attempt = await history.begin(2)
    faulty = FaultLayer(history.store)
    faulty.script(
        "put",
        *[Fault(TransientStoreError("reset"))] * 1000,
        key=decision_key(RUN, attempt.uid),
    )
    history.world.store = faulty
    await asyncio.gather(history.world.save_rank(attempt, 0), return_exceptions=True)
    assert await list_undecided(history.store, RUN) == [attempt]
    await wait(DAY_S)
    report = await history.collect(LAST_1)
    assert [spared.reason for spared in report.spared] == ["all its ranks are ready: committed"]
    assert await history.assert_latest_intact() == attempt.uid


@story
async def test_where_puts_are_not_exclusive_an_undecided_attempt_is_never_touched() -> None:
    history, _ = await history_of(1)
    attempt = await history.leave_undecided(2)
    await wait(DAY_S)
    before = await history.keys()
    record = StoreRecord(
        store_id="s", fan_out=4, create_only=False, created_unix_s=0.0, created_by="a test"
    )
    plan = await plan_collection(history.store, None, KEEP_ALL, record=record, clock=CLOCK)
    assert plan.garbage == ()
    assert [left.reason for left in plan.left_alone] == [
        "undecided, and only its own coordinator may decide it on this store"
    ]
    await collect(history.store, plan, record=record, clock=CLOCK)
    assert await history.keys() == before
    assert await list_undecided(history.store, RUN) == [attempt]


# what nobody began


@story
async def test_an_orphan_is_collected_once_it_is_old_enough_and_leaves_nothing() -> None:
    history, _ = await history_of(1)
    before = await history.keys()
    await history.orphan(ORPHAN)
    await history.store.multipart_create(Key(f"data/01/{RUN}/{ORPHAN}/000000-0001.file"))
    await wait(DAY_S - 10)
    (left,) = (await history.plan()).left_alone
    assert left.reason == "no attempt began it, but it is too new to be sure"
    await wait(20)
    report = await history.collect()
    assert [garbage.why for garbage in report.collected] == [Why.ORPHAN]
    assert await history.keys() == before
    assert history.store.uploads_open == 0


@story
async def test_an_orphan_of_unknown_age_is_left_alone() -> None:
    history, _ = await history_of(1)
    old, ageless = await history.orphan(ORPHAN), Key(f"data/01/{RUN}/{ORPHAN}/000000-0001.file")
    await wait(10 * DAY_S)
    data, info = history.store._objects[old]
    history.store._objects[ageless] = (data, replace(info, key=ageless, modified_unix_s=None))
    plan = await history.plan()
    assert plan.garbage == ()
    assert [left.reason for left in plan.left_alone] == [
        "no attempt began it, but its age is not known"
    ]


@story
async def test_an_orphan_that_somebody_copies_is_left_alone() -> None:
    history, _ = await history_of(1)
    key = await history.orphan(ORPHAN)
    await wait(2 * DAY_S)
    plan = await history.plan()
    assert len(plan.garbage) == 1
    pin = pinned(history.store, RUN, ORPHAN, clock=CLOCK, holder="sync", deadline=Deadline.after(9))
    async with pin:
        assert [left.reason for left in (await history.plan()).left_alone] == [
            "no attempt began it here, but somebody copies it"
        ]
        report = await collect(history.store, plan, record=RECORD, clock=CLOCK)
        assert [spared.reason for spared in report.spared] == ["somebody copies it"]
    assert key in await history.keys()
    assert retired_key(RUN, ORPHAN) not in await history.keys()


@story
async def test_data_of_a_run_without_any_record_is_left_alone() -> None:
    history = History()
    await history.orphan(ORPHAN)
    await wait(10 * DAY_S)
    plan = await history.plan()
    assert plan.garbage == ()
    (left,) = plan.left_alone
    assert "no records at all" in left.reason


@story
async def test_a_key_that_is_not_ours_is_reported_and_left_alone() -> None:
    history, _ = await history_of(1)
    names = [
        "data/00/llama/notes.txt",
        f"data/00/{RUN}/{ORPHAN}/readme.md",
        "data/zz/x",
        f"runs/{RUN}/attempts/what/is-this",
        "runs/.DS_Store",
    ]
    for name in names:
        await history.store.put(Key(name), b"x")
    await wait(10 * DAY_S)
    plan = await history.plan()
    assert {left.key for left in plan.left_alone} == set(names)
    assert plan.garbage == ()
    await history.collect(LAST_1)
    assert set(names) <= set(await history.keys())


@pytest.mark.parametrize("damaged", ["decision", "pin", "claim", "name"])
def test_a_record_that_cannot_be_read_collects_nothing(damaged: str) -> None:
    @story
    async def test() -> None:
        history, uids = await history_of(1, 2, 3)
        key = {
            "decision": decision_key(RUN, uids[0]),
            "pin": pin_key(RUN, uids[0], "x"),
            "claim": Key(f"runs/{RUN}/incarnations/999998-i000001.json"),
            "name": Key(f"{decisions_prefix(RUN)}what.json"),
        }[damaged]
        await history.store.put(key, b"torn")
        before = await history.keys()
        with pytest.raises(IntegrityError, match=key):
            await history.collect(LAST_1)
        assert await history.keys() == before

    test()


# uploads


@story
async def test_uploads_left_open_by_a_committed_attempt_are_aborted() -> None:
    history, (uid,) = await history_of(1)
    (key,) = await history.data_keys(uid)
    await history.store.multipart_create(key)
    await wait(DAY_S)
    pin = pinned(history.store, RUN, uid, clock=CLOCK, holder="repair", deadline=Deadline.after(9))
    async with pin:
        assert (await history.plan()).garbage == ()
        await history.collect()
        assert history.store.uploads_open == 1
    report = await history.collect()
    assert [(garbage.why, garbage.objects) for garbage in report.collected] == [(Why.LEFT_OPEN, 0)]
    assert history.store.uploads_open == 0
    await history.assert_intact(uid)


# misfortune


async def a_past_with_everything() -> tuple[History, list[str]]:
    history, uids = await history_of(1, 2, 3, 4)
    await history.abort(5)
    await history.leave_undecided(6)
    await history.orphan(ORPHAN)
    await history.store.multipart_create(Key(f"data/01/{RUN}/{ORPHAN}/000000-0001.file"))
    await wait(2 * DAY_S)
    return history, uids[2:]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("error", [PermissionDeniedError("no"), TransientStoreError("reset")])
def test_any_request_may_fail_and_a_second_run_finishes_the_job(
    error: Exception, landed: bool
) -> None:
    policy = RetentionPolicy(keep_last=2)

    async def fail() -> None:
        raise error

    async def tell(at: int) -> bool:
        history, kept = await a_past_with_everything()
        stepped = SteppedStore(history.store, at, fail, landed=landed)
        try:
            report = await history.collect(policy, stepped)
        except type(error):
            pass
        else:
            assert bool(report.failed) == stepped.acted
        for uid in kept:
            await history.assert_intact(uid)
        await history.collect(policy)
        await history.assert_nothing_left(kept)
        return stepped.acted

    tried = 0
    while run_virtual(tell(tried)):
        tried += 1
    assert tried > 40


def test_it_may_be_interrupted_at_any_request_and_a_second_run_finishes_the_job() -> None:
    policy = RetentionPolicy(keep_last=2)

    async def tell(at: int) -> bool:
        history, kept = await a_past_with_everything()

        async def interrupt() -> None:
            collecting.cancel()
            await asyncio.sleep(0)

        stepped = SteppedStore(history.store, at, interrupt)
        collecting = asyncio.ensure_future(history.collect(policy, stepped))
        await asyncio.gather(collecting, return_exceptions=True)
        assert collecting.cancelled() == stepped.acted
        await wait(1)
        assert len(asyncio.all_tasks()) == 1
        for uid in kept:
            await history.assert_intact(uid)
        await history.collect(policy)
        await history.assert_nothing_left(kept)
        return stepped.acted

    tried = 0
    while run_virtual(tell(tried)):
        tried += 1
    assert tried > 40


@story
async def test_one_deletion_that_is_refused_leaves_the_other_attempts_to_go() -> None:
    history, uids = await history_of(1, 2, 3)
    faulty = FaultLayer(history.store)
    (locked,) = await history.data_keys(uids[0])
    faulty.script("delete", Fault(PermissionDeniedError("object lock")), key=locked)
    report = await history.collect(LAST_1, faulty)
    assert [(garbage.uid, str(error)) for garbage, error in report.failed] == [
        (uids[0], "object lock")
    ]
    assert [garbage.uid for garbage in report.collected] == [uids[1]]
    faulty.assert_all_used()


@story
async def test_hiccups_of_the_store_are_retried() -> None:
    history, uids = await history_of(1, 2)
    faulty = FaultLayer(history.store)
    for verb in ("list_objects", "list_uploads", "get", "put", "delete", "head"):
        faulty.script(verb, *[Fault(TransientStoreError("reset"), landed=True)] * 2)
    await history.orphan(ORPHAN)
    await wait(2 * DAY_S)
    report = await history.collect(LAST_1, layered(faulty, "", Settings()))
    assert report.failed == []
    faulty.assert_all_used()
    await history.assert_nothing_left([uids[1]])
