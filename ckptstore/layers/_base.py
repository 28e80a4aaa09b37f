"""What every layer is built on: forward all verbs, and say which ones you left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from ckptstore.store import OVERWRITE, ObjectStore
from ckptstore.types import (
    Buffer,
    ByteRange,
    Capabilities,
    Key,
    ObjectInfo,
    Part,
    PutMode,
    UploadId,
    UploadInfo,
    Version,
)


class StoreLayer:
    """A store that hands every verb to the store inside it.

    A subclass overrides the verbs it changes and lists the others in ``passes_through``.
    ``tests/unit/test_layers.py`` checks that the two together cover the contract, so a new
    verb cannot slip past a layer unnoticed.
    """

    passes_through: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def head(self, key: Key) -> ObjectInfo:
        return await self._inner.head(key)

    async def get(self, key: Key) -> bytes:
        return await self._inner.get(key)

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        await self._inner.get_into(key, byte_range, target)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        return await self._inner.put(key, data, mode=mode)

    async def multipart_create(self, key: Key) -> UploadId:
        return await self._inner.multipart_create(key)

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        return await self._inner.put_part(key, upload_id, part, pieces, crc64nvme=crc64nvme)

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
            key, upload_id, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme
        )

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        await self._inner.multipart_abort(key, upload_id)

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._inner.list_objects(prefix)

    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        return self._inner.list_uploads(prefix)

    async def delete(self, key: Key) -> None:
        await self._inner.delete(key)

    async def aclose(self) -> None:
        await self._inner.aclose()
