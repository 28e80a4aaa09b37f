"""One process's way to a store, which ends when the process does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ckptstore.errors import StoreError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore
from ckptstore.types import ObjectInfo, UploadInfo

T = TypeVar("T")


class KilledError(StoreError):
    """What the code of a dead process gets from every request, so that it ends without effect."""


class Process(AroundLayer):
    """A process that can be killed, and stopped and resumed, at any request.

    A killed one reaches the store no more, whatever its clean-up tries, as if that had not run.
    A stopped one neither sends nor hears anything until it is resumed, and then goes on as if
    nothing had happened. It dies at its request number ``dies_at``, from 0, before the store
    does it or, ``dies_after_it``, after.

    Belongs outermost: a process that stands still does not look at its watch either.
    """

    def __init__(
        self, inner: ObjectStore, *, dies_at: int | None = None, dies_after_it: bool = False
    ) -> None:
        super().__init__(inner)
        self._dies_at = dies_at
        self._dies_after_it = dies_after_it
        self._requests = 0
        self._died = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self.unheard: set[str] = set()  # Uploads that were begun while it could not hear of them.

    @property
    def dead(self) -> bool:
        return self._died.is_set()

    def kill(self) -> None:
        self._died.set()
        self._running.set()

    def stop(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` as this process; it ends when the process dies, with ``KilledError``."""
        running = asyncio.ensure_future(main)
        dying = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            running.cancel()
            dying.cancel()
            await asyncio.wait({running, dying})
        if self.dead:
            if not running.cancelled():
                running.exception()  # Whatever it was, there is nobody left to hear it.
            raise KilledError("this process is dead")
        return running.result()

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        last = self._requests == self._dies_at
        self._requests += 1
        if last and not self._dies_after_it:
            self.kill()
        await self._check_alive(request)
        answer = await send()
        if last:
            self.kill()
        try:
            await self._check_alive(request)
        except BaseException:
            if request.verb == "multipart_create":
                self.unheard.add(str(answer))
            raise
        return answer

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._listed("list_objects", prefix, self._inner.list_objects)

    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        return self._listed("list_uploads", prefix, self._inner.list_uploads)

    async def _listed(
        self, verb: str, prefix: str, entries: Callable[[str], AsyncIterator[T]]
    ) -> AsyncIterator[T]:
        async def listing() -> list[T]:
            return [entry async for entry in entries(prefix)]

        for entry in await self._around(Request(verb, prefix), listing):
            yield entry

    async def _check_alive(self, request: Request) -> None:
        await self._running.wait()
        if self.dead:
            raise KilledError("this process is dead", verb=request.verb, key=request.key)
