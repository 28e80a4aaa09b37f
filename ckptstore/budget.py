"""How many bytes may be in flight at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class ByteBudget:
    """Admit holders, first come first served, while their bytes fit.

    A holder larger than the whole budget is admitted alone, once nothing else is in flight:
    one huge part must slow an upload down, not deadlock it. Nobody overtakes, so it does not
    wait for ever either.
    """

    def __init__(self, bytes_max: int) -> None:
        if bytes_max <= 0:
            raise ValueError(f"bytes_max must be positive: {bytes_max}")
        self._bytes_max = bytes_max
        self._bytes_held = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def bytes_held(self) -> int:
        return self._bytes_held

    def __str__(self) -> str:
        return (
            f"{self._bytes_held} of {self._bytes_max} bytes in flight, "
            f"{len(self._queue)} parts waiting for room"
        )

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        await self._admit(size_bytes)
        try:
            yield
        finally:
            self._release(size_bytes)

    async def _admit(self, size_bytes: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size_bytes, turn))
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release(size_bytes)  # Admitted and cancelled in the same breath.
            else:
                with suppress(ValueError):  # It was passed over already.
                    self._queue.remove((size_bytes, turn))
                self._wake()  # Whoever stood behind may fit where we did not.
            raise

    def _release(self, size_bytes: int) -> None:
        self._bytes_held -= size_bytes
        self._wake()

    def _wake(self) -> None:
        while self._queue and (self._queue[0][1].cancelled() or self._fits(self._queue[0][0])):
            size_bytes, turn = self._queue.popleft()
            if not turn.cancelled():  # Else its owner is about to find out.
                self._bytes_held += size_bytes
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return self._bytes_held == 0 or self._bytes_held + size_bytes <= self._bytes_max
