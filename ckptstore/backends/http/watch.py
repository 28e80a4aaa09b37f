"""No request stands still for long: neither the SDK nor its HTTP client sees to that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ckptstore.errors import StalledError
from ckptstore.settings import RequestSettings


class Watch:
    """The time until which something has to happen, and what happened last."""

    def __init__(self, scope: asyncio.Timeout, settings: RequestSettings, answer_s: float) -> None:
        self._scope = scope
        self._settings = settings
        self._answer_s = answer_s
        self._bound_s = 0.0
        self._after = ""

    def connecting(self) -> None:
        """A connection is wanted, and then the first bytes have to move."""
        self._expect(self._settings.connect_s_max + self._settings.stall_s_max, "the start")

    def sent(self, so_far_bytes: int, total_bytes: int) -> None:
        """Bytes went out; the next ones are due, or after the last the answer."""
        last = so_far_bytes == total_bytes
        bound_s = self._answer_s if last else self._settings.stall_s_max
        self._expect(bound_s, f"{so_far_bytes} of {total_bytes} bytes were sent")

    def asked(self) -> None:
        """A request without bulk bytes is on its way; its answer is due."""
        self._expect(self._settings.connect_s_max + self._answer_s, "it was asked")

    def received(self, so_far_bytes: int, total_bytes: int) -> None:
        self._expect(
            self._settings.stall_s_max, f"{so_far_bytes} of {total_bytes} bytes had arrived"
        )

    def _expect(self, bound_s: float, after: str) -> None:
        self._bound_s, self._after = bound_s, after
        self._scope.reschedule(asyncio.get_running_loop().time() + bound_s)

    def __str__(self) -> str:
        return f"nothing moved for {self._bound_s:g} s after {self._after}"


@asynccontextmanager
async def watched(
    verb: str, key: str, settings: RequestSettings, answer_s: float
) -> AsyncIterator[Watch]:
    """Cancel the block when its watch runs out, and raise ``StalledError`` saying where it was."""
    watch: Watch | None = None
    try:
        async with asyncio.timeout(None) as scope:
            watch = Watch(scope, settings, answer_s)
            yield watch
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StalledError(f"{watch}; its connection was closed", verb=verb, key=key) from error
