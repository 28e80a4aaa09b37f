"""Make of a shard's blocks what is stored of them, in order and within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from ckptstore.concurrency import in_thread
from ckptstore.integrity import block_crcs, pack_crcs
from ckptstore.manifest.model import Packed
from ckptstore.packing import INLINE_BYTES_MAX, Numbers, block_widths, pack_block
from ckptstore.settings import Compression
from ckptstore.types import Buffer, ByteRange, views
from ckptstore.upload.source import ShardSource, staged

BLOCKS_AT_ONCE: Final = 4


class Packer:
    """The stored form of one shard, taken piece by piece from its start to its end.

    Checksums of the blocks are taken from the very memory that the source hands over, before
    anything is done to it.
    """

    def __init__(
        self,
        source: ShardSource,
        numbers: Sequence[Numbers],
        *,
        block_size_bytes: int,
        settings: Compression,
    ) -> None:
        self._source = source
        self._block_size_bytes = block_size_bytes
        self._level = settings.level
        self._widths = block_widths(numbers, source.size_bytes, block_size_bytes)
        self._crcs: list[int] = []
        self._stored_sizes: list[int] = []
        self._ready: deque[memoryview] = deque()  # Packed, and not yet taken.
        self._ready_bytes = 0
        self.taken_bytes = 0

    @property
    def content_bytes(self) -> int:
        return self._source.size_bytes

    @property
    def packed(self) -> Packed:
        """What to record once all was taken."""
        return Packed(
            kind=self._source.kind,
            size_bytes=self._source.size_bytes,
            block_crcs=pack_crcs(self._crcs),
            stored_sizes=tuple(self._stored_sizes),
            widths="".join(map(str, self._widths)),
        )

    async def take(self, size_bytes: int) -> tuple[memoryview, ...]:
        """Return the next ``size_bytes`` of the stored form, or all that is left, as pieces."""
        while self._ready_bytes < size_bytes and len(self._crcs) < len(self._widths):
            await self._pack_some()
        return tuple(self._cut(size_bytes))

    async def _pack_some(self) -> None:
        first = len(self._crcs)
        last = min(first + BLOCKS_AT_ONCE, len(self._widths))
        start = first * self._block_size_bytes
        stop = min(last * self._block_size_bytes, self._source.size_bytes)
        pieces = await staged(self._source, ByteRange(start, stop))
        self._crcs += block_crcs(pieces, self._block_size_bytes)
        blocks = _blocks(pieces, self._block_size_bytes)
        widths = self._widths[first:last]
        for stored in await asyncio.gather(*map(self._packed_block, blocks, widths)):
            self._stored_sizes.append(len(stored))
            self._ready += views([stored])
            self._ready_bytes += len(stored)

    async def _packed_block(self, pieces: Sequence[memoryview], width: int) -> Buffer:
        if sum(map(len, pieces)) <= INLINE_BYTES_MAX:
            return pack_block(pieces, width, self._level)
        return await in_thread(pack_block, pieces, width, self._level)

    def _cut(self, size_bytes: int) -> Iterator[memoryview]:
        while size_bytes and self._ready:
            piece = self._ready.popleft()
            if len(piece) > size_bytes:
                self._ready.appendleft(piece[size_bytes:])
                piece = piece[:size_bytes]
            size_bytes -= len(piece)
            self._ready_bytes -= len(piece)
            self.taken_bytes += len(piece)
            yield piece


def _blocks(pieces: Sequence[memoryview], block_size_bytes: int) -> list[list[memoryview]]:
    """Cut pieces that lie end to end into blocks, each of one piece or several."""
    blocks: list[list[memoryview]] = []
    room = 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            if not room:
                blocks.append([])
                room = block_size_bytes
            taken = piece[at : at + room]
            blocks[-1].append(taken)
            at, room = at + len(taken), room - len(taken)
    return blocks
