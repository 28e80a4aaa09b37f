"""An event loop whose time jumps: waiting takes no time, so hours of it can be tested.

Only for code that waits on the loop (sleeps, timeouts, queues). Threads and sockets go on in
real time, which such a loop does not wait for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

THREADS_S_MAX: Final = 30.0  # Real seconds: only a thread can wake up a loop without timers.


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, moves the clock there."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is not None:
            self.now_s += max(timeout, 0.0)
        elif not events and not (events := super().select(THREADS_S_MAX)):
            raise RuntimeError("everything waits, and nothing is left that could wake it up")
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class VirtualClock:
    """Wall-clock time that agrees with the virtual loop's."""

    def __init__(self, unix_s_first: float = 1_800_000_000.0) -> None:
        self._unix_s_first = unix_s_first

    def unix_s(self) -> float:
        return self._unix_s_first + asyncio.get_running_loop().time()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a loop with virtual time, and return what it returns.

    Raises ``RuntimeError`` if nothing is left that could ever wake it up.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
