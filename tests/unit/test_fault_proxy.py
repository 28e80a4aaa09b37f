"""The proxy does what it is told to, when it is told to, and says if it could not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from ckptstore.testing.proxy import (
    Cut,
    Drip,
    DropAnswer,
    FaultProxy,
    Reply,
    Reset,
    Stall,
    Way,
)

PATIENCE_S = 5.0
BODY = bytes(range(256)) * 1024
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Upstream:
    """Answers each request with the same five bytes, and remembers what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.partial = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = b""
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0)
                while len(body) < length and (step := await reader.read(length - len(body))):
                    body += step
                    self.partial = body
                if len(body) < length:
                    return
                self.bodies.append(body)
                writer.write(ANSWER)
                await writer.drain()
                if b"Connection: close" in head:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def between() -> AsyncIterator[tuple[Upstream, FaultProxy]]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    try:
        with FaultProxy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as proxy:
            yield upstream, proxy
    finally:
        server.close()


class Client:
    """A connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, target: str = "/x", body: bytes = b"", method: str = "PUT") -> bytes:
        """Send a request and return the answer to it, or as much as comes before the end."""
        self.writer.write(
            f"{method} {target} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        try:
            return await self.reader.readexactly(len(ANSWER))
        except asyncio.IncompleteReadError as error:
            return error.partial


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[Client]:
    parts = urlsplit(proxy.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def moves_nothing(answer: Awaitable[bytes]) -> bool:
    try:
        async with asyncio.timeout(0.2):
            await answer
    except TimeoutError:
        return True
    return False


async def test_without_a_script_everything_passes() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        assert await client.ask(body=BODY) == ANSWER
        assert await client.ask("/y", method="GET") == ANSWER
    assert upstream.bodies == [BODY, b""]
    assert proxy.requests == [(1, "PUT", "/x"), (1, "GET", "/y")]
    proxy.assert_all_used()


async def test_a_fault_befalls_the_request_it_was_scripted_for_and_only_so_often() -> None:
    async with between() as (_, proxy), connected(proxy) as client:
        proxy.script(Reply(503, b"later"), method="PUT", path="part=2")
        assert await client.ask("/x?part=1") == ANSWER
        assert await client.ask("/x?part=2", method="GET") == ANSWER
        assert (await client.ask("/x?part=2")).startswith(b"HTTP/1.1 503")
    proxy.assert_all_used()


async def test_a_reply_keeps_the_request_from_the_server() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Reply(200, b"hello"), times=None)
        for _ in range(3):
            assert (await client.ask(body=BODY)).startswith(b"HTTP/1.1 200 Said")
            await client.reader.readexactly(2)  # This head is longer by two.
    assert upstream.bodies == []
    proxy.assert_all_used()


@pytest.mark.parametrize("after_bytes", [0, 10, len(ANSWER) - 1])
async def test_an_answer_is_cut(after_bytes: int) -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Cut(after_bytes))
        assert await client.ask(body=BODY) == ANSWER[:after_bytes]
    assert upstream.bodies == [BODY]
    proxy.assert_all_used()


async def test_a_request_is_cut() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Cut(100_000, Way.REQUEST))
        with suppress(ConnectionError):  # The rest of the request had nowhere to go.
            assert await client.ask(body=BODY) == b""
    assert upstream.bodies == []
    assert len(upstream.partial) < 100_000
    proxy.assert_all_used()


async def test_a_request_is_reset() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Reset(100_000, Way.REQUEST))
        with pytest.raises(ConnectionError):
            await client.ask(body=BODY)
    assert upstream.bodies == []
    proxy.assert_all_used()


async def test_a_reset_is_one() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Reset(after_bytes=0))
        with pytest.raises(ConnectionResetError):
            await client.ask()
    assert upstream.bodies == [b""]
    proxy.assert_all_used()


async def test_a_refused_request_never_reaches_the_server() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Reset(0, Way.REQUEST))
        with pytest.raises(ConnectionResetError):
            await client.ask()
    assert upstream.bodies == []
    proxy.assert_all_used()


async def test_a_stalled_answer_never_comes() -> None:
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Stall())
        assert await moves_nothing(client.ask())
    assert upstream.bodies == [b""]
    proxy.assert_all_used()


async def test_a_stalled_request_is_read_no_further() -> None:
    body = bytes(32 * 1024 * 1024)  # More than all the buffers on the way can hold.
    async with between() as (upstream, proxy), connected(proxy) as client:
        proxy.script(Stall(200_000, Way.REQUEST))
        assert await moves_nothing(client.ask(body=body))
        assert client.writer.transport.get_write_buffer_size() > 0
        assert proxy.connections_open == 1
        wire = client.writer.get_extra_info("socket")
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        while proxy.connections_open:  # noqa: ASYNC110 (it notices by itself)
            await asyncio.sleep(0.01)
    assert upstream.bodies == []
    assert len(upstream.partial) < 200_000
    proxy.assert_all_used()


async def test_an_answer_that_drips_comes_a_byte_at_a_time() -> None:
    async with between() as (_, proxy), connected(proxy) as client:
        proxy.script(Drip(bytes_per_s=1000))
        began_s = asyncio.get_running_loop().time()
        assert await client.ask() == ANSWER
        assert asyncio.get_running_loop().time() - began_s > (len(ANSWER) - 1) / 1000
    proxy.assert_all_used()


async def test_a_dropped_answer_is_to_a_request_that_was_carried_out() -> None:
    async with between() as (upstream, proxy):
        proxy.script(DropAnswer())
        async with connected(proxy) as client:
            assert await client.ask(body=BODY) == b""
        assert upstream.bodies == [BODY]
        async with connected(proxy) as client:
            assert await client.ask() == ANSWER
        assert [number for number, _, _ in proxy.requests] == [1, 2]
    proxy.assert_all_used()


@pytest.mark.parametrize(
    "scripted",
    [
        lambda proxy: proxy.script(Cut(), path="/other"),
        lambda proxy: proxy.script(Cut(after_bytes=len(ANSWER) + 1)),
        lambda proxy: proxy.script(Reply(503, b"later"), times=2),
        lambda proxy: proxy.script(Stall(1000, Way.REQUEST), times=None),
    ],
)
async def test_a_fault_that_did_not_happen_is_told(scripted: Callable[[FaultProxy], None]) -> None:
    async with between() as (_, proxy), connected(proxy) as client:
        scripted(proxy)
        await client.ask()
        with pytest.raises(AssertionError, match="never happened"):
            proxy.assert_all_used()
        proxy.clear()
        proxy.assert_all_used()


async def test_a_server_that_is_gone_ends_the_connection() -> None:
    async with between() as (_, proxy):
        pass
    with FaultProxy(proxy.url) as second:
        async with connected(second) as client:
            assert await client.reader.read() == b""
