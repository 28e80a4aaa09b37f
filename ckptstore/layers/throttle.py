"""Ask less often while the store says that it is too much."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ckptstore.errors import ThrottledError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore

T = TypeVar("T")

WINDOW_S: Final = 1.0
WINDOW_S_MIN: Final = 0.25  # What was served in less time tells of no rate.
ADJUST_S: Final = 0.15  # How long a new pace has to show its effect.
LOWER: Final = 0.8
RAISE: Final = 1.1
RAISE_CALM: Final = 1.5  # When nothing was refused for a whole window, or the pace is a guess.
RATE_PER_S_MIN: Final = 0.1
RATE_PER_S_FIRST: Final = 4.0  # At least; after a lull, what the store can bear is not known.
RATE_PER_S_FREE: Final = 5_000.0  # More than any store serves one client: no pace any more.


class ThrottleLayer(AroundLayer):
    """Pace all requests of a process together once the store begins to refuse some of them.

    What the store served in the last second is what it can bear, so requests are then spaced
    out to a little more than that. While it refuses nothing, the pace is raised until there
    is none. Each request's own backoff is not enough: a thousand of them, each patient by
    itself, are still a thousand at a time. Votes, decisions and the ends of uploads do not wait
    for a turn behind bulk data: they are few, and deadlines hang on them.

    Belongs inside limit and retry: one that waits for its turn has a place, and each try has
    a turn of its own.
    """

    passes_through = frozenset({"list_objects", "list_uploads"})

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._pace = Pace()

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        if request.repeatable and request.verb != "multipart_abort":
            await self._pace.turn()
        try:
            answer = await send()
        except ThrottledError:
            self._pace.refused()
            raise
        self._pace.served()
        return answer


class Pace:
    """When the next request may start. No pace, until one is refused."""

    def __init__(self) -> None:
        self._rate_per_s: float | None = None
        self._door = asyncio.Lock()
        self._last_s = 0.0
        self._adjusted_s = 0.0
        self._refused_s = 0.0
        self._began_s = 0.0
        self._guessed = False  # The first pace is, until it is refused as well.
        self._served_s: deque[float] = deque()

    @property
    def rate_per_s(self) -> float | None:
        """Requests a second, or ``None`` while there is no pace to keep."""
        return self._rate_per_s

    async def turn(self) -> None:
        """Return when it is time to start a request; callers are served in order."""
        async with self._door:  # One at a time looks at the clock: the pace may change meanwhile.
            if self._rate_per_s is None:
                return
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._last_s + 1.0 / self._rate_per_s - loop.time())
            self._last_s = loop.time()

    def served(self) -> None:
        now_s = self._observed()
        self._served_s.append(now_s)
        if self._rate_per_s is not None and now_s - self._adjusted_s > ADJUST_S:
            self._adjust(self._rate_per_s * self._raise(now_s), now_s)

    def refused(self) -> None:
        now_s = self._observed()
        self._refused_s = now_s
        elapsed_s = max(min(now_s - self._began_s, WINDOW_S), WINDOW_S_MIN)
        bearable_per_s = len(self._served_s) / elapsed_s
        if self._rate_per_s is None:
            self._guessed = True
            self._adjust(max(bearable_per_s, RATE_PER_S_FIRST), now_s)
        elif now_s - self._adjusted_s > ADJUST_S:
            self._guessed = False
            # Having asked for less lately, we were served less: that alone must not slow us down.
            self._adjust(max(bearable_per_s, self._rate_per_s * LOWER), now_s)

    def _raise(self, now_s: float) -> float:
        calm = now_s - self._refused_s > WINDOW_S
        return RAISE_CALM if calm or self._guessed else RAISE

    def _adjust(self, rate_per_s: float, now_s: float) -> None:
        self._adjusted_s = now_s
        self._rate_per_s = max(rate_per_s, RATE_PER_S_MIN) if rate_per_s < RATE_PER_S_FREE else None

    def _observed(self) -> float:
        """Forget what was served too long ago to tell, and return the time."""
        now_s = asyncio.get_running_loop().time()
        if not self._served_s:
            self._began_s = now_s
        while self._served_s and self._served_s[0] < now_s - WINDOW_S:
            self._served_s.popleft()
        return now_s
