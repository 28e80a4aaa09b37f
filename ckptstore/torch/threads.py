"""Blocking work off the loop, in threads that never keep the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what ``work`` returns in a thread of its own, or raise what it raises.

    Work on a device, or a planner's, may hang for ever, and no thread can be cancelled: a
    cancelled call leaves its thread behind. ``asyncio.to_thread`` would then wait for it when
    the process ends; a daemon thread is just dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def succeed(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def fail(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    def run() -> None:
        tell: Callable[[], None]
        try:
            tell = partial(succeed, work())
        except BaseException as error:
            tell = partial(fail, error)
        with suppress(RuntimeError):  # The loop is closed, and nobody waits any more.
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, name="ckptstore-work", daemon=True).start()
    return await future
