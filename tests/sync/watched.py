"""Stores that look over a sync's shoulder, break at a given request, or know less."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from ckptstore.commit.catalog import latest_commit, list_checkpoints
from ckptstore.errors import StoreError, TransientStoreError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore
from ckptstore.types import Key, ObjectInfo
from tests.sync.world import assert_whole
from tests.world import RUN

T = TypeVar("T")
WRITES = ("put", "multipart_complete", "delete")


class BrokenError(StoreError):
    """What no retry cures."""


class ReadAlongStore(AroundLayer):
    """After every write, reads all that a reader could see: each checkpoint whole, a latest one."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.written: list[str] = []
        self.seen: list[str | None] = []  # What was the latest after each write.

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        answer = await send()
        if request.verb in WRITES:
            self.written.append(request.key)
            for info in await list_checkpoints(self._inner, RUN):
                if info.state == "committed":
                    await assert_whole(self._inner, info.uid)
            latest = await latest_commit(self._inner, RUN)
            self.seen.append(latest.attempt.uid if latest else None)
        return answer


class FlakyStore(AroundLayer):
    """Every ``nth`` request fails once, and goes through when it is tried again."""

    def __init__(self, inner: ObjectStore, nth: int) -> None:
        super().__init__(inner)
        self._nth = nth
        self._requests = 0
        self.failures = 0

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        self._requests += 1
        if self._requests % self._nth:
            return await send()
        self.failures += 1
        raise TransientStoreError("reset", verb=request.verb, key=request.key)


class BeforePutStore(AroundLayer):
    """Does something, once, right before this object is put."""

    def __init__(self, inner: ObjectStore, key: str, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self._key = key
        self._act = act
        self.acted = False

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        if (request.verb, request.key) == ("put", self._key) and not self.acted:
            self.acted = True
            await self._act()
        return await send()


class SilentStore(AroundLayer):
    """From the request number ``at`` on, counted from 0, answers nothing any more."""

    def __init__(self, inner: ObjectStore, at: int) -> None:
        super().__init__(inner)
        self._left = at

    @property
    def silent(self) -> bool:
        return self._left < 0

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self.silent:
            await asyncio.Event().wait()
        return await send()


class CountingStore(AroundLayer):
    """Counts the bulk bytes that go in, by key."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.sent: dict[str, int] = {}

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        if request.verb in ("put", "put_part") and request.key.startswith("data/"):
            self.sent[request.key] = self.sent.get(request.key, 0) + request.size_bytes
        return await send()


class ForgetfulStore(AroundLayer):
    """Keeps no checksums of what it holds."""

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        return await send()

    async def head(self, key: Key) -> ObjectInfo:
        return replace(await super().head(key), crc64nvme=None)
