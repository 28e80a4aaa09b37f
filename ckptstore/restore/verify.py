"""Read shards back and say what is wrong with them, all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ckptstore.concurrency import map_concurrently
from ckptstore.errors import Damage, ObjectNotFoundError
from ckptstore.manifest.model import ShardEntry, unpack_crcs
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader
from ckptstore.settings import TransferSettings
from ckptstore.store import SupportsGetInto, SupportsHead


class VerifyStore(SupportsHead, SupportsGetInto, Protocol):
    """All that verifying needs."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found. ``unverifiable`` objects are neither right nor wrong."""

    objects: int
    bytes_verified: int
    damaged: tuple[Damage, ...] = ()
    unverifiable: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.damaged and not self.unverifiable


async def verify_shards(
    store: VerifyStore,
    shards: Sequence[ShardEntry],
    *,
    settings: TransferSettings,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read every byte and compare every block; damage is reported, not raised."""
    progress = progress or Progress()
    progress.objects_total += len(shards)
    progress.bytes_total += sum(shard.size_bytes for shard in shards)
    before = progress.bytes_done
    reader = CheckedReader(store, settings)

    async def verify(shard: ShardEntry) -> tuple[Damage, ...]:
        return await _verify_shard(store, reader, shard, progress)

    found = await map_concurrently(verify, shards, in_flight_max=8)
    return VerifyReport(
        objects=len(shards),
        bytes_verified=progress.bytes_done - before,
        damaged=tuple(damage for one in found for damage in one),
    )


async def verify_sizes(store: SupportsHead, shards: Sequence[ShardEntry]) -> VerifyReport:
    """Compare sizes and the store's own checksums, one request an object and no data.

    An object whose checksum the store does not know is unverifiable, never right.
    """
    damaged: list[Damage] = []
    unverifiable: list[str] = []

    async def verify(shard: ShardEntry) -> None:
        damage = await _wrong_size(store, shard)
        damaged.extend(damage)
        if damage:
            return
        known = (await store.head(shard.key)).crc64nvme
        (expected,) = unpack_crcs(shard.crc64nvme)
        if known is None:
            unverifiable.append(shard.key)
        elif known != expected:
            damaged.append(Damage(shard.key, 0, 0, shard.crc64nvme, f"{known:016x}"))

    await map_concurrently(verify, shards)
    return VerifyReport(len(shards), 0, tuple(damaged), tuple(sorted(unverifiable)))


async def _verify_shard(
    store: VerifyStore,
    reader: CheckedReader,
    shard: ShardEntry,
    progress: Progress,
) -> tuple[Damage, ...]:
    damage = await _wrong_size(store, shard)
    if damage:
        return damage
    found: list[Damage] = []
    for byte_range in reader.whole(shard):
        async with reader.hold(byte_range.size_bytes):
            target = memoryview(bytearray(byte_range.size_bytes))
            found += await reader.check_blocks(shard, byte_range, target)
        progress.bytes_done += byte_range.size_bytes
    progress.objects_done += 1
    return tuple(found)


async def _wrong_size(store: SupportsHead, shard: ShardEntry) -> tuple[Damage, ...]:
    try:
        size_bytes = (await store.head(shard.key)).size_bytes
    except ObjectNotFoundError:
        return (Damage(shard.key, 0, 0, "an object", "missing"),)
    if size_bytes == shard.size_bytes:
        return ()
    offset = min(size_bytes, shard.size_bytes)
    block = offset // shard.block_size_bytes
    return (Damage(shard.key, block, offset, f"{shard.size_bytes} bytes", f"{size_bytes} bytes"),)
