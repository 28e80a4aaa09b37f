"""Fill memory from shards, and return only if every byte of it was checked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from ckptstore.budget import ByteBudget
from ckptstore.concurrency import in_thread, task_group
from ckptstore.errors import (
    Damage,
    IntegrityError,
    ObjectNotFoundError,
    TruncatedObjectError,
)
from ckptstore.integrity import block_crcs, unpack_crcs
from ckptstore.manifest.model import Packed, ShardEntry
from ckptstore.packing import INLINE_BYTES_MAX, UnpackError, unpack_block
from ckptstore.progress import Progress
from ckptstore.restore.plan import DirectRead, Read, plan_reads
from ckptstore.settings import TransferSettings
from ckptstore.store import SupportsGetInto
from ckptstore.types import MIB, ByteRange

READS_IN_FLIGHT_MAX: Final = 64
READS_MIN: Final = 32  # Long reads cost less than short ones, but only many are fast.
READ_BYTES_MAX: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes of a shard, from ``start``, and the writable memory that they are to fill."""

    shard: ShardEntry
    start: int
    target: memoryview


class CheckedReader:
    """Reads whole blocks; a bad one is tried once more, then reported.

    What is read beside, to be copied, stays within a byte budget.
    """

    def __init__(self, store: SupportsGetInto, settings: TransferSettings) -> None:
        self._store = store
        self._settings = settings
        self._budget = ByteBudget(settings.in_flight_bytes_max)
        self._places = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

    async def read_wanted(
        self, wanted: Sequence[Wanted], *, progress: Progress | None = None
    ) -> int:
        """Fill all targets and return how many bytes of shards were read and verified.

        Raises ``IntegrityError``, with the damage, if any block is not what was written; the
        targets then hold anything.
        """
        progress = progress or Progress()
        before = progress.bytes_done
        by_key: dict[str, list[Wanted]] = {}
        for want in wanted:
            if len(want.target):
                by_key.setdefault(want.shard.key, []).append(want)
        wanted_bytes = sum(len(want.target) for want in wanted)
        plans = [(wants, self._plan(wants, wanted_bytes)) for wants in by_key.values()]
        progress.bytes_total += sum(r.byte_range.size_bytes for _, reads in plans for r in reads)
        async with task_group() as group:
            for wants, reads in plans:
                for read in reads:
                    await self._places.acquire()
                    task = group.create_task(self._read(wants, read, progress))
                    task.add_done_callback(lambda _: self._places.release())
        return progress.bytes_done - before

    async def check_blocks(
        self, shard: ShardEntry, byte_range: ByteRange, target: memoryview
    ) -> tuple[Damage, ...]:
        """Read whole blocks into ``target`` and return what is wrong with them, if anything."""
        damage = await self._read_once(shard, byte_range, target)
        return damage and await self._read_once(shard, byte_range, target)

    def hold(self, shard: ShardEntry, byte_range: ByteRange) -> AbstractAsyncContextManager[None]:
        """Wait for room to read these blocks into memory that is made for them."""
        return self._room(shard, byte_range, byte_range.size_bytes)

    def whole(self, shard: ShardEntry) -> list[ByteRange]:
        """Return the ranges to read all of a shard in."""
        ranges = [ByteRange(0, shard.content_bytes)] if shard.content_bytes else []
        reads = self._plan_ranges(shard, ranges, self._settings.part_size_bytes)
        return [read.byte_range for read in reads]

    def _plan(self, wants: Sequence[Wanted], wanted_bytes: int) -> list[Read]:
        ranges = [ByteRange(want.start, want.start + len(want.target)) for want in wants]
        read_size_bytes = min(wanted_bytes // READS_MIN, READ_BYTES_MAX)
        read_size_bytes = max(read_size_bytes, self._settings.part_size_bytes)
        return self._plan_ranges(wants[0].shard, ranges, read_size_bytes)

    @staticmethod
    def _plan_ranges(
        shard: ShardEntry, ranges: Sequence[ByteRange], read_size_bytes: int
    ) -> list[Read]:
        return plan_reads(
            ranges,
            size_bytes=shard.content_bytes,
            block_size_bytes=shard.block_size_bytes,
            read_size_bytes=read_size_bytes,
        )

    async def _read(self, wants: Sequence[Wanted], read: Read, progress: Progress) -> None:
        size_bytes = read.byte_range.size_bytes
        if isinstance(read, DirectRead):  # Into memory that is there already.
            target = wants[read.wanted].target[read.target : read.target + size_bytes]
            async with self._room(wants[0].shard, read.byte_range, 0):
                await self._read_right(wants[0].shard, read.byte_range, target)
        else:
            async with self.hold(wants[0].shard, read.byte_range):
                scratch = memoryview(bytearray(size_bytes))
                await self._read_right(wants[0].shard, read.byte_range, scratch)
                for copy in read.copies:
                    at = copy.source - read.byte_range.start
                    target = wants[copy.wanted].target[copy.target : copy.target + copy.size]
                    target[:] = scratch[at : at + copy.size]
        progress.bytes_done += size_bytes

    async def _read_right(
        self, shard: ShardEntry, byte_range: ByteRange, target: memoryview
    ) -> None:
        damage = await self.check_blocks(shard, byte_range, target)
        if damage:
            raise IntegrityError(
                f"{damage[0]}, twice; restore another checkpoint or repair this one", damage=damage
            )

    async def _read_once(
        self, shard: ShardEntry, byte_range: ByteRange, target: memoryview
    ) -> tuple[Damage, ...]:
        first = byte_range.start // shard.block_size_bytes
        unreadable: dict[int, str] = {}
        try:
            if shard.packed is None:
                await self._store.get_into(shard.key, byte_range, target)
            else:
                unreadable = await self._get_packed(shard, shard.packed, byte_range, target)
        except ObjectNotFoundError:
            return (Damage(shard.key, first, byte_range.start, "an object", "missing"),)
        except TruncatedObjectError as error:
            expected = f"{shard.size_bytes} bytes"
            return (Damage(shard.key, first, byte_range.start, expected, error.detail),)
        return _damage(shard, first, target, unreadable)

    def _room(
        self, shard: ShardEntry, byte_range: ByteRange, size_bytes: int
    ) -> AbstractAsyncContextManager[None]:
        """Wait for room for so many bytes, and for what is read to be unpacked, if it is."""
        if shard.packed is not None:
            size_bytes += _stored_range(shard, shard.packed, byte_range).size_bytes
        return self._budget.hold(size_bytes) if size_bytes else nullcontext()

    async def _get_packed(
        self, shard: ShardEntry, packed: Packed, byte_range: ByteRange, target: memoryview
    ) -> dict[int, str]:
        """Like ``get_into``, and return which blocks could not be unpacked, and why."""
        stored_range = _stored_range(shard, packed, byte_range)
        stored = memoryview(bytearray(stored_range.size_bytes))
        await self._store.get_into(shard.key, stored_range, stored)
        first = byte_range.start // shard.block_size_bytes
        work = (packed, first, shard.block_size_bytes, stored, target)
        if len(target) <= INLINE_BYTES_MAX:
            return _unpack(*work)
        return await in_thread(_unpack, *work)


def _unpack(
    packed: Packed, first: int, block_size_bytes: int, stored: memoryview, target: memoryview
) -> dict[int, str]:
    unreadable: dict[int, str] = {}
    at = 0
    for index, start in enumerate(range(0, len(target), block_size_bytes), first):
        end = at + packed.stored_sizes[index]
        block = target[start : start + block_size_bytes]
        try:
            unpack_block(stored[at:end], int(packed.widths[index]), block)
        except UnpackError as error:
            unreadable[index] = str(error)
        at = end
    return unreadable


def _stored_range(shard: ShardEntry, packed: Packed, byte_range: ByteRange) -> ByteRange:
    """Return where whole blocks of the content lie in the object."""
    first = byte_range.start // shard.block_size_bytes
    last = -(-byte_range.stop // shard.block_size_bytes)
    start = sum(packed.stored_sizes[:first])
    return ByteRange(start, start + sum(packed.stored_sizes[first:last]))


def _damage(
    shard: ShardEntry, first: int, target: memoryview, unreadable: Mapping[int, str]
) -> tuple[Damage, ...]:
    found = block_crcs([target], shard.block_size_bytes)
    digits = shard.content_crcs[16 * first : 16 * (first + len(found))]
    return tuple(
        Damage(
            shard.key,
            index,
            index * shard.block_size_bytes,
            f"{expected:016x}",
            unreadable.get(index, f"{crc:016x}"),
        )
        for index, (expected, crc) in enumerate(zip(unpack_crcs(digits), found, strict=True), first)
        if expected != crc or index in unreadable
    )
