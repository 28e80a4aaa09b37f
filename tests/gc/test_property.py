"""Whatever happened to a run, and whatever the policy: what is kept is whole, and enough is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore.clock import Deadline
from ckptstore.commit.catalog import latest_commit, list_checkpoints, newest_parent
from ckptstore.commit.pins import pinned
from ckptstore.commit.tags import put_tag
from ckptstore.errors import CheckpointAbortedError
from ckptstore.gc.execute import collect
from ckptstore.gc.plan import CollectionPlan
from ckptstore.gc.policy import RetentionPolicy
from ckptstore.manifest.layout import parse_uid
from ckptstore.manifest.model import Attempt
from ckptstore.testing.virtual_time import run_virtual
from tests.gc.history import CLOCK, DAY_S, History, wait
from tests.gc.test_policy import POLICIES
from tests.world import RECORD, RUN


@dataclass
class Past:
    """A history that grows by events; ``choose`` picks which of several things one is about."""

    policy: RetentionPolicy
    history: History = field(default_factory=History)
    step: int = 0
    committed: list[str] = field(default_factory=list)
    undecided: list[Attempt] = field(default_factory=list)
    tagged: set[str] = field(default_factory=set)

    async def happen(self, event: str, choose: int) -> None:
        self.step += 1
        await EVENTS[event](self, choose)

    async def commit(self, choose: int) -> None:
        self.committed.append(await self.history.commit(self.step))

    async def abort(self, choose: int) -> None:
        await self.history.abort(self.step)

    async def leave_undecided(self, choose: int) -> None:
        self.undecided.append(await self.history.leave_undecided(self.step))

    async def wake_up(self, choose: int) -> None:
        if self.undecided:
            attempt = self.undecided[choose % len(self.undecided)]
            try:
                await self.history.world.save_rank(attempt, 0)
                self.committed.append(attempt.uid)
            except CheckpointAbortedError:
                pass

    async def restart(self, choose: int) -> None:
        await self.history.restart()

    async def roll_back(self, choose: int) -> None:
        if uid := await self._one_kept(choose):
            await self.history.restart(parent_uid=uid)

    async def tag(self, choose: int) -> None:
        if uid := await self._one_kept(choose):
            name = f"tag-{self.step}"
            await put_tag(self.history.store, RUN, name, uid, clock=CLOCK)
            self.tagged.add(uid)

    async def pin(self, choose: int) -> None:
        """By a reader that is killed at once: the pin holds until it expires."""
        store = self.history.store
        if uid := await self._one_kept(choose):
            async with pinned(store, RUN, uid, clock=CLOCK, holder="x", deadline=Deadline.after(9)):
                lasting = {
                    key: await store.get(key)
                    for key in await self.history.keys()
                    if "/pins/" in key
                }
            for key, data in lasting.items():
                await store.put(key, data)

    async def leave_an_upload(self, choose: int) -> None:
        if uid := await self._one_kept(choose):
            await self.history.store.multipart_create((await self.history.data_keys(uid))[0])

    async def leave_an_orphan(self, choose: int) -> None:
        await self.history.orphan(f"i000099-s{self.step:012d}-a00-0000beef")

    async def let_a_day_pass(self, choose: int) -> None:
        await wait(DAY_S + 1)

    async def collect(self, choose: int) -> None:
        await self.history.collect(self.policy)

    async def collect_in_part(self, choose: int) -> None:
        """A collection that is killed after some deletions."""
        plan = await self.history.plan(self.policy)
        for garbage in plan.garbage[: choose % 3]:
            part = CollectionPlan(garbage=(garbage,))
            await collect(self.history.store, part, record=RECORD, clock=CLOCK)

    async def kept(self) -> list[str]:
        infos = await list_checkpoints(self.history.store, RUN)
        return [info.uid for info in infos if info.state == "committed"]

    async def _one_kept(self, choose: int) -> str | None:
        kept = await self.kept()
        return kept[choose % len(kept)] if kept else None


EVENTS: Final[dict[str, Callable[[Past, int], Coroutine[Any, Any, None]]]] = {
    "commit": Past.commit,
    "commit again": Past.commit,
    "and again": Past.commit,
    "abort": Past.abort,
    "undecided": Past.leave_undecided,
    "zombie": Past.wake_up,
    "restart": Past.restart,
    "rollback": Past.roll_back,
    "tag": Past.tag,
    "pin": Past.pin,
    "upload": Past.leave_an_upload,
    "orphan": Past.leave_an_orphan,
    "a day": Past.let_a_day_pass,
    "collection": Past.collect,
    "half a collection": Past.collect_in_part,
}


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 20)), max_size=25), POLICIES
)
def test_after_any_past_and_any_collection_what_is_kept_verifies(
    events: list[tuple[str, int]], policy: RetentionPolicy
) -> None:
    async def tell() -> None:
        past = Past(policy)
        history = past.history
        for event, choose in events:
            await past.happen(event, choose)
            await assert_kept_is_whole(past)
        await wait(2 * DAY_S)  # Deadlines pass, pins expire, orphans grow old.
        latest = await latest_commit(history.store, RUN)
        due = await due_to_stay(past)
        await history.collect(policy)
        assert set(await past.kept()) == due
        assert await latest_commit(history.store, RUN) == latest
        await assert_kept_is_whole(past)
        await assert_nothing_to_collect(past)

    run_virtual(tell())


async def due_to_stay(past: Past) -> set[str]:
    """Say it in other words than the policy does."""
    committed = sorted(await past.kept(), key=parse_uid)
    policy = past.policy
    due = {uid for uid in committed if uid in past.tagged or policy.keeps_all}
    if policy.keep_last:
        due |= set(committed[-policy.keep_last :])
    if policy.keep_every:
        of_step = {parse_uid(uid).step: uid for uid in committed}
        due |= {uid for step, uid in of_step.items() if step % policy.keep_every == 0}
    latest = await latest_commit(past.history.store, RUN)
    parent = await newest_parent(past.history.store, RUN)
    needed = {parent, latest.attempt.uid if latest else None}
    return due | {uid for uid in committed if uid in needed}


async def assert_kept_is_whole(past: Past) -> None:
    """Every checkpoint that is not retired verifies, and so do the latest and the tagged."""
    history = past.history
    states = {info.uid: info.state for info in await list_checkpoints(history.store, RUN)}
    assert {states[uid] for uid in past.committed} <= {"committed", "retired"}
    for uid, state in states.items():
        if state == "committed" or uid in past.tagged:
            await history.assert_intact(uid)
    if await latest_commit(history.store, RUN):
        await history.assert_latest_intact()


async def assert_nothing_to_collect(past: Past) -> None:
    plan = await past.history.plan(past.policy)
    assert plan.garbage == ()
    if plan.left_alone:  # Nothing but orphans ever happened to this run.
        assert {left.reason for left in plan.left_alone} == {
            "the run has no records at all: is it still being copied?"
        }
    else:
        assert past.history.store.uploads_open == 0
