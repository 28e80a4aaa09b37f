"""A bounded number of requests at a time, and fewer while the store asks for less."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ckptstore.errors import ThrottledError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore

T = TypeVar("T")


class LimitLayer(AroundLayer):
    """Keep at most ``in_flight_max`` requests going.

    A throttled request halves the limit, down to one; as many successes as the limit allows at
    once raise it by one again. Requests that were under way together halve it only once.

    Belongs inside retry, so that a request waiting for its next try does not hold a place.
    """

    # A listing is many requests with the caller's own work in between: it must not hold a place.
    passes_through = frozenset({"list_objects", "list_uploads"})

    def __init__(self, inner: ObjectStore, in_flight_max: int) -> None:
        super().__init__(inner)
        self._places = asyncio.Semaphore(in_flight_max)
        self._limit_max = self._limit = in_flight_max
        self._surplus = 0  # Places in use that will not be given back, since the limit fell.
        self._successes = 0
        self._narrowings = 0

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        await self._places.acquire()
        began_after = self._narrowings
        try:
            answer = await send()
            self._widen()
            return answer
        except ThrottledError:
            if began_after == self._narrowings:
                await self._narrow()
            raise
        finally:
            self._give_back()

    async def _narrow(self) -> None:
        lower = max(1, self._limit // 2)
        self._surplus += self._limit - lower
        self._limit = lower
        self._successes = 0
        self._narrowings += 1
        while self._surplus and not self._places.locked():  # Nobody is in these.
            await self._places.acquire()
            self._surplus -= 1

    def _widen(self) -> None:
        self._successes += 1
        if self._limit < self._limit_max and self._successes >= self._limit:
            self._limit += 1
            self._successes = 0
            self._give_back()

    def _give_back(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._places.release()
