"""One process's way to a store, which ends when the process does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ckptstore.errors import StoreError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore
from ckptstore.types import ObjectInfo

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
        await self._check_alive(request)
        return answer

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def listing() -> list[ObjectInfo]:
            return [info async for info in self._inner.list_objects(prefix)]

        for info in await self._around(Request("list_objects", prefix), listing):
            yield info

    async def _check_alive(self, request: Request) -> None:
        await self._running.wait()
        if self.dead:
            raise KilledError("this process is dead", verb=request.verb, key=request.key)
