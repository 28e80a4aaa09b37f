"""Read shards back and say what is wrong with them, all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ckptstore.concurrency import map_concurrently
from ckptstore.errors import Damage, IntegrityError, ObjectNotFoundError
from ckptstore.integrity import pack_crcs
from ckptstore.manifest.model import ShardEntry
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader
from ckptstore.settings import TransferSettings
from ckptstore.store import SupportsGetInto, SupportsHead
from ckptstore.types import ObjectInfo


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
    """Read every byte and compare every block; damage is reported, not raised.

    ``progress`` and the report count the bytes that were found right.
    """
    progress = progress or Progress()
    progress.objects_total += len(shards)
    progress.bytes_total += sum(shard.content_bytes for shard in shards)
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


async def check_arrived(
    store: VerifyStore, shards: Sequence[ShardEntry], *, settings: TransferSettings
) -> None:
    """Read back all of what was just written, or raise ``IntegrityError`` saying what is wrong.

    For stores that take anything as it comes, whatever checksum it was sent with.
    """
    report = await verify_shards(store, shards, settings=settings)
    if report.damaged:
        raise IntegrityError(
            f"what was sent is not what the store holds: {report.damaged[0]}"
            + (f", and {len(report.damaged) - 1} more" if report.damaged[1:] else ""),
            damage=report.damaged,
        )


async def verify_sizes(store: SupportsHead, shards: Sequence[ShardEntry]) -> VerifyReport:
    """Compare sizes and the store's own checksums, one request an object and no data.

    An object whose checksum the store does not know is unverifiable, never right.
    """
    damaged: list[Damage] = []
    unverifiable: list[str] = []

    async def verify(shard: ShardEntry) -> None:
        found = await _of_right_size(store, shard)
        if isinstance(found, Damage):
            damaged.append(found)
        elif found.crc64nvme is None:
            unverifiable.append(shard.key)
        elif (crc := pack_crcs([found.crc64nvme])) != shard.crc64nvme:
            damaged.append(Damage(shard.key, 0, 0, shard.crc64nvme, crc))

    await map_concurrently(verify, shards)
    return VerifyReport(len(shards), 0, tuple(damaged), tuple(sorted(unverifiable)))


async def _verify_shard(
    store: VerifyStore, reader: CheckedReader, shard: ShardEntry, progress: Progress
) -> tuple[Damage, ...]:
    found = await _of_right_size(store, shard)
    if isinstance(found, Damage):
        return (found,)
    damaged: list[Damage] = []
    for byte_range in reader.whole(shard):
        async with reader.hold(shard, byte_range):
            target = memoryview(bytearray(byte_range.size_bytes))
            bad = await reader.check_blocks(shard, byte_range, target)
        damaged += bad
        progress.bytes_done += byte_range.size_bytes - sum(
            min(shard.block_size_bytes, byte_range.stop - damage.offset) for damage in bad
        )
    progress.objects_done += 1
    return tuple(damaged)


async def _of_right_size(store: SupportsHead, shard: ShardEntry) -> ObjectInfo | Damage:
    try:
        info = await store.head(shard.key)
    except ObjectNotFoundError:
        return Damage(shard.key, 0, 0, "an object", "missing")
    if info.size_bytes == shard.size_bytes:
        return info
    offset = min(info.size_bytes, shard.size_bytes)
    block = offset // shard.block_size_bytes
    expected, found = f"{shard.size_bytes} bytes", f"{info.size_bytes} bytes"
    return Damage(shard.key, block, offset, expected, found)
