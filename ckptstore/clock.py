"""Wall-clock time as a component, and the one deadline that every wait draws on.

Monotonic time is the running event loop's: ``asyncio.timeout``, ``asyncio.sleep`` and the
functions here then agree, and a test that brings a loop with virtual time waits for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from ckptstore.errors import DeadlineExceededError


class Clock(Protocol):
    def unix_s(self) -> float:
        """Seconds since 1970. For records and people; never to measure how long."""


class SystemClock:
    def unix_s(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the running loop's clock. Make one a save or a command, and pass it down."""

    at_s: float
    budget_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(asyncio.get_running_loop().time() + seconds, seconds)

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative once it has passed."""
        return self.at_s - asyncio.get_running_loop().time()

    @property
    def passed(self) -> bool:
        return self.left_s <= 0

    @asynccontextmanager
    async def enforce(self, doing: str) -> AsyncIterator[None]:
        """Cancel the block when time is up, and say what it was ``doing``."""
        try:
            async with asyncio.timeout_at(self.at_s) as scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise DeadlineExceededError(f"{doing}: not done within {self.budget_s:g} s") from error
