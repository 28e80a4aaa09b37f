"""Where a probe writes, and how all of it is taken away again."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ckptstore.concurrency import map_concurrently
from ckptstore.errors import CkptStoreError, ObjectNotFoundError
from ckptstore.integrity import crc64nvme
from ckptstore.store import ObjectStore, SupportsUnchecked
from ckptstore.types import KIB, ByteRange, Key, Part, UploadId, parse_key

logger = logging.getLogger(__name__)

CLEAN_S_MAX: Final = 5.0
PART_BYTES_MIN: Final = 64 * KIB


class Scratch:
    """A prefix of its own for one probe, which remembers all that is written under it.

    ``unchecked`` is the backend, if it can send what it knows to be wrong; it takes keys as the
    bucket has them, which ``bucket_key`` gives.
    """

    def __init__(self, store: ObjectStore, backend: ObjectStore, bucket_prefix: str = "") -> None:
        self.store = store
        self.unchecked = backend if isinstance(backend, SupportsUnchecked) else None
        self.prefix = f"probe/{secrets.token_hex(8)}/"
        self.part_bytes = max(store.capabilities.part_size_bytes_min, PART_BYTES_MIN)
        self._bucket_prefix = f"{bucket_prefix}/" if bucket_prefix else ""
        self._keys: set[Key] = set()
        self._uploads: dict[UploadId, Key] = {}

    def key(self, name: str) -> Key:
        """Return a key to write to; what is written there will be deleted."""
        key = parse_key(self.prefix + name)
        self._keys.add(key)
        return key

    def bucket_key(self, key: Key) -> Key:
        return Key(self._bucket_prefix + key)

    async def begin(self, key: Key) -> UploadId:
        """Begin an upload, which will be aborted."""
        upload_id = await self.store.multipart_create(key)
        self._uploads[upload_id] = key
        return upload_id

    async def send(self, key: Key, upload_id: UploadId, index: int, data: bytes) -> str:
        """Send one part as it should be; all but the last are ``part_bytes`` long."""
        start = index * self.part_bytes
        part = Part(index, ByteRange(start, start + len(data)))
        crc = crc64nvme(data)
        return await self.store.put_part(key, upload_id, part, [data], crc64nvme=crc)

    async def complete(self, key: Key, upload_id: UploadId, etags: list[str], whole: bytes) -> None:
        await self.store.multipart_complete(
            key, upload_id, etags, size_bytes=len(whole), crc64nvme=crc64nvme(whole)
        )

    async def is_there(self, key: Key) -> bool:
        try:
            await self.store.head(key)
        except ObjectNotFoundError:
            return False
        return True

    async def clean(self) -> list[str]:
        """Take everything away and return the names of what could not be."""
        left: list[str] = []

        async def delete(key: Key) -> None:
            try:
                await self.store.delete(key)
            except CkptStoreError as error:
                left.append(f"{self.bucket_key(key)} ({error})")

        async def abort(upload: tuple[UploadId, Key]) -> None:
            try:
                await self.store.multipart_abort(upload[1], upload[0])
            except CkptStoreError as error:
                left.append(f"upload {upload[0]} to {self.bucket_key(upload[1])} ({error})")

        await map_concurrently(abort, self._uploads.items())
        await map_concurrently(delete, sorted(self._keys))
        return left


@asynccontextmanager
async def scratch(
    store: ObjectStore, backend: ObjectStore, bucket_prefix: str, left: list[str]
) -> AsyncIterator[Scratch]:
    """Yield a place to write to; it is gone when the block ends, also by an interrupt.

    What could not be removed is added to ``left``, and said.
    """
    area = Scratch(store, backend, bucket_prefix)

    async def clean() -> None:
        try:
            async with asyncio.timeout(CLEAN_S_MAX):
                left.extend(await area.clean())
        except TimeoutError:
            left.append(f"perhaps something under {area.bucket_key(Key(area.prefix))}")
        for name in left:
            logger.error("the probe could not remove %s", name)

    try:
        yield area
    finally:
        await asyncio.shield(asyncio.ensure_future(clean()))
