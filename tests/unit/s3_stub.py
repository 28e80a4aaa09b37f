"""A server that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from ckptstore.backends.s3.store import S3Store, open_s3_store
from ckptstore.settings import RequestSettings, S3Settings

QUICK = RequestSettings(
    connect_s_max=0.5, stall_s_max=0.3, answer_s_max=0.5, complete_s_max=1, in_flight_max=4
)


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Peer:
    """One request as the server sees it, and the connection it came over."""

    asked: Asked
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_body(self) -> None:
        self.asked.body = await self.reader.readexactly(
            int(self.asked.headers.get("content-length", "0"))
        )

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> None:
        """Wait until the client has cut the connection, reading on until then."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Behaviour: TypeAlias = Callable[[Peer], Awaitable[None]]


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Read the whole request and answer it."""

    async def behave(peer: Peer) -> None:
        await peer.read_body()
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        shown = b"" if peer.asked.method == "HEAD" else body
        await peer.send("\r\n".join([*lines, "", ""]).encode() + shown)

    return behave


def refusal(status: int, code: str, **headers: str) -> Behaviour:
    xml = f"<Error><Code>{code}</Code><Message>said so</Message></Error>"
    return answer(status, xml.encode(), **headers)


@dataclass
class Stub:
    """Behaves as scripted, one behaviour a request.

    ``came`` is set when there was a request, ``left`` when no connection is open any more.
    """

    script: list[Behaviour]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self.left.clear()
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().rstrip().split("\r\n")
                method, target, _ = first.split(" ")
                pairs = (line.split(": ", 1) for line in lines)
                asked = Asked(method, target, {name.lower(): value for name, value in pairs})
                self.asked.append(asked)
                self.came.set()
                await self.script.pop(0)(Peer(asked, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._connections -= 1
            if not self._connections:
                self.left.set()


def aws_environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Set up AWS's variables for a test, and nothing of this machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    defaults = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in {**defaults, **variables}.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def stub_store(
    monkeypatch: pytest.MonkeyPatch,
    *script: Behaviour,
    settings: RequestSettings = QUICK,
    tls: ssl.SSLContext | None = None,
    bucket: str = "bucket",
    access: S3Settings | None = None,
    **variables: str,
) -> AsyncIterator[tuple[Stub, S3Store]]:
    """Yield a stub and a store that talks to it. Everything in the script has to happen."""
    stub = Stub(list(script))
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0, ssl=tls)
    stub.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    aws_environment(monkeypatch, AWS_ENDPOINT_URL=stub.url, **variables)
    store = await open_s3_store(bucket, settings, access)
    try:
        yield stub, store
        assert not stub.script, "scripted behaviour never happened"
    finally:
        await store.aclose()
        server.close()
        async with asyncio.timeout(5):
            if stub.came.is_set():
                await stub.left.wait()
