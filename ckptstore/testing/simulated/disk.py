"""What lies in the simulated store, and a memory of what was done to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from ckptstore.backends.memory import MemoryStore
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    Buffer,
    Capabilities,
    Key,
    ObjectInfo,
    PutMode,
    UploadId,
    Version,
)


class Disk(MemoryStore):
    """A memory store that can rot, can ignore create-only, and lists new keys late.

    ``lag_s`` is asked, for every new key, how long listings shall not know it. ``changed``
    are the keys whose object was ever replaced by another one.
    """

    def __init__(
        self,
        *,
        keeps_create_only: bool = True,
        lag_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        super().__init__(Capabilities(create_only=True, fan_out=4))
        self._keeps_create_only = keeps_create_only
        self._lag_s = lag_s
        self._listed_from_s: dict[Key, float] = {}
        self._upload_keys: dict[UploadId, Key] = {}
        self.changed: set[Key] = set()
        self.rotten: set[Key] = set()

    @property
    def uploads(self) -> dict[UploadId, Key]:
        """The uploads that are open, and where they would lead."""
        return {upload_id: self._upload_keys[upload_id] for upload_id in self._uploads}

    def rot(self, key: Key, at: int) -> None:
        """Flip a bit of the byte ``at`` (counted around the end); the store does not notice."""
        data, info = self._objects[key]
        if data:
            rotten = bytearray(data)
            rotten[at % len(data)] ^= 1
            self._objects[key] = bytes(rotten), info
            self.rotten.add(key)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        return await super().put(key, data, mode=mode if self._keeps_create_only else OVERWRITE)

    async def multipart_create(self, key: Key) -> UploadId:
        upload_id = await super().multipart_create(key)
        self._upload_keys[upload_id] = key
        return upload_id

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        now_s = asyncio.get_running_loop().time()
        async for info in super().list_objects(prefix):
            if self._listed_from_s.get(info.key, 0.0) <= now_s:
                yield info

    def _keep(self, key: Key, data: bytes) -> Version:
        if key not in self._objects:
            self._listed_from_s[key] = asyncio.get_running_loop().time() + self._lag_s()
        elif self._objects[key][0] != data:
            self.changed.add(key)
        self.rotten.discard(key)
        return super()._keep(key, data)
