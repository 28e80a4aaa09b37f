"""A bounded number of requests at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore

T = TypeVar("T")


class LimitLayer(AroundLayer):
    """Keep at most ``in_flight_max`` requests going.

    Belongs inside retry, so that a request waiting for its next try does not hold a place.
    """

    # A listing is many requests with the caller's own work in between: it must not hold a place.
    passes_through = frozenset({"list_objects", "list_uploads"})

    def __init__(self, inner: ObjectStore, in_flight_max: int) -> None:
        super().__init__(inner)
        self._places = asyncio.Semaphore(in_flight_max)

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        async with self._places:
            return await send()
