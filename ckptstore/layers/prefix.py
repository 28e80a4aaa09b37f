"""A store inside a store: all keys under one prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from ckptstore.layers._base import StoreLayer
from ckptstore.store import OVERWRITE, ObjectStore
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
    parse_key,
)


class PrefixLayer(StoreLayer):
    """Put ``prefix/`` before every key on the way in and take it off on the way out.

    Belongs right over the backend, so that the layers outside speak of the keys callers know.
    """

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = f"{parse_key(prefix)}/"

    def _full(self, key: Key) -> Key:
        return Key(self._prefix + key)

    def _stripped(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, key=Key(info.key.removeprefix(self._prefix)))

    async def head(self, key: Key) -> ObjectInfo:
        return self._stripped(await self._inner.head(self._full(key)))

    async def get(self, key: Key) -> bytes:
        return await self._inner.get(self._full(key))

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        await self._inner.get_into(self._full(key), byte_range, target)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        return await self._inner.put(self._full(key), data, mode=mode)

    async def multipart_create(self, key: Key) -> UploadId:
        return await self._inner.multipart_create(self._full(key))

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        full = self._full(key)
        return await self._inner.put_part(full, upload_id, part, pieces, crc64nvme=crc64nvme)

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        return await self._inner.multipart_complete(
            self._full(key), upload_id, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme
        )

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        await self._inner.multipart_abort(self._full(key), upload_id)

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._inner.list_objects(self._prefix + prefix):
            yield self._stripped(info)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        async for upload in self._inner.list_uploads(self._prefix + prefix):
            yield replace(upload, key=Key(upload.key.removeprefix(self._prefix)))

    async def delete(self, key: Key) -> None:
        await self._inner.delete(self._full(key))
