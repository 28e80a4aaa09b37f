"""For layers that do the same thing to every request, whichever verb it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ckptstore.layers._base import StoreLayer
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    Buffer,
    ByteRange,
    Key,
    ObjectInfo,
    Overwrite,
    Part,
    PutMode,
    UploadId,
    Version,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """What a layer may want to know of a request.

    ``repeatable`` is false for a write that, sent again after it landed, would look like
    somebody else's. ``size_bytes`` counts the bulk bytes, either way.
    """

    verb: str
    key: str
    size_bytes: int = 0
    repeatable: bool = True


class AroundLayer(StoreLayer, ABC):
    """Send every request but the listings, which are many, through ``_around``."""

    @abstractmethod
    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        """Do what the layer is for, and ``send`` the request: once, several times or never."""

    async def head(self, key: Key) -> ObjectInfo:
        return await self._around(Request("head", key), lambda: self._inner.head(key))

    async def get(self, key: Key) -> bytes:
        return await self._around(Request("get", key), lambda: self._inner.get(key))

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        request = Request("get_into", key, byte_range.size_bytes)
        await self._around(request, lambda: self._inner.get_into(key, byte_range, target))

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        request = Request("put", key, memoryview(data).nbytes, isinstance(mode, Overwrite))
        return await self._around(request, lambda: self._inner.put(key, data, mode=mode))

    async def multipart_create(self, key: Key) -> UploadId:
        request = Request("multipart_create", key)
        return await self._around(request, lambda: self._inner.multipart_create(key))

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        return await self._around(
            Request("put_part", key, part.byte_range.size_bytes),
            lambda: self._inner.put_part(key, upload_id, part, pieces, crc64nvme=crc64nvme),
        )

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        return await self._around(
            Request("multipart_complete", key, repeatable=False),
            lambda: self._inner.multipart_complete(
                key, upload_id, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme
            ),
        )

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        request = Request("multipart_abort", key)
        await self._around(request, lambda: self._inner.multipart_abort(key, upload_id))

    async def delete(self, key: Key) -> None:
        await self._around(Request("delete", key), lambda: self._inner.delete(key))
