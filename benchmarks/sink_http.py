"""Just enough HTTP for S3 clients: requests with any kind of body, answers with any kind."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

AHEAD_BYTES: Final = 64 * 1024
DRAIN_BYTES: Final = 1024 * 1024

_scratch = bytearray(DRAIN_BYTES)  # Never written to: the kernel drops what is drained.


class Incoming:
    """Bytes from a client: a little is read ahead to find lines, the rest goes straight through."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ahead = b""

    def until(self, mark: bytes) -> bytes:
        """Return what comes before ``mark``, and skip both; ``EOFError`` if it does not come."""
        while (at := self._ahead.find(mark)) < 0:
            self._ahead += self._more()
        found, self._ahead = self._ahead[:at], self._ahead[at + len(mark) :]
        return found

    def fill(self, target: memoryview) -> None:
        at = min(len(self._ahead), len(target))
        target[:at], self._ahead = self._ahead[:at], self._ahead[at:]
        while at < len(target):
            got = self._connection.recv_into(target[at:])
            if not got:
                raise EOFError
            at += got

    def drop(self, size_bytes: int) -> None:
        at = min(len(self._ahead), size_bytes)
        self._ahead = self._ahead[at:]
        while at < size_bytes:
            room = min(size_bytes - at, DRAIN_BYTES)
            got = self._connection.recv_into(_scratch, room, socket.MSG_TRUNC)
            if not got:
                raise EOFError
            at += got

    def _more(self) -> bytes:
        if not (data := self._connection.recv(AHEAD_BYTES)):
            raise EOFError
        return data


@dataclass
class Request:
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: memoryview = field(default_factory=lambda: memoryview(b""))
    size_bytes: int = 0

    @property
    def operation(self) -> str:
        """Return what is counted: the method, and the query that makes it another request."""
        kinds = ("uploads", "uploadId", "delete", "list-type", "location")
        return " ".join([self.method, *(kind for kind in kinds if kind in self.query)])

    def read_body(self, incoming: Incoming, *, keep: bool) -> None:
        """Read the body, whichever way it was framed; drop it unless it is to be kept."""
        encodings = self.headers.get("content-encoding", ""), self.headers.get("transfer-encoding")
        if "aws-chunked" in encodings[0] or encodings[1] == "chunked":  # Framed the same way.
            self._read_frames(incoming, keep=keep)
        else:
            self.size_bytes = int(self.headers.get("content-length", 0))
            if keep or not self.key or self.method == "POST":
                self.body = memoryview(bytearray(self.size_bytes))
                incoming.fill(self.body)
            else:
                incoming.drop(self.size_bytes)

    def _read_frames(self, incoming: Incoming, *, keep: bool) -> None:
        frames: list[bytearray] = []
        while size_bytes := int(incoming.until(b"\r\n").split(b";")[0], 16):
            self.size_bytes += size_bytes
            if keep:
                frames.append(frame := bytearray(size_bytes))
                incoming.fill(memoryview(frame))
            else:
                incoming.drop(size_bytes)
            incoming.until(b"\r\n")
        while incoming.until(b"\r\n"):
            pass  # The trailers, and the empty line after them.
        self.body = memoryview(b"".join(frames))


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Sequence[memoryview] = ()
    length: int | None = None  # Of a body that is not sent, because only the head was wanted.

    def send(self, connection: socket.socket, *, head_only: bool) -> None:
        length = sum(len(piece) for piece in self.pieces) if self.length is None else self.length
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            f"Content-Length: {length}",
        ]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        for piece in () if head_only else self.pieces:
            connection.sendall(piece)


def xml(text: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Answer(200, {"Content-Type": "application/xml"}, [memoryview(body)])


def failure(status: int, code: str) -> Answer:
    answer = xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")
    return Answer(status, answer.headers, answer.pieces)


def read_request(incoming: Incoming) -> Request | None:
    """Return the next request up to its body, or ``None`` when the client has gone."""
    try:
        head = incoming.until(b"\r\n\r\n").decode("latin-1")
    except EOFError:
        return None
    line, *lines = head.split("\r\n")
    method, target, _ = line.split(" ")
    pairs = (text.partition(":") for text in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, True).items()}
    bucket, _, key = unquote(url.path).lstrip("/").partition("/")
    return Request(method, bucket, key, query, headers)
