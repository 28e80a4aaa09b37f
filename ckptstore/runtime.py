"""Asynchronous work for synchronous callers: one private event loop a process.

Training code is synchronous and may itself run inside an event loop, so what it asks for runs
on a loop and thread of our own. A forked child gets a new one; the parent's is never touched.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ckptstore.errors import DeadlineExceededError

T = TypeVar("T")

STOP_S_MAX: Final = 5.0
CANCEL_S_MAX: Final = 5.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's, if that is installed: it sends long bodies with less CPU.

    For loops on a thread of their own: an interrupt meant for the main thread, while a disk
    hangs, does not reach a loop of uvloop in time.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _LoopThread:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ckptstore-loop", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _serve(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def _stop(self) -> None:
        if os.getpid() == self.pid and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(STOP_S_MAX)


_lock = threading.Lock()
_current: _LoopThread | None = None


def start(make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Start the coroutine that ``make`` returns on the private loop, and return at once.

    Whoever starts it waits for it, with a time limit, or cancels it.
    """
    return asyncio.run_coroutine_threadsafe(make(), _loop())


def run_sync(make: Callable[[], Coroutine[Any, Any, T]], *, timeout_s: float) -> T:
    """Run the coroutine that ``make`` returns on the private loop, and return what it returns.

    Raises what it raises. The coroutine is expected to keep its own, shorter deadline; if it
    has not ended after ``timeout_s`` it is cancelled and ``DeadlineExceededError`` raised.
    An interrupt here cancels it as well, and waits a little for it to clean up. Must not be
    called from the private loop itself.
    """
    future = start(make)
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        if future.done():
            raise
        future.cancel()
        raise DeadlineExceededError(f"no answer within {timeout_s:g} s; gave up") from error
    except (KeyboardInterrupt, SystemExit):
        cancel_and_wait(future)
        raise


def cancel_and_wait(future: Future[Any]) -> None:
    """Let an interrupted coroutine end; what it raises while doing so has no taker."""
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    future.cancel()
    ended.wait(CANCEL_S_MAX)


def _loop() -> asyncio.AbstractEventLoop:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _LoopThread()
        return _current.loop


def _forget_lock_after_fork() -> None:
    global _lock, _current
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_lock_after_fork)
