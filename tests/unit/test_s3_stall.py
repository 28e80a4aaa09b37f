"""A peer that stops, at whatever point, is given up, and its connection is really closed."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from ckptstore.backends.s3.store import S3Store, open_s3_store
from ckptstore.errors import RefusedError, StalledError
from ckptstore.integrity import crc64nvme
from ckptstore.types import MIB, ByteRange, CreateOnly, Key, Part, UploadId
from tests.unit.s3_stub import QUICK, Peer, answer, aws_environment, stub_store

KEY = Key("data/x")
BIG = bytes(32 * MIB)  # More than all the buffers on the way hold.

HEAD_OF_NINE = b"HTTP/1.1 206 P\r\nContent-Length: 9\r\nContent-Range: bytes 0-8/9\r\n\r\n"


async def never_read(peer: Peer) -> None:
    """Take the head of the request, nothing else, and notice only when the client leaves."""
    transport = peer.writer.transport
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()
    peer_socket: socket.socket = transport.get_extra_info("socket")
    while not _reset(peer_socket):  # noqa: ASYNC110 (the kernel sets no event)
        await asyncio.sleep(0.02)


def _reset(peer_socket: socket.socket) -> bool:
    """Whether the other side has torn the connection down, read or unread."""
    state = peer_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != 1  # TCP_ESTABLISHED


async def never_answer(peer: Peer) -> None:
    await peer.read_body()
    await peer.until_closed()


async def stop_in_the_head(peer: Peer) -> None:
    await peer.read_body()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-")
    await peer.until_closed()


async def stop_in_the_body(peer: Peer) -> None:
    await peer.read_body()
    await peer.send(HEAD_OF_NINE + b"0123")
    await peer.until_closed()


async def put_part(store: S3Store) -> None:
    part = Part(0, ByteRange(0, len(BIG)))
    await store.put_part(KEY, UploadId("u"), part, [BIG], crc64nvme=crc64nvme(BIG))


async def put(store: S3Store) -> None:
    await store.put(KEY, b"record", mode=CreateOnly())


async def get(store: S3Store) -> None:
    await store.get(KEY)


async def get_into(store: S3Store) -> None:
    await store.get_into(KEY, ByteRange(0, 9), memoryview(bytearray(9)))


async def head(store: S3Store) -> None:
    await store.head(KEY)


async def list_objects(store: S3Store) -> None:
    _ = [info async for info in store.list_objects("")]


@pytest.mark.parametrize(
    ("behave", "ask", "said"),
    [
        (never_read, put_part, r"0.3 s after \d+ of 33554432 bytes were sent"),
        (never_answer, put_part, "0.5 s after 33554432 of 33554432 bytes were sent"),
        (never_answer, put, "0.5 s after 6 of 6 bytes were sent"),
        (never_answer, head, "1 s after it was asked"),
        (never_answer, list_objects, "1 s after it was asked"),
        (stop_in_the_head, get_into, "1 s after it was asked"),
        (stop_in_the_body, get_into, "0.3 s after 4 of 9 bytes had arrived"),
        (stop_in_the_body, get, "0.3 s after 4 of 9 bytes had arrived"),
    ],
)
async def test_a_stalled_request_is_given_up_and_its_connection_closed(
    behave: Callable[[Peer], Awaitable[None]],
    ask: Callable[[S3Store], Awaitable[None]],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, behave) as (stub, store):
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StalledError, match=said):
            await ask(store)
        assert asyncio.get_running_loop().time() - began_s < 2
        async with asyncio.timeout(2):  # The server would wait for ever, were it not cut off.
            await stub.left.wait()


@pytest.mark.parametrize("behave", [never_read, never_answer])
async def test_a_cancelled_upload_closes_its_connection(
    behave: Callable[[Peer], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stub_store(monkeypatch, behave) as (stub, store):
        task = asyncio.create_task(put_part(store))
        async with asyncio.timeout(2):
            await stub.came.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await stub.left.wait()


async def test_a_slow_peer_that_moves_is_not_a_stalled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(peer: Peer) -> None:
        await peer.read_body()
        await peer.send(
            b"HTTP/1.1 206 P\r\nContent-Length: 9\r\nContent-Range: bytes 0-8/9\r\n\r\n"
        )
        for byte in b"012345678":
            await asyncio.sleep(0.1)
            await peer.send(bytes([byte]))

    async with stub_store(monkeypatch, slowly) as (_, store):
        target = bytearray(9)
        await store.get_into(KEY, ByteRange(0, 9), memoryview(target))
        assert target == b"012345678"


async def test_completing_has_more_time_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch, answer(200, ETag='"e"'), never_answer) as (_, store):
        part, crc = Part(0, ByteRange(0, 1)), crc64nvme(b"x")
        etag = await store.put_part(KEY, UploadId("u"), part, [b"x"], crc64nvme=crc)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StalledError, match="1.5 s"):
            await store.multipart_complete(KEY, UploadId("u"), [etag], size_bytes=1, crc64nvme=crc)
        assert asyncio.get_running_loop().time() - began_s > QUICK.complete_s_max


async def test_nobody_listening_is_told_from_a_lost_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    aws_environment(monkeypatch, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    store = await open_s3_store("bucket", QUICK)
    with pytest.raises(RefusedError):
        await put(store)
    await store.aclose()


async def test_no_descriptor_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def once() -> None:
        script = (answer(200, ETag='"e"'), stop_in_the_body, never_read)
        async with stub_store(monkeypatch, *script) as (_, store):
            await put(store)
            for ask in (get_into, put_part):
                with pytest.raises(StalledError):
                    await ask(store)

    await once()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    await once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
