"""What is uploaded: bytes that can be had in ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckptstore.errors import CkptStoreError
from ckptstore.manifest.layout import ShardKind
from ckptstore.settings import TransferSettings
from ckptstore.types import Buffer, ByteRange, views


class ShardSource(Protocol):
    """A shard that can stage any of its bytes into host memory."""

    @property
    def kind(self) -> ShardKind: ...
    @property
    def size_bytes(self) -> int: ...
    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        """Return these bytes as pieces, to be laid end to end, without copying if possible.

        The memory must stay as it is until the part was sent. Parts are asked for in order,
        several at a time, and again only if the whole upload is tried again.
        """


async def staged(source: ShardSource, byte_range: ByteRange) -> tuple[memoryview, ...]:
    """Return the pieces, and never believe a source about how many bytes they are."""
    pieces = views(await source.stage(byte_range))
    found = sum(len(piece) for piece in pieces)
    if found != byte_range.size_bytes:
        raise CkptStoreError(f"{source!r} staged {found} of {byte_range.size_bytes} bytes")
    return pieces


def stored_kind(source: ShardSource, settings: TransferSettings) -> ShardKind:
    """Return what the object will be, as its name says it."""
    return source.kind if settings.compression is None else ShardKind.PACKED
