"""A proxy that misbehaves exactly when and how a test says: for clients that are not ours."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, Self, TypeAlias, assert_never
from urllib.parse import urlsplit

START_S_MAX: Final = 10.0
STEP_BYTES: Final = 65536
LOOK_S: Final = 0.02
_ESTABLISHED: Final = 1  # The first byte of Linux' TCP_INFO.
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing throws away what is not yet sent.


class Way(Enum):
    """Which of the two messages of an exchange a fault befalls."""

    REQUEST = "request"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection in good order after ``after_bytes`` of the message, head included."""

    after_bytes: int = 0
    way: Way = Way.ANSWER


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection after ``after_bytes`` of the message, head included."""

    after_bytes: int = 0
    way: Way = Way.ANSWER


@dataclass(frozen=True, slots=True)
class Stall:
    """Move nothing more, for ever, after ``after_bytes`` of the message, head included."""

    after_bytes: int = 0
    way: Way = Way.ANSWER


@dataclass(frozen=True, slots=True)
class Drip:
    """Let the answer through a byte at a time, so many a second."""

    bytes_per_s: float = 1.0


@dataclass(frozen=True, slots=True)
class DropAnswer:
    """Let the server answer in full, then close the connection with not a byte of it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer in the server's place, which never hears of it."""

    status: int
    body: bytes = b""


Fault: TypeAlias = Cut | Reset | Stall | Drip | DropAnswer | Reply


@dataclass
class _Script:
    """A fault, the requests that it waits for, and how often it has come to pass."""

    fault: Fault
    method: str
    path: str
    times: int | None
    met: int = 0
    happened: int = 0

    def meets(self, method: str, target: str) -> bool:
        due = self.times is None or self.met < self.times
        return due and self.method in ("", method) and self.path in target

    @property
    def used(self) -> bool:
        return self.happened > 0 if self.times is None else self.happened == self.times


@dataclass
class _Exchange:
    """One request and its answer, what befalls them, and how much has passed."""

    script: _Script | None = None
    befallen: bool = False
    passed: dict[Way, int] = field(default_factory=lambda: dict.fromkeys(Way, 0))

    def room(self, way: Way) -> int | None:
        """Return how many more bytes may pass that way; ``None`` for all."""
        fault = self.script.fault if self.script else None
        if isinstance(fault, Cut | Reset | Stall) and fault.way is way:
            return fault.after_bytes - self.passed[way]
        return None

    def happens(self) -> None:
        if self.script is not None and not self.befallen:
            self.befallen = True
            self.script.happened += 1


class _HangUpError(Exception):
    """Ends a connection; ``reset`` says how."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__()
        self.reset = reset


class FaultProxy:
    """Forward HTTP/1.1 to ``upstream_url``, and befall requests with what is scripted for them.

    Serves on a thread of its own while it is entered, at ``url``, and on a port that was free.
    Without a script it passes everything on as it comes. Requests must say their length.
    Linux only, because a stall ends when the client cuts the connection.
    ``requests`` has the connection's number, the method and the target of each.
    """

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (str(parts.hostname), parts.port or 80)
        self._scripts: list[_Script] = []
        self._thread = threading.Thread(target=self._serve, name="fault-proxy", daemon=True)
        self._ready = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[tuple[int, str, str]] = []
        self.connections_made = 0
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(START_S_MAX):
            raise RuntimeError(f"the proxy did not start within {START_S_MAX:g} s")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        self._thread.join(START_S_MAX)

    def script(
        self, fault: Fault, *, method: str = "", path: str = "", times: int | None = 1
    ) -> None:
        """Let ``fault`` befall the next ``times`` requests (``None``: all from now on) that match.

        ``path`` is part of the target, which has the query in it. Earlier scripts come first.
        """
        self._scripts.append(_Script(fault, method, path, times))

    def clear(self) -> None:
        """Behave from now on."""
        self._scripts.clear()

    def assert_all_used(self) -> None:
        """A fault that did not come to pass means that the test did not test what it claims."""
        unused = [script for script in self._scripts if not script.used]
        assert not unused, f"scripted faults never happened: {unused}; asked: {self.requests}"

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    def exchange(self, number: int, method: str, target: str) -> _Exchange:
        self.requests.append((number, method, target))
        script = next((one for one in self._scripts if one.meets(method, target)), None)
        if script is not None:
            script.met += 1
        return _Exchange(script)

    def _serve(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await stopped.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        connection = _Connection(self, self.connections_made, reader, writer)
        task = asyncio.ensure_future(connection.run(*self._upstream))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)


class _Connection:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(
        self,
        proxy: FaultProxy,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client = (reader, writer)
        self._exchange = _Exchange()

    async def run(self, host: str, port: int) -> None:
        reset = False
        server: asyncio.StreamWriter | None = None
        try:
            reader, server = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(server))
                group.create_task(self._answers(reader))
        except* _HangUpError as ends:
            reset = any(isinstance(end, _HangUpError) and end.reset for end in ends.exceptions)
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass  # Either side went away, and so does the other.
        finally:
            self._close(server, reset=reset)

    def _close(self, server: asyncio.StreamWriter | None, *, reset: bool) -> None:
        _, client = self._client
        if reset:
            wire = client.get_extra_info("socket")
            with suppress(OSError):
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.transport.abort()
        client.close()
        if server is not None:
            server.transport.abort()

    async def _requests(self, server: asyncio.StreamWriter) -> None:
        reader, client = self._client
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.decode("latin-1").split(" ", 2)
            exchange = self._exchange = self._proxy.exchange(self._number, method, target)
            left = _length(head)
            fault = exchange.script.fault if exchange.script else None
            if isinstance(fault, Reply):
                await reader.readexactly(left)
                exchange.happens()
                client.write(_reply(fault, method))
                await client.drain()
                continue
            if isinstance(fault, DropAnswer):  # The server then says where the answer ends.
                head = head[:-2] + b"Connection: close\r\n\r\n"
            await self._pass_on(Way.REQUEST, head, server)
            while left:
                step = await reader.read(min(left, STEP_BYTES))
                if not step:
                    raise _HangUpError(reset=False)
                left -= len(step)
                await self._pass_on(Way.REQUEST, step, server)

    async def _answers(self, reader: asyncio.StreamReader) -> None:
        _, client = self._client
        while step := await reader.read(STEP_BYTES):
            script = self._exchange.script
            match script.fault if script else None:
                case DropAnswer():
                    continue
                case Drip(bytes_per_s):
                    self._exchange.happens()
                    for byte in step:
                        client.write(bytes([byte]))
                        await client.drain()
                        await asyncio.sleep(1 / bytes_per_s)
                case _:
                    await self._pass_on(Way.ANSWER, step, client)
        if self._exchange.script and isinstance(self._exchange.script.fault, DropAnswer):
            self._exchange.happens()
        raise _HangUpError(reset=False)

    async def _client_gone(self) -> None:
        """Wait for the client to cut the connection, of which nobody tells who does not read."""
        wire = self._client[1].get_extra_info("socket")
        while wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def _pass_on(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        exchange = self._exchange
        room = exchange.room(way)
        passing = data if room is None else data[:room]
        exchange.passed[way] += len(passing)
        writer.write(passing)
        await writer.drain()
        if room is None or len(data) < room or exchange.script is None:
            return
        exchange.happens()
        match exchange.script.fault:
            case Cut():
                raise _HangUpError(reset=False)
            case Reset():
                raise _HangUpError(reset=True)
            case Stall():
                await self._client_gone()
                raise _HangUpError(reset=False)
            case Drip() | DropAnswer() | Reply():
                raise AssertionError("these let everything pass, or nothing")
            case _:
                assert_never(exchange.script.fault)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _reply(reply: Reply, method: str) -> bytes:
    head = f"HTTP/1.1 {reply.status} Said\r\nContent-Length: {len(reply.body)}\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else reply.body)
