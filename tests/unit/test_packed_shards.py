"""Compressed shards, from a source into a store and back in any range."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import IntegrityError
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import Packed, ShardEntry
from ckptstore.packing import Numbers
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.restore.verify import verify_shards, verify_sizes
from ckptstore.settings import Compression, TransferSettings
from ckptstore.types import MIB, Buffer, ByteRange, Key, Overwrite, Part, UploadId, parse_key
from ckptstore.upload.uploader import Uploader
from tests.world import BytesShard

KEY = parse_key("data/00/run/uid/000000-0000.packed")
SMALL = TransferSettings(
    block_size_bytes=32,
    part_size_bytes=64,
    in_flight_bytes_max=256,
    compression=Compression(),
)


class PartSizes(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.part_sizes: dict[int, int] = {}

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        self.part_sizes[part.index] = sum(len(memoryview(piece)) for piece in pieces)
        await asyncio.sleep(random.random() / 1e6)  # So that parts end in any order.
        return await super().put_part(key, upload_id, part, pieces, crc64nvme=crc64nvme)


class InOnePiece(BytesShard):
    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return [memoryview(self.data)[byte_range.start : byte_range.stop]]


def some_bytes(size_bytes: int, seed: int) -> bytes:
    """Stretches that compress, and stretches that do not."""
    rng = random.Random(seed)
    data = b""
    while len(data) < size_bytes:
        piece = rng.randbytes(rng.randint(1, 40))
        data += piece * rng.choice([1, 1, 20])
    return data[:size_bytes]


async def stored(store: MemoryStore, data: bytes, transfer: TransferSettings = SMALL) -> ShardEntry:
    uploader = Uploader(store, transfer)
    numbers = {KEY: [Numbers(len(data) // 3, len(data), 4)]}
    (shard,) = await uploader.upload([(KEY, BytesShard(data))], numbers=numbers)
    assert uploader.progress.bytes_done == len(data)
    return shard


@given(st.integers(0, 700), st.integers(0, 10_000), st.integers(0, 700), st.integers(0, 700))
@settings(deadline=None)
def test_any_range_of_a_compressed_shard_is_read_as_it_was(
    size_bytes: int, seed: int, one: int, other: int
) -> None:
    start, stop = sorted((min(one, size_bytes), min(other, size_bytes)))
    data = some_bytes(size_bytes, seed)

    async def tell() -> None:
        store = PartSizes()
        shard = await stored(store, data)
        assert shard.content_bytes == size_bytes
        assert shard.size_bytes == len(await store.get(KEY)) <= size_bytes
        sizes = [store.part_sizes[index] for index in sorted(store.part_sizes)]
        assert set(sizes[:-1]) <= {SMALL.part_size_bytes}  # Some stores insist on it.
        assert sum(sizes) in (0, shard.size_bytes)
        target = bytearray(stop - start)
        reader = CheckedReader(store, SMALL)
        await reader.read_wanted([Wanted(shard, start, memoryview(target))])
        assert target == data[start:stop]
        report = await verify_shards(store, [shard], settings=SMALL)
        assert (report.ok, report.bytes_verified) == (True, size_bytes)
        assert (await verify_sizes(store, [shard])).ok

    asyncio.run(tell())


@given(st.integers(1, 300), st.integers(0, 10_000), st.data())
@settings(deadline=None)
def test_any_flipped_bit_is_found_and_names_its_block(
    size_bytes: int, seed: int, draw: st.DataObject
) -> None:
    async def tell() -> None:
        store = MemoryStore()
        shard = await stored(store, some_bytes(size_bytes, seed))
        sound = await store.get(KEY)
        at = draw.draw(st.integers(0, len(sound) - 1))
        bit = 1 << draw.draw(st.integers(0, 7))
        bad = sound[:at] + bytes([sound[at] ^ bit]) + sound[at + 1 :]
        await store.put(KEY, bad, mode=Overwrite())
        target = bytearray(size_bytes)
        with pytest.raises(IntegrityError) as caught:
            await CheckedReader(store, SMALL).read_wanted([Wanted(shard, 0, memoryview(target))])
        assert shard.packed is not None
        block, end = 0, shard.packed.stored_sizes[0]
        while end <= at:
            block += 1
            end += shard.packed.stored_sizes[block]
        (damage,) = caught.value.damage
        assert (damage.object, damage.block, damage.offset) == (KEY, block, 32 * block)
        report = await verify_shards(store, [shard], settings=SMALL)
        assert [one.block for one in report.damaged] == [block]

    asyncio.run(tell())


async def test_a_shard_that_was_cut_is_damaged_and_no_block_is_taken_for_another() -> None:
    store = MemoryStore()
    shard = await stored(store, some_bytes(500, 3))
    await store.put(KEY, (await store.get(KEY))[:-1], mode=Overwrite())
    with pytest.raises(IntegrityError, match="bytes"):
        await CheckedReader(store, SMALL).read_wanted(
            [Wanted(shard, 0, memoryview(bytearray(500)))]
        )
    assert not (await verify_sizes(store, [shard])).ok


async def test_blocks_of_the_usual_size_are_packed_in_threads_and_stay_within_the_budget() -> None:
    data = some_bytes(1000, 5) * 11_000
    transfer = TransferSettings(compression=Compression())
    store = MemoryStore()
    (shard,) = await Uploader(store, transfer).upload([(KEY, InOnePiece(data))])
    assert shard.size_bytes < len(data) / 5
    target = bytearray(6 * MIB)
    reader = CheckedReader(store, replace(transfer, in_flight_bytes_max=MIB))
    await reader.read_wanted([Wanted(shard, 3 * MIB, memoryview(target))])
    assert target == data[3 * MIB : 9 * MIB]


PACKED = Packed(
    kind=ShardKind.FILE,
    size_bytes=40,
    block_crcs="0" * 32,
    stored_sizes=(20, 8),
    widths="14",
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"stored_sizes": (20, 7)}, "do not make up all of it"),
        ({"stored_sizes": (19, 9)}, "larger packed than it was"),
        ({"stored_sizes": (28, 0)}, "is empty"),
        ({"stored_sizes": (28,)}, "from 2 blocks and says otherwise"),
        ({"widths": "1"}, "from 2 blocks and says otherwise"),
        ({"block_crcs": "0" * 16}, "from 2 blocks and says otherwise"),
        ({"size_bytes": 65}, "from 3 blocks and says otherwise"),
    ],
)
async def test_an_entry_that_contradicts_itself_is_refused(
    changes: dict[str, object], why: str
) -> None:
    store = MemoryStore()
    plain = replace(SMALL, compression=None)
    (shard,) = await Uploader(store, plain).upload([(KEY, BytesShard(bytes(28)))])
    as_read = msgspec.json.decode(
        msgspec.json.encode(msgspec.structs.replace(shard, packed=PACKED)), type=ShardEntry
    )
    assert as_read.packed is not None
    assert (as_read.content_bytes, as_read.content_suffix) == (40, "file")
    with pytest.raises(ValueError, match=why):
        msgspec.structs.replace(shard, packed=msgspec.structs.replace(PACKED, **changes))


async def test_an_entry_of_a_shard_that_is_not_compressed_says_nothing_of_it() -> None:
    plain = replace(SMALL, compression=None)
    (shard,) = await Uploader(MemoryStore(), plain).upload([(KEY, BytesShard())])
    assert b'"packed"' not in msgspec.json.encode(shard)
    assert shard.stored is shard
