"""A request body that is sent from the memory it lies in."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiohttp.payload import Payload

from ckptstore.types import MIB

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

STEP_BYTES: Final = 4 * MIB  # Handed to the socket at a time; also how often progress shows.
STEP_BYTES_COPIED: Final = MIB  # The same for a transport that copies what the socket refuses.
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class BufferBody(Payload):
    """Pieces of memory, sent one after the other without a copy.

    botocore sees a file (``read``, ``seek``, ``tell``, ``len``): it takes the length, and a
    repeated request starts over. aiohttp sees a payload that writes itself, and that calls
    ``on_progress`` with how many of how many bytes the transport has taken.

    The memory must not change until the request has ended. After a failure ``abort`` makes
    the transport let go of it at once, instead of when the peer has read what is buffered.
    """

    def __init__(
        self, pieces: Sequence[memoryview], on_progress: Callable[[int, int], None]
    ) -> None:
        super().__init__(pieces, content_type="application/octet-stream")
        self._pieces = pieces
        self._length = self._size = sum(len(piece) for piece in pieces)
        self._on_progress = on_progress
        self._at = 0
        self._transport: Any = None

    def __len__(self) -> int:
        return self._length

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Return at most ``size`` bytes, fewer at the end of a piece, none at the very end."""
        start = 0
        for piece in self._pieces:
            if self._at < start + len(piece):
                offset = self._at - start
                stop = len(piece) if size < 0 else offset + size
                taken = piece[offset:stop]
                self._at += len(taken)
                return taken
            start += len(piece)
        return memoryview(b"")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send everything from the start; for aiohttp, which calls it once a connection."""
        self._transport = writer.transport
        writer.send_headers()  # Alone: joined with the first bytes, these would be copied.
        self._at = 0
        in_place = sys.version_info >= (3, 12) or not type(self._transport).__module__.startswith(
            "asyncio."
        )
        while step := self.read(STEP_BYTES if in_place else STEP_BYTES_COPIED):
            await writer.write(step)
            self._on_progress(self._at, self._length)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("these are bytes")

    def abort(self) -> None:
        """Cut the connection, and have the kernel forget what it has not sent yet."""
        if self._transport is None:
            return
        with suppress(OSError):  # It is closed already.
            wire = self._transport.get_extra_info("socket")
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()  # Also if it is closing: that waits for the peer to read.
