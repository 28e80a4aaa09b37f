"""A run with a past, and what must hold of it whatever is collected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline
from ckptstore.commit.begin import claim_incarnation
from ckptstore.commit.catalog import latest_commit, read_decision
from ckptstore.commit.committer import Committer
from ckptstore.gc.execute import CollectionReport, collect
from ckptstore.gc.plan import CollectionPlan
from ckptstore.gc.policy import KEEP_ALL, RetentionPolicy
from ckptstore.gc.survey import plan_collection
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.load import read_manifest
from ckptstore.manifest.layout import ShardKind, data_key
from ckptstore.manifest.model import Abort, Attempt, Commit
from ckptstore.restore.verify import verify_shards
from ckptstore.save import Contents, save_checkpoint
from ckptstore.store import ObjectStore
from ckptstore.testing.virtual_time import VirtualClock
from ckptstore.types import Key, ObjectInfo, UploadInfo
from tests.world import DATA, RUN, SETTINGS, BytesShard, World

T = TypeVar("T")

CLOCK = VirtualClock()
DAY_S = 24 * 3600.0
LAST_1 = RetentionPolicy(keep_last=1)


def new_store() -> MemoryStore:
    return MemoryStore(clock=CLOCK)


@dataclass
class History:
    """A run of jobs of one rank each, to which things happen."""

    store: MemoryStore = field(default_factory=new_store)
    incarnation: int = 0

    def __post_init__(self) -> None:
        self.world = World(self.store, world_size=1, clock=CLOCK)

    async def begin(self, step: int) -> Attempt:
        attempt = await self.world.begin(step, self.incarnation or None)
        self.incarnation = int(attempt.uid[1:7])
        return attempt

    async def commit(self, step: int, data: bytes = DATA) -> str:
        attempt = await self.begin(step)
        await self.world.save_rank(attempt, 0, BytesShard(data))
        return attempt.uid

    async def commit_with(self, metrics: dict[str, float], step: int) -> str:
        attempt = await self.begin(step)
        await save_checkpoint(
            [BytesShard()],
            Contents(metrics=metrics),
            attempt=attempt,
            rank=0,
            store=self.store,
            record=self.world.record,
            deadline=Deadline.after(100),
            settings=SETTINGS,
            clock=CLOCK,
        )
        return attempt.uid

    async def restart(self, parent_uid: str | None = None) -> int:
        """Start the job again, from a checkpoint or from the latest one."""
        claim = await claim_incarnation(
            self.store, run=RUN, parent_uid=parent_uid, facts={}, clock=CLOCK
        )
        self.incarnation = claim.number
        return claim.number

    async def commits(self, *steps: int) -> list[str]:
        return [await self.commit(step) for step in steps]

    async def write(self, attempt: Attempt, index: int = 0) -> Key:
        """Write an object as a rank of the attempt would, and leave it at that."""
        key = data_key(attempt.run, attempt.uid, 0, index, ShardKind.FILE, fan_out=4)
        await self.store.put(key, DATA)
        return key

    async def leave_undecided(self, step: int) -> Attempt:
        attempt = await self.begin(step)
        await self.write(attempt)
        return attempt

    async def abort(self, step: int) -> Attempt:
        attempt = await self.leave_undecided(step)
        committer = Committer(
            self.store, attempt, SETTINGS.commit, role="test", create_only=True, clock=CLOCK
        )
        assert isinstance(await committer.decide(committer.abort("for a test")), Abort)
        return attempt

    async def orphan(self, uid: str) -> Key:
        key = data_key(RUN, uid, 0, 0, ShardKind.FILE, fan_out=4)
        await self.store.put(key, DATA)
        return key

    async def plan(
        self,
        policy: RetentionPolicy = KEEP_ALL,
        store: ObjectStore | None = None,
        *,
        run: str | None = None,
    ) -> CollectionPlan:
        """Plan for the whole store, which takes fewer requests than for a run of it."""
        return await plan_collection(
            store or self.store, run, policy, record=self.world.record, clock=CLOCK
        )

    async def collect(
        self, policy: RetentionPolicy = KEEP_ALL, store: ObjectStore | None = None
    ) -> CollectionReport:
        plan = await self.plan(policy, store)
        return await collect(store or self.store, plan, record=self.world.record, clock=CLOCK)

    async def data_keys(self, uid: str | None = None) -> list[Key]:
        keys = [info.key async for info in self.store.list_objects("data/")]
        return [key for key in keys if uid is None or uid in key.split("/")]

    async def keys_of(self, uid: str) -> list[Key]:
        return sorted(key for key in await self.keys() if uid in key)

    async def keys(self) -> set[Key]:
        return {info.key async for info in self.store.list_objects("")}

    async def assert_nothing_left(self, kept: Collection[str]) -> None:
        """What is left is what was kept, and records that stay for ever."""
        assert {key.split("/")[3] for key in await self.data_keys()} == set(kept)
        assert self.store.uploads_open == 0
        records = {key for key in await self.keys() if f"{RUN}/attempts/" in key}
        assert {key.split("/")[3] for key in records} == set(kept)
        plan = await self.plan()
        assert (plan.garbage, plan.left_alone) == ((), ())

    async def assert_intact(self, uid: str) -> None:
        commit = await read_decision(self.store, RUN, uid)
        assert isinstance(commit, Commit)
        manifest = await read_manifest(self.store, commit)
        report = await verify_shards(self.store, manifest.shards, settings=SETTINGS.transfer)
        assert report.ok, f"{uid}: {report.damaged}"
        assert report.objects

    async def assert_latest_intact(self) -> str:
        latest = await latest_commit(self.store, RUN)
        assert latest is not None
        await self.assert_intact(latest.attempt.uid)
        return latest.attempt.uid


_SAVED: dict[tuple[int, ...], tuple[History, list[str]]] = {}


async def history_of(*steps: int) -> tuple[History, list[str]]:
    """Return a history with commits of these steps, saved once and copied for each caller."""
    if steps not in _SAVED:
        history = History()
        _SAVED[steps] = (history, await history.commits(*steps))
    saved, uids = _SAVED[steps]
    copy = History(incarnation=saved.incarnation)
    copy.store._objects.update(saved.store._objects)
    return copy, uids


class SteppedStore(AroundLayer):
    """Before or after the request number ``at``, counted from 0, does something once."""

    def __init__(
        self,
        inner: ObjectStore,
        at: int = -1,
        act: Callable[[], Awaitable[None]] | None = None,
        *,
        landed: bool = False,
    ) -> None:
        super().__init__(inner)
        self._at = at
        self._act = act
        self._landed = landed
        self.requests: list[Request] = []
        self.acted = False

    async def _step(self, request: Request) -> bool:
        """Count the request, and say whether something is to be done about it."""
        self.requests.append(request)
        due = len(self.requests) == self._at + 1
        self.acted = self.acted or due
        return due

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        due = await self._step(request)
        if due and self._act and not self._landed:
            await self._act()
        try:
            return await send()
        finally:
            if due and self._act and self._landed:
                await self._act()

    async def list_objects(self, prefix: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        async def listing() -> list[ObjectInfo]:
            return [info async for info in self._inner.list_objects(prefix)]

        for info in await self._around(Request("list_objects", prefix), listing):
            yield info

    async def list_uploads(self, prefix: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        async def listing() -> list[UploadInfo]:
            return [upload async for upload in self._inner.list_uploads(prefix)]

        for upload in await self._around(Request("list_uploads", prefix), listing):
            yield upload


async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds)
