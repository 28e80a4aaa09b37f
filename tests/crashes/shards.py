"""What the ranks of a trial save: bytes that nobody else would write."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ckptstore.location import StoreLocation
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import FileEntry
from ckptstore.save import Contents
from ckptstore.settings import (
    CommitSettings,
    RequestSettings,
    RetrySettings,
    Settings,
    TransferSettings,
)
from ckptstore.types import MIB, Buffer, ByteRange

KIB: Final = 1024
SETTINGS: Final = Settings(
    retry=RetrySettings(backoff_s_max=1.0),
    request=RequestSettings(in_flight_max=8),
    transfer=TransferSettings(
        block_size_bytes=64 * KIB, part_size_bytes=256 * KIB, in_flight_bytes_max=512 * KIB
    ),
    commit=CommitSettings(poll_s_max=0.4, watch_s=0.5),
)


@dataclass(frozen=True)
class SeededShard:
    """Bytes that follow from attempt, rank and index, so that each of them has one owner."""

    uid: str
    rank: int
    index: int
    size_bytes: int
    kind: ShardKind = ShardKind.FILE

    @cached_property
    def content(self) -> bytes:
        seed = f"{self.uid}/{self.rank}/{self.index}".encode()
        return hashlib.shake_128(seed).digest(self.size_bytes)

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return [memoryview(self.content)[byte_range.start : byte_range.stop]]


def shards_of(location: StoreLocation, uid: str, rank: int) -> list[SeededShard]:
    """Return a shard of several parts, mostly, and two of one request."""
    if location.scheme == "s3":  # Its parts are larger, so not every rank has one of several.
        large_bytes = 5 * MIB + 77 * KIB if rank % 2 == 0 else 300 * KIB
    else:
        large_bytes = MIB + 77 * KIB
    sizes = (large_bytes, 10 * KIB + 1, 3)
    return [SeededShard(uid, rank, index, size) for index, size in enumerate(sizes)]


def contents_of(shards: Sequence[SeededShard]) -> Contents:
    return Contents(
        files=tuple(
            FileEntry(
                path=f"{shard.rank}/{shard.index}",
                shard=shard.index,
                start=0,
                stop=shard.size_bytes,
            )
            for shard in shards
        )
    )
