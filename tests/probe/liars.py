"""Stores that keep all of the contract but one thing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import DamagedError, PermissionDeniedError, StoreError, TransientStoreError
from ckptstore.integrity import crc64nvme as crc64nvme_of
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    Buffer,
    ByteRange,
    Key,
    ObjectInfo,
    Part,
    PutMode,
    UploadId,
    UploadInfo,
    Version,
)


class Honest(MemoryStore):
    """A memory that can be sent what is wrong, and sees through it."""

    async def put_unchecked(self, key: Key, data: Buffer, *, crc64nvme: int) -> Version:
        if crc64nvme_of(data) != crc64nvme:
            raise DamagedError("another checksum")
        return await self.put(key, data)

    async def multipart_complete_unchecked(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        return await self.multipart_complete(
            key, upload_id, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme
        )


class IgnoresConditions(Honest):
    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        return await super().put(key, data)


class IgnoresChecksums(Honest):
    async def put_unchecked(self, key: Key, data: Buffer, *, crc64nvme: int) -> Version:
        return await self.put(key, data)

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        crc = crc64nvme_of(b"".join(pieces))
        return await super().put_part(key, upload_id, part, pieces, crc64nvme=crc)


class Forgets(Honest):
    """What is read lacks its last byte."""

    async def get(self, key: Key) -> bytes:
        return (await super().get(key))[:-1]


class SendsOtherRanges(Honest):
    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        shift = 1 if byte_range.start else 0
        other = ByteRange(byte_range.start - shift, byte_range.stop - shift)
        await super().get_into(key, other, target)


class ListsBackwards(Honest):
    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in reversed([info async for info in super().list_objects(prefix)]):
            yield info


class ListsLate(Honest):
    """The newest object of a listing is not there yet."""

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in [info async for info in super().list_objects(prefix)][:-1]:
            yield info


class HidesUploads(Honest):
    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        async for upload in super().list_uploads(f"{prefix} is hidden"):
            yield upload


class ForbidsListing(Honest):
    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        raise PermissionDeniedError("not allowed")


class IsIll(Honest):
    """Says that it is ill when it is sent something wrong."""

    async def put_unchecked(self, key: Key, data: Buffer, *, crc64nvme: int) -> Version:
        if crc64nvme_of(data) != crc64nvme:
            raise TransientStoreError("come back later")
        return await self.put(key, data)


class KeepsAll(Honest):
    """Nothing can be deleted."""

    async def delete(self, key: Key) -> None:
        raise PermissionDeniedError("kept for ever")


class RefusesAll(Honest):
    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        raise StoreError("no")


class IsAhead(Honest):
    """Its clock is ten minutes ahead."""

    async def head(self, key: Key) -> ObjectInfo:
        info = await super().head(key)
        assert info.modified_unix_s is not None
        return ObjectInfo(
            info.key, info.size_bytes, info.version, info.crc64nvme, info.modified_unix_s + 600
        )
