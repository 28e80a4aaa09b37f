"""The body of an answer, from the socket straight into the caller's memory.

The HTTP client would hand it out in small pieces that it has copied twice by then. So once the
head is there, this takes the client's place at the connection, until the body has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import ClientPayloadError

STEP_BYTES: Final = 8 * 1024 * 1024  # Read at a time, so that other requests get their turns.


def is_plain(raw: Any, size_bytes: int) -> bool:  # noqa: ANN401
    """Tell whether what is left of the body are just these bytes, and are still to come."""
    return (
        raw.headers.get("Content-Length") == str(size_bytes)
        and not raw.headers.keys() & {"Content-Encoding", "Transfer-Encoding"}
        and raw.connection is not None
        and raw.content.exception() is None
    )


async def fill(raw: Any, target: memoryview, on_progress: Callable[[int, int], None]) -> None:  # noqa: ANN401
    """Fill ``target`` with the body of an answer that ``is_plain``.

    Afterwards the connection is as good as new. If it ends before the body does,
    ``ClientPayloadError`` is raised.
    """
    filled = 0
    while piece := raw.content.read_nowait():  # What came along with the head.
        target[filled : filled + len(piece)] = piece
        filled += len(piece)
        on_progress(filled, len(target))
    if filled == len(target):
        return
    client = raw.connection.protocol
    intake = _Intake(client, target, filled, on_progress)
    client.transport.set_protocol(intake)
    try:
        await intake.complete
    finally:
        intake.leave()
    client._parser = None  # It still waits for the body; the next request gets a new one.
    raw.content.feed_eof()


class _Intake(asyncio.BufferedProtocol):
    def __init__(
        self,
        client: Any,  # noqa: ANN401
        target: memoryview,
        filled: int,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client = client
        self._transport = client.transport
        self._target = target
        self._filled = filled
        self._on_progress = on_progress

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._filled : self._filled + STEP_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._on_progress(self._filled, len(self._target))
        if self._filled == len(self._target):
            self.leave()
            if not self.complete.done():
                self.complete.set_result(None)

    def leave(self) -> None:
        """Let the client have its connection back."""
        if self._transport.get_protocol() is self:
            self._transport.set_protocol(self._client)

    def eof_received(self) -> None:
        self._client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.complete.done():
            reason = (
                f"{self._filled} of {len(self._target)} bytes arrived: {exc or 'it was closed'}"
            )
            self.complete.set_exception(ClientPayloadError(reason))
        self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()
