"""The orders that keep data safe: each way to get one wrong must be seen to lose something.

One process runs step by step, and at one of its requests another one does all that it does.
Every request is tried. With the orders as they are, nothing is ever lost; with an order
weakened, the same search finds a loss. A search that finds none has gone blind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pytest

from ckptstore.clock import Clock, Deadline
from ckptstore.commit import begin, pins
from ckptstore.commit.begin import claim_incarnation
from ckptstore.commit.catalog import read_decision
from ckptstore.commit.pins import pinned
from ckptstore.errors import CheckpointAbortedError, CheckpointNotFoundError, ObjectNotFoundError
from ckptstore.gc import execute, plan, protect, survey
from ckptstore.gc.execute import collect
from ckptstore.gc.plan import CollectionPlan
from ckptstore.layers._around import Request
from ckptstore.manifest.layout import (
    decision_key,
    decisions_prefix,
    incarnations_prefix,
    retired_key,
)
from ckptstore.manifest.model import Attempt, Commit
from ckptstore.store import ObjectStore
from ckptstore.testing.virtual_time import run_virtual
from tests.gc.history import CLOCK, DAY_S, LAST_1, History, SteppedStore, history_of, wait
from tests.world import RUN, BytesShard, only_stored_as_it_is

Weakening: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Trial: TypeAlias = Callable[[int], Coroutine[Any, Any, tuple[bool, str]]]


Stop: TypeAlias = Callable[[], Awaitable[None]]

REQUESTS_MAX = 40  # Of a collection; more than there are.


def losses(trial: Trial, *, at_most: int = 100) -> list[str]:
    """Try every request to do the other thing at, and return what was lost at which."""
    found: list[str] = []
    for at in range(10_000):
        acted, loss = run_virtual(trial(at))
        if not acted:
            assert at > 1, "there was nothing to try"
            return found
        if loss:
            found.append(f"at request {at}: {loss}")
        if len(found) == at_most:
            return found
    raise AssertionError("it never ends")


# a reader, and a collector that wants what it reads


def reader_does_not_check(patch: pytest.MonkeyPatch) -> None:
    async def believe(store: ObjectStore, run: str, uid: str) -> None: ...

    patch.setattr(pins, "_refuse_retired", believe)


def collector_lists_pins_before_it_marks(patch: pytest.MonkeyPatch) -> None:
    first: dict[str, protect.Protected] = {}

    async def found_before(store: ObjectStore, run: str, *, clock: Clock) -> protect.Protected:
        if run not in first:
            first[run] = await protect.find_protected(store, run, clock=clock)
        return first[run]

    patch.setattr(execute, "find_protected", found_before)
    patch.setattr(execute, "collect", _forgetting(first))


def _forgetting(first: dict[str, Any]) -> Callable[..., Awaitable[Any]]:
    async def fresh_collect(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        first.clear()
        return await collect(*args, **options)

    return fresh_collect


async def _collects(history: History, store: ObjectStore) -> None:
    made = await history.plan(LAST_1, history.store)
    await execute.collect(store, made, record=history.world.record, clock=CLOCK)


async def _read(history: History, uid: str) -> str:
    try:
        await history.assert_intact(uid)
    except Exception as error:
        return f"the reader finds {error}"
    return ""


async def a_collector_meets_a_reader(at: int) -> tuple[bool, str]:
    """The collector runs whole at a request of the reader."""
    history, (old, _) = await history_of(1, 2)
    stepped = SteppedStore(history.store, at, lambda: _collects(history, history.store))
    try:
        async with pinned(stepped, RUN, old, clock=CLOCK, holder="x", deadline=Deadline.after(9)):
            loss = await _read(history, old)
    except CheckpointNotFoundError:
        loss = ""
    return stepped.acted, loss


async def a_reader_meets_a_collector(at: int) -> tuple[bool, str]:
    """The reader pins and checks at a request of the collector, and reads when that is done."""
    history, (old, _) = await history_of(1, 2)
    async with AsyncExitStack() as reading:

        async def open_it() -> None:
            pin = pinned(
                history.store, RUN, old, clock=CLOCK, holder="x", deadline=Deadline.after(9)
            )
            try:
                await reading.enter_async_context(pin)
                opened.append(old)
            except CheckpointNotFoundError:
                pass

        opened: list[str] = []
        stepped = SteppedStore(history.store, at, open_it)
        await _collects(history, stepped)
        loss = await _read(history, old) if opened else ""
    return stepped.acted, loss


@pytest.mark.parametrize("trial", [a_collector_meets_a_reader, a_reader_meets_a_collector])
def test_a_reader_never_loses_what_it_opened(trial: Trial) -> None:
    assert losses(trial) == []


@pytest.mark.parametrize(
    ("trial", "weaken"),
    [
        (a_collector_meets_a_reader, reader_does_not_check),
        (a_reader_meets_a_collector, reader_does_not_check),
        (a_reader_meets_a_collector, collector_lists_pins_before_it_marks),
    ],
)
def test_a_wrong_order_of_pins_and_marks_is_seen(
    trial: Trial, weaken: Weakening, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch)
    assert losses(trial, at_most=1)


# a job that goes back to an older checkpoint, and a collector that wants it


def collector_looks_for_the_latest_only_before_pins(patch: pytest.MonkeyPatch) -> None:
    needed = protect._needed
    calls = 0

    async def looked_before(store: ObjectStore, run: str) -> dict[str, str]:
        nonlocal calls
        calls += 1
        return await needed(store, run) if calls % 2 else {}

    patch.setattr(protect, "_needed", looked_before)


def claim_without_a_pin(patch: pytest.MonkeyPatch) -> None:
    async def unpinned(*_: object) -> bool:
        return True

    patch.setattr(begin, "_pin", unpinned)


async def a_collector_meets_a_rollback(at: int) -> tuple[bool, str]:
    """The collector runs whole at a request of the claim."""
    history, (old, _) = await history_of(1, 2)
    stepped = SteppedStore(history.store, at, lambda: _collects(history, history.store))
    claimed = await _claims(stepped, old)
    return stepped.acted, await _read(history, old) if claimed and stepped.acted else ""


async def a_rollback_meets_a_collector(at: int) -> tuple[bool, str]:
    """The job pins and checks at one request of the collector, and claims at a later one."""
    history, (old, _) = await history_of(1, 2)
    claimed: list[bool] = []

    async def claim(stop: Stop) -> None:
        stopping = _Stopping(history.store, stop, incarnations_prefix(RUN))
        claimed.append(await _claims(stopping, old))

    made = await history.plan(LAST_1)
    acted = await InTwoHalves(claim).run_within(history, made, at)
    return acted, await _read(history, old) if claimed == [True] else ""


async def _claims(store: ObjectStore, uid: str) -> bool:
    """Say whether a job that claims with this parent believes that it has it."""
    warnings: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = warnings.append  # type: ignore[method-assign, assignment]
    logger = logging.getLogger("ckptstore.commit.begin")
    logger.addHandler(handler)
    try:
        await claim_incarnation(store, run=RUN, parent_uid=uid, facts={}, clock=CLOCK)
    finally:
        logger.removeHandler(handler)
    return not warnings


class InTwoHalves:
    """Something that stops halfway, until it is told to go on."""

    def __init__(self, work: Callable[[Stop], Awaitable[None]]) -> None:
        self._work = work
        self._halfway = asyncio.Event()
        self._told = asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    async def run_within(self, history: History, made: CollectionPlan, at: int) -> bool:
        """Start at one request of a collection, go on at a later one; false past the last one."""
        first, gap = divmod(at, REQUESTS_MAX)
        stepped = SteppedStore(history.store, first, self._start)
        again = SteppedStore(stepped, first + gap, self._go_on)
        await execute.collect(again, made, record=history.world.record, clock=CLOCK)
        assert len(again.requests) <= REQUESTS_MAX
        await self._go_on()
        return stepped.acted

    async def _start(self) -> None:
        self._task = asyncio.ensure_future(self._work(self._stop))
        self._task.add_done_callback(lambda _: self._halfway.set())
        await self._halfway.wait()

    async def _stop(self) -> None:
        self._halfway.set()
        await self._told.wait()

    async def _go_on(self) -> None:
        self._told.set()
        if self._task is not None:
            await self._task


class _Stopping(SteppedStore):
    """Stops before the first put below a prefix."""

    def __init__(self, inner: ObjectStore, stop: Stop, prefix: str) -> None:
        super().__init__(inner)
        self._stop = stop
        self._prefix = prefix

    async def _around(self, request: Request, send: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        if request.verb == "put" and request.key.startswith(self._prefix):
            await self._stop()
        return await send()


@pytest.mark.parametrize("trial", [a_rollback_meets_a_collector, a_collector_meets_a_rollback])
def test_a_job_keeps_what_it_goes_back_to_or_is_told(trial: Trial) -> None:
    assert losses(trial) == []


@pytest.mark.parametrize(
    ("trial", "weaken"),
    [
        (a_rollback_meets_a_collector, collector_looks_for_the_latest_only_before_pins),
        (a_rollback_meets_a_collector, claim_without_a_pin),
        (a_collector_meets_a_rollback, claim_without_a_pin),
    ],
)
def test_a_claim_or_a_look_that_guards_nothing_is_seen(
    trial: Trial, weaken: Weakening, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch)
    assert losses(trial, at_most=1)


# a copy that finds data of an earlier try, and a collector that takes it for orphans


def orphans_are_not_marked(patch: pytest.MonkeyPatch) -> None:
    async def no_mark(*_: object, **__: object) -> None: ...

    patch.setattr(execute, "retire", no_mark)


def orphans_are_looked_up_before_pins(patch: pytest.MonkeyPatch) -> None:
    appeared = execute._has_appeared
    found = protect.find_protected
    looked: list[bool] = []

    async def look_first(store: ObjectStore, run: str, *, clock: Clock) -> protect.Protected:
        looked[:] = [await appeared(store, run, ORPHAN_OF["copy"])]
        return await found(store, run, clock=clock)

    async def looked_before(*_: object) -> bool:
        return looked[0]

    patch.setattr(execute, "find_protected", look_first)
    patch.setattr(execute, "_has_appeared", looked_before)


ORPHAN_OF: dict[str, str] = {}  # The uid that a trial is about.


async def a_copy_meets_a_collector(at: int) -> tuple[bool, str]:
    """It sends what is missing at one request of the collector, and the decision at a later one."""
    source, (uid,) = await history_of(1)
    history, _ = await history_of(2)
    ORPHAN_OF["copy"] = uid
    keys = [key for key in await source.keys_of(uid) if not key.endswith("/begin.json")]
    objects = {key: await source.store.get(key) for key in keys}
    for key in await source.data_keys(uid):
        await history.store.put(key, objects[key])
    await wait(2 * DAY_S)
    copied: list[str] = []

    async def copy(stop: Stop) -> None:
        store = _Stopping(history.store, stop, decisions_prefix(RUN))
        pin = pinned(store, RUN, uid, clock=CLOCK, holder="x", deadline=Deadline.after(9))
        try:
            async with pin:
                missing = objects.keys() - await history.keys()
                for key in sorted(missing, key=lambda key: "/decisions/" in key):
                    await store.put(key, objects[key])
        except CheckpointNotFoundError:
            return
        copied.append(uid)

    acted = await InTwoHalves(copy).run_within(history, await history.plan(), at)
    if copied and retired_key(RUN, uid) in await history.keys():
        return acted, "the copy is marked as if retention had let go of it"
    return acted, await _read(history, uid) if copied else ""


def test_a_copy_is_whole_or_refused() -> None:
    assert losses(a_copy_meets_a_collector) == []


@pytest.mark.parametrize("weaken", [orphans_are_not_marked, orphans_are_looked_up_before_pins])
def test_orphans_that_are_not_guarded_are_seen_to_be_lost(
    weaken: Weakening, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch)
    assert losses(a_copy_meets_a_collector, at_most=1)


# a save that begins while a collector looks around


def data_is_listed_last(patch: pytest.MonkeyPatch) -> None:
    facts, data = survey._facts, survey._survey_data

    async def nothing_yet(*_: object) -> None: ...

    async def facts_first(store: ObjectStore, run: str, found: Any, *rest: Any) -> Any:  # noqa: ANN401
        known = await facts(store, run, found, *rest)
        await data(store, None, found)
        return known

    patch.setattr(survey, "_survey_data", nothing_yet)
    patch.setattr(survey, "_facts", facts_first)


async def a_save_begins_during_a_survey(at: int) -> tuple[bool, str]:
    history, _ = await history_of(1)
    begun: list[str] = []

    async def begin_and_write() -> None:
        begun.append((await history.leave_undecided(2)).uid)

    stepped = SteppedStore(history.store, at, begin_and_write)
    made = await survey.plan_collection(
        stepped,
        None,
        LAST_1,
        record=history.world.record,
        clock=CLOCK,
        orphans_older_than_s=0.0,  # Its age must not be what saves it.
    )
    taken = [garbage.why.value for garbage in made.garbage if garbage.uid in begun]
    return stepped.acted, "; ".join(taken)


def test_a_save_that_begins_during_a_survey_is_never_taken_for_an_orphan() -> None:
    assert losses(a_save_begins_during_a_survey) == []


def test_listing_data_last_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data_is_listed_last(monkeypatch)
    assert losses(a_save_begins_during_a_survey, at_most=1)


# an attempt past its deadline, and a coordinator that is merely slow


def collector_deletes_undecided_by_age(patch: pytest.MonkeyPatch) -> None:
    async def by_age(self: object, garbage: plan.Garbage) -> bool:
        return True

    patch.setattr(execute._Collection, "_is_settled", by_age)


async def a_slow_save_meets_a_collector(at: int) -> tuple[bool, str]:
    """The last vote and the decision come at a request of the collector."""
    history, _ = await history_of(1)
    attempt = await history.leave_undecided(2)
    await wait(DAY_S)

    async def save() -> None:
        try:
            await history.world.save_rank(attempt, 0)
        except CheckpointAbortedError:
            aborted.append(attempt.uid)

    aborted: list[str] = []
    stepped = SteppedStore(history.store, at, save)
    made = await history.plan(LAST_1, stepped)
    await execute.collect(stepped, made, record=history.world.record, clock=CLOCK)
    if not stepped.acted:
        return False, ""
    return True, await _told_is_true(history, attempt, aborted=bool(aborted))


async def _told_is_true(history: History, attempt: Attempt, *, aborted: bool) -> str:
    try:
        decision = await read_decision(history.store, RUN, attempt.uid)
    except ObjectNotFoundError:
        return "there is no decision"
    if isinstance(decision, Commit) == aborted:
        return f"it was told {'aborted' if aborted else 'committed'}, and is not"
    return "" if aborted else await _read(history, attempt.uid)


def test_a_slow_save_commits_all_of_it_or_nothing() -> None:
    assert losses(a_slow_save_meets_a_collector) == []


@only_stored_as_it_is
def test_deleting_undecided_attempts_by_age_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    collector_deletes_undecided_by_age(monkeypatch)
    assert losses(a_slow_save_meets_a_collector, at_most=1)


# a writer that wakes up long after its attempt was aborted and collected


def decisions_are_deleted(patch: pytest.MonkeyPatch) -> None:
    deleted = execute._Collection._delete

    async def delete_all(self: Any, garbage: plan.Garbage) -> None:  # noqa: ANN401
        await deleted(self, garbage)
        for key in (decision_key(RUN, garbage.uid), retired_key(RUN, garbage.uid)):
            await self._store.delete(key)

    patch.setattr(execute._Collection, "_delete", delete_all)


async def a_zombie_wakes_up() -> tuple[str, History]:
    history, _ = await history_of(1)
    attempt = await history.abort(2)
    await history.collect()
    assert await history.data_keys(attempt.uid) == []
    try:
        await history.world.save_rank(attempt, 0, BytesShard(b"a zombie's"))
    except CheckpointAbortedError:
        return "", history
    return "what was reported as aborted was committed", history


def test_a_writer_that_wakes_up_after_a_collection_hears_that_it_was_aborted() -> None:
    async def tell() -> None:
        loss, history = await a_zombie_wakes_up()
        assert loss == ""
        left = await history.data_keys()
        await history.collect()
        now = await history.data_keys()
        assert len(left) == 2  # What it wrote before it heard is found the next time.
        assert len(now) == 1
        await history.assert_latest_intact()

    run_virtual(tell())


def test_deleting_decisions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions_are_deleted(monkeypatch)
    loss, _ = run_virtual(a_zombie_wakes_up())
    assert loss


# a listing that fails


@pytest.mark.parametrize("after_entries", [0, 1])
def test_half_a_listing_collects_nothing(after_entries: int) -> None:
    async def tell(at: int) -> bool:
        history, _ = await history_of(1, 2, 3)
        await history.abort(4)
        before = await history.data_keys()
        cut = CutListing(history.store, at, after_entries)
        try:
            await history.collect(LAST_1, cut)
        except ConnectionError:
            assert await history.data_keys() == before
            cuts.append(at)
        else:
            assert not cut.was_cut
        return cut.was_reached

    cuts: list[int] = []
    tried = 0
    while run_virtual(tell(tried)):
        tried += 1
    assert len(cuts) > 12  # Those of the plan, and those of the collection.


class CutListing(SteppedStore):
    """The listing number ``at`` ends in an error after some entries."""

    def __init__(self, inner: ObjectStore, at: int, after_entries: int) -> None:
        super().__init__(inner)
        self._at_listing = at
        self._after_entries = after_entries
        self._listings = 0
        self.was_reached = False
        self.was_cut = False

    async def list_objects(self, prefix: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self._listings += 1
        is_the_one = self._listings == self._at_listing + 1
        self.was_reached = self.was_reached or is_the_one
        entries_left = self._after_entries if is_the_one else -1
        async for info in self._inner.list_objects(prefix):
            if entries_left == 0:
                break
            yield info
            entries_left -= 1
        if is_the_one:  # Not reached by whoever needs no more of it.
            self.was_cut = True
            raise ConnectionError("cut")
