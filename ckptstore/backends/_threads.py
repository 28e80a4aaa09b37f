"""Blocking work for a store: threads of its own, bounded in number and in how long they linger."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from ckptstore.backends._checks import check_process
from ckptstore.backends._files import Stop

T = TypeVar("T")

LINGER_S_MAX: Final = 1.0


class Threads:
    """A pool whose callers may be cancelled although threads cannot be."""

    def __init__(self, threads_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="ckptstore-store")
        self._pid = os.getpid()
        self._running: set[Future[Any]] = set()  # Of threads, whoever may still wait for them.

    async def run(
        self, work: Callable[[Stop], T], *, abandoned: Callable[[], None] = lambda: None
    ) -> T:
        """Run ``work`` in a thread and return what it returns.

        A cancelled call tells the thread to stop and waits for it, at most ``LINGER_S_MAX``,
        because until then the thread uses the caller's memory. If it does not stop in time,
        ``abandoned`` is called.
        """
        check_process(self._pid, "this store")
        stop = Stop()
        running = self._pool.submit(work, stop)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        future = _watched(running)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await self._linger(future, abandoned)
            raise

    async def _linger(self, future: asyncio.Future[T], abandoned: Callable[[], None]) -> None:
        try:
            await asyncio.wait({future}, timeout=LINGER_S_MAX)
        finally:  # Cancelled once more, perhaps.
            if not future.done():
                future.cancel()  # It may not even have begun.
                abandoned()

    async def aclose(self) -> None:
        """End the threads; one that a hung disk holds is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        left = {_watched(running) for running in tuple(self._running)}
        if left:
            await asyncio.wait(left, timeout=LINGER_S_MAX)
        self._pool.shutdown(wait=not self._running)


def _watched(running: Future[T]) -> asyncio.Future[T]:
    """Return what to await; an error is looked at, even if its caller is gone by then."""
    future = asyncio.wrap_future(running)
    future.add_done_callback(lambda future: future.cancelled() or future.exception())
    return future
