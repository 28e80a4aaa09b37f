"""A request body that is sent from memory, after a description of the object."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ckptstore.types import MIB

STEP_BYTES: Final = MIB  # Handed to the socket at a time; between two, a cancelled call notices.


class RelatedBody:
    """The ``multipart/related`` body of an upload: what the object is, then its bytes.

    The HTTP client asks for the length and then iterates, as often as it sends the request; it
    is handed views of the caller's memory, which must not change until the request has ended.
    """

    def __init__(
        self,
        resource: Mapping[str, Any],
        pieces: Sequence[memoryview],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/related; boundary={boundary}"
        self._head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
            f"{json.dumps(resource)}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode()
        self._tail = f"\r\n--{boundary}--".encode()
        self._pieces = pieces
        self._check = check

    def __len__(self) -> int:
        return len(self._head) + sum(len(piece) for piece in self._pieces) + len(self._tail)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        for piece in self._pieces:
            for at in range(0, len(piece), STEP_BYTES):
                self._check()
                yield piece[at : at + STEP_BYTES]
        yield self._tail
