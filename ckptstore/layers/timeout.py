"""An end to every request, whatever the store does or does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ckptstore.errors import StalledError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.settings import RequestSettings
from ckptstore.store import ObjectStore
from ckptstore.types import ObjectInfo, UploadInfo

T = TypeVar("T")

BYTES_PER_S_MIN: Final = 256 * 1024  # A request slower than this is as good as dead.


class TimeoutLayer(AroundLayer):
    """Cancel a request that takes too long, and raise ``StalledError``.

    Belongs inside retry, so that each try has its own time, and inside limit, so that waiting
    for a place costs none of it. Bulk requests get time by their size: a backend that sees
    bytes move notices a stall much earlier by itself.
    """

    def __init__(self, inner: ObjectStore, settings: RequestSettings) -> None:
        super().__init__(inner)
        self._complete_s = settings.complete_s_max
        self._small_s = settings.connect_s_max + settings.stall_s_max + settings.answer_s_max

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        if request.verb == "multipart_complete":
            bound_s = self._complete_s
        else:
            bound_s = self._small_s + request.size_bytes / BYTES_PER_S_MIN
        async with _bounded(request.verb, request.key, bound_s):
            return await send()

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._listed("list_objects", prefix, self._inner.list_objects(prefix))

    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        return self._listed("list_uploads", prefix, self._inner.list_uploads(prefix))

    async def _listed(self, verb: str, prefix: str, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        """Bound the wait for each entry: any of them may be the first of a page."""
        while True:
            async with _bounded(verb, prefix, self._small_s):
                try:
                    entry = await anext(entries)
                except StopAsyncIteration:
                    return
            yield entry


@asynccontextmanager
async def _bounded(verb: str, key: str, bound_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(bound_s) as scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        detail = f"no answer within {bound_s:g} s; the request was cancelled"
        raise StalledError(detail, verb=verb, key=key) from error
