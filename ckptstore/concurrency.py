"""Many small waits at once, and one error out of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ckptstore.errors import CkptStoreError

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_IN_FLIGHT_MAX: Final = 64
THREAD_S_MAX: Final = 60.0  # What a disk may take for one batch before we give up on a thread.


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Like ``asyncio.TaskGroup``, but raise one error, not a group: an error of ours if any."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise _first(failures) from None


async def map_concurrently(
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T],
    *,
    in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
) -> list[R]:
    """Return ``function`` of every item, in order; the first failure cancels the others."""
    places = asyncio.Semaphore(in_flight_max)

    async def placed(item: T) -> R:
        async with places:
            return await function(item)

    async with task_group() as group:
        tasks = [group.create_task(placed(item)) for item in items]
    return [task.result() for task in tasks]


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run ``work`` in a thread; when cancelled, wait for it, for it still uses what is ours."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running}, timeout=THREAD_S_MAX)
        raise


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure to report: an error of ours before anything that followed from it."""
    ours, _ = failures.split(CkptStoreError)
    head = (ours or failures).exceptions[0]
    return _first(head) if isinstance(head, BaseExceptionGroup) else head
