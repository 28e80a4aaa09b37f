"""The floor: sockets, and requests that were written down beforehand."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from urllib.parse import urlsplit

from benchmarks.peers.base import Go, Task, in_threads, payload, touched

_LENGTH: Final = re.compile(rb"Content-Length: (\d+)", re.IGNORECASE)


class _Connections:
    """Connections that are taken and given back."""

    def __init__(self, task: Task, closing: ExitStack) -> None:
        at = urlsplit(task.endpoint)
        self._free = [
            closing.enter_context(socket.create_connection((at.hostname, at.port)))
            for _ in range(task.in_flight)
        ]

    @contextmanager
    def one(self) -> Iterator[socket.socket]:
        connection = self._free.pop()
        yield connection
        self._free.append(connection)


@contextmanager
def upload(task: Task) -> Iterator[Go]:
    data = payload(task.size_bytes)
    with ExitStack() as closing:
        connections = _Connections(task, closing)

        def go(key: str, size_bytes: int) -> None:
            def put(part: tuple[int, tuple[int, int]]) -> None:
                number, (start, stop) = part
                with connections.one() as connection:
                    connection.sendall(
                        f"PUT /{task.bucket}/{key}-{number} HTTP/1.1\r\nHost: sink\r\n"
                        f"Content-Length: {stop - start}\r\n\r\n".encode()
                    )
                    connection.sendall(data[start:stop])
                    _read_head(connection)

            in_threads(put, size_bytes, task)

        yield go


@contextmanager
def download(task: Task) -> Iterator[Go]:
    target = touched(task.size_bytes)
    with ExitStack() as closing:
        connections = _Connections(task, closing)

        def go(key: str, size_bytes: int) -> None:
            def get(part: tuple[int, tuple[int, int]]) -> None:
                _, (start, stop) = part
                with connections.one() as connection:
                    connection.sendall(
                        f"GET /{task.bucket}/{key} HTTP/1.1\r\nHost: sink\r\n"
                        f"Range: bytes={start}-{stop - 1}\r\n\r\n".encode()
                    )
                    ahead = _read_head(connection)
                    at = start + len(ahead)
                    target[start:at] = ahead
                    while at < stop:
                        at += connection.recv_into(target[at:stop])

            in_threads(get, size_bytes, task)

        yield go


def _read_head(connection: socket.socket) -> bytes:
    """Read the head of an answer and return what came after it."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(64 * 1024)
    head, _, ahead = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 20") or not _LENGTH.search(head):
        raise RuntimeError(f"the sink said {head!r}")
    return ahead
