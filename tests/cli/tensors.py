"""Checkpoints of tensors without torch: ranks that save boxes of arrays whose bytes are known."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckptstore.clock import Deadline
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.fetch.safetensors import Slot, file_head
from ckptstore.manifest.dtypes import SAFETENSORS
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import Commit, ItemEntry, TensorEntry
from ckptstore.opening import prepared_record
from ckptstore.save import Contents, save_checkpoint
from ckptstore.settings import Settings, TransferSettings
from ckptstore.store import ObjectStore
from ckptstore.testing.virtual_time import VirtualClock
from tests.world import BytesShard

RUN = "net"
SMALL = TransferSettings(block_size_bytes=16, part_size_bytes=32, in_flight_bytes_max=64)


@dataclass(frozen=True, slots=True)
class Box:
    """A chunk of an array: where it starts, and how much of each axis it takes."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a type, each of whose bytes differs from its neighbours."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        return SAFETENSORS[self.dtype].item_size_bytes

    @property
    def data(self) -> bytes:
        size_bytes = math.prod(self.shape) * self.item_bytes
        return bytes((7 * at + at // 251) % 251 for at in range(size_bytes))

    @property
    def whole(self) -> Box:
        return Box((0,) * len(self.shape), self.shape)

    def part(self, box: Box) -> bytes:
        axes = zip(box.offsets, box.sizes, strict=True)
        found = b""
        for index in itertools.product(*(range(o, o + s) for o, s in axes)):
            flat = 0
            for place, size in zip(index, self.shape, strict=True):
                flat = flat * size + place
            found += self.data[flat * self.item_bytes : (flat + 1) * self.item_bytes]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What one rank saves: boxes of the arrays, each in a shard of its own, and items."""

    boxes: Sequence[tuple[str, Box]] = ()
    items: Mapping[str, bytes] | None = None


def sources_of(arrays: Mapping[str, Array], state: RankState) -> tuple[list[BytesShard], Contents]:
    shards: list[BytesShard] = []
    tensors: list[TensorEntry] = []
    for name, box in state.boxes:
        array = arrays[name]
        slot = Slot(name=name, dtype=array.dtype, item_bytes=array.item_bytes, shape=box.sizes)
        head, (start,) = file_head([slot], {"format": "pt"})
        data = array.part(box)
        tensors.append(
            TensorEntry(
                shard=len(shards),
                start=start,
                stop=start + len(data),
                name=name,
                dtype=array.dtype,
                shape=array.shape,
                offsets=box.offsets,
                sizes=box.sizes,
            )
        )
        shards.append(BytesShard(head + data, ShardKind.TENSORS))
    items: list[ItemEntry] = []
    data = b""
    for name, item in (state.items or {}).items():
        items.append(
            ItemEntry(name=name, shard=len(shards), start=len(data), stop=len(data) + len(item))
        )
        data += item
    if items:
        shards.append(BytesShard(data, ShardKind.ITEMS))
    return shards, Contents(tensors=tuple(tensors), items=tuple(items))


async def save_tensors(
    store: ObjectStore,
    arrays: Mapping[str, Array],
    ranks: Sequence[RankState],
    *,
    step: int = 1,
    transfer: TransferSettings = SMALL,
) -> Commit:
    """Save on all ranks at once and return the commit."""
    clock = VirtualClock()
    deadline = Deadline.after(60.0)
    record = await prepared_record(store, clock=clock)
    claim = await claim_incarnation(store, run=RUN, parent_uid=None, facts={}, clock=clock)
    attempt = await begin_attempt(
        store,
        run=RUN,
        step=step,
        incarnation=claim.number,
        attempt_number=0,
        world_size=len(ranks),
        deadline=deadline,
        clock=clock,
    )

    async def save(rank: int) -> Commit:
        sources, contents = sources_of(arrays, ranks[rank])
        return await save_checkpoint(
            sources,
            contents,
            attempt=attempt,
            rank=rank,
            store=store,
            record=record,
            deadline=deadline,
            settings=Settings(transfer=transfer),
            clock=clock,
        )

    return (await asyncio.gather(*map(save, range(len(ranks)))))[0]
