"""Two stores, and a run with a past in the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline
from ckptstore.commit.catalog import latest_commit, list_checkpoints, read_decision
from ckptstore.load import read_manifest
from ckptstore.manifest.model import Commit
from ckptstore.opening import layered
from ckptstore.progress import Progress
from ckptstore.restore.verify import verify_shards
from ckptstore.store import ObjectStore
from ckptstore.sync.execute import SyncReport, carry_out, plan_runs
from ckptstore.sync.plan import RunPlan
from ckptstore.sync.selection import Selection
from ckptstore.sync.transfer import End
from ckptstore.types import Key
from tests.gc.history import CLOCK, History
from tests.world import RECORD, RUN, SETTINGS

EVERYTHING = Selection()


@dataclass
class Pair:
    """A source with a history, and a target that is empty at first."""

    history: History = field(default_factory=History)
    target: ObjectStore = field(default_factory=lambda: MemoryStore(clock=CLOCK))
    source: ObjectStore | None = None  # The history's, unless a test puts something around it.

    def ends(self) -> tuple[End, End]:
        source = self.source or self.history.store
        return (
            End(store=layered(source, "", SETTINGS), name="SRC"),
            End(store=layered(self.target, "", SETTINGS), name="DST"),
        )

    async def plan(self, selection: Selection = EVERYTHING) -> RunPlan:
        (plan,) = await plan_runs(*self.ends(), [RUN], selection)
        return plan

    async def sync(
        self,
        selection: Selection = EVERYTHING,
        *,
        create_only: bool = True,
        progress: Progress | None = None,
    ) -> SyncReport:
        ends = self.ends()
        return await carry_out(
            await plan_runs(*ends, [RUN], selection),
            *ends,
            record=RECORD if create_only else RECORD_WITHOUT,
            clock=CLOCK,
            deadline=Deadline.after(10_000),
            settings=SETTINGS.transfer,
            progress=progress,
        )

    async def committed(self) -> list[str]:
        """Return what a reader finds in the target, the newest first."""
        infos = await list_checkpoints(self.target, RUN)
        return [info.uid for info in infos if info.state == "committed"]

    async def assert_mirrored(self, uids: Sequence[str]) -> None:
        """These are in the target, whole, byte for byte, and nothing else is committed there."""
        assert await self.committed() == sorted(uids, reverse=True)
        for uid in uids:
            await assert_whole(self.target, uid)
            for key in await self.history.keys_of(uid):
                assert await self.target.get(key) == await self.history.store.get(key)
        assert not [key for key in await keys_of(self.target) if "/pins/" in key]

    async def latest(self) -> str | None:
        latest = await latest_commit(self.target, RUN)
        return latest.attempt.uid if latest else None


RECORD_WITHOUT = type(RECORD)(
    store_id="s", fan_out=4, create_only=False, created_unix_s=0.0, created_by="a test"
)


async def assert_whole(store: ObjectStore, uid: str) -> None:
    commit = await read_decision(store, RUN, uid)
    assert isinstance(commit, Commit)
    manifest = await read_manifest(store, commit)
    report = await verify_shards(store, manifest.shards, settings=SETTINGS.transfer)
    assert report.ok, f"{uid}: {report.damaged}"


async def keys_of(store: ObjectStore) -> set[Key]:
    return {info.key async for info in store.list_objects("")}


async def contents(store: ObjectStore) -> dict[Key, bytes]:
    return {key: await store.get(key) for key in await keys_of(store)}
