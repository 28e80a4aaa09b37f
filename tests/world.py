"""Several ranks in one process, with nothing but a store between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ckptstore.clock import Deadline
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import Attempt, Commit, FileEntry, StoreRecord
from ckptstore.opening import layered
from ckptstore.save import Contents, save_checkpoint
from ckptstore.settings import Settings, TransferSettings, compression_wished
from ckptstore.store import ObjectStore
from ckptstore.testing.virtual_time import VirtualClock
from ckptstore.types import Buffer, ByteRange

RUN = "llama"
DATA = b"0123456789"
SETTINGS = Settings(
    transfer=TransferSettings(block_size_bytes=2, part_size_bytes=4, in_flight_bytes_max=8)
)
RECORD = StoreRecord(
    store_id="s", fan_out=4, create_only=True, created_unix_s=0.0, created_by="a test"
)

only_stored_as_it_is = pytest.mark.skipif(
    compression_wished() is not None, reason="is about where bytes lie in the store"
)


@dataclass
class BytesShard:
    """A shard out of memory, in pieces of three bytes."""

    data: bytes = DATA
    kind: ShardKind = ShardKind.FILE

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        view = memoryview(self.data)[byte_range.start : byte_range.stop]
        return [view[start : start + 3] for start in range(0, len(view), 3)]


class BrokenShard(BytesShard):
    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        raise ZeroDivisionError("a bug, not a store error")


class EndlessShard(BytesShard):
    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")


@dataclass
class World:
    """A job of ``world_size`` ranks over one store. Each rank sees it through ``wrap``."""

    store: ObjectStore
    world_size: int = 2
    deadline_s: float = 100.0
    settings: Settings = SETTINGS
    record: StoreRecord = RECORD
    clock: VirtualClock = field(default_factory=VirtualClock)

    def rank_store(self) -> ObjectStore:
        """Return the store with the layers of the product around it."""
        return layered(self.store, "", self.settings)

    async def begin(self, step: int = 7, incarnation: int | None = None) -> Attempt:
        store = self.rank_store()
        if incarnation is None:
            claim = await claim_incarnation(
                store, run=RUN, parent_uid=None, facts={}, clock=self.clock
            )
            incarnation = claim.number
        return await begin_attempt(
            store,
            run=RUN,
            step=step,
            incarnation=incarnation,
            attempt_number=0,
            world_size=self.world_size,
            deadline=Deadline.after(self.deadline_s),
            clock=self.clock,
        )

    async def save_rank(
        self, attempt: Attempt, rank: int, shard: BytesShard | None = None
    ) -> Commit:
        source = shard or BytesShard()
        name = f"file-{rank}"
        return await save_checkpoint(
            [source],
            Contents(files=(FileEntry(path=name, shard=0, start=0, stop=source.size_bytes),)),
            attempt=attempt,
            rank=rank,
            store=self.rank_store(),
            record=self.record,
            deadline=Deadline.after(self.deadline_s),
            settings=self.settings,
            clock=self.clock,
        )

    async def save(
        self, attempt: Attempt, shards: Sequence[BytesShard] = ()
    ) -> list[Commit | BaseException]:
        """Save on all ranks at once, and return how it ended on each."""
        shards = shards or [BytesShard() for _ in range(self.world_size)]
        saves = (self.save_rank(attempt, rank, shard) for rank, shard in enumerate(shards))
        return await asyncio.gather(*saves, return_exceptions=True)
