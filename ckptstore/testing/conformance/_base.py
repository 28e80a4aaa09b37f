"""What all parts of the contract are written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from ckptstore.errors import (
    ObjectNotFoundError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.store import ObjectStore
from ckptstore.types import (
    Buffer,
    ByteRange,
    Key,
    Part,
    UploadId,
    Version,
    parse_key,
)

KEY = parse_key("a/b/shard-0")


class ContractBase:
    """Where the store comes from, what it can do, and how to reach it."""

    part_size_bytes: ClassVar[int] = 1024
    list_count: ClassVar[int] = 30
    lists_in_key_order: bool = True
    lists_uploads: bool = True

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError("provide a store that is empty")

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        """Return what lies under ``key``, past the store under test if that is possible."""
        return await store.get(key)

    def part(self, index: int, size_bytes: int) -> Part:
        start = index * self.part_size_bytes
        return Part(index, ByteRange(start, start + size_bytes))

    def content(self, size_bytes: int) -> bytes:
        return bytes(range(251)) * (size_bytes // 251) + bytes(range(size_bytes % 251))

    async def send(
        self, store: ObjectStore, upload_id: UploadId, index: int, *pieces: Buffer
    ) -> str:
        data = b"".join(pieces)
        part = self.part(index, len(data))
        return await store.put_part(KEY, upload_id, part, pieces, crc64nvme=crc64nvme(data))

    async def complete(
        self, store: ObjectStore, upload_id: UploadId, etags: Sequence[str], whole: bytes
    ) -> Version:
        crc = crc64nvme(whole)
        return await store.multipart_complete(
            KEY, upload_id, etags, size_bytes=len(whole), crc64nvme=crc
        )

    async def assert_nothing_visible(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectNotFoundError):
            await store.head(KEY)
        assert [info async for info in store.list_objects("")] == []
