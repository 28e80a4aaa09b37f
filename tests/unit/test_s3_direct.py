"""Long bodies go from the socket into place, and the connection is as good as before."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from ckptstore.backends.http import direct
from ckptstore.errors import TransientStoreError
from ckptstore.types import MIB, ByteRange, Key
from tests.unit.s3_stub import Behaviour, Peer, answer, stub_store
from tests.unit.test_s3_tls import CERTIFICATE, server_side

KEY = Key("data/x")
LONG = bytes(range(251)) * (5 * MIB // 251)
WHOLE = ByteRange(0, len(LONG))


def long_answer() -> Behaviour:
    return answer(206, LONG, Content_Range=f"bytes 0-{len(LONG) - 1}/{len(LONG)}")


@pytest.mark.parametrize("tls", [None, server_side()], ids=["plain", "tls"])
async def test_one_connection_serves_body_after_body(
    tls: ssl.SSLContext | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []
    fill = direct.fill

    async def noted(raw: object, target: memoryview, *more: object) -> None:
        await fill(raw, target, *more)  # type: ignore[arg-type]
        filled.append(len(target))

    monkeypatch.setattr(direct, "fill", noted)
    peers: list[Peer] = []

    async def remember(peer: Peer) -> None:
        peers.append(peer)
        await long_answer()(peer)

    script = [remember] * 3
    variables: dict[str, Any] = {"AWS_CA_BUNDLE": str(CERTIFICATE)} if tls else {}
    async with stub_store(monkeypatch, *script, tls=tls, **variables) as (_, store):
        for _ in range(3):
            target = bytearray(len(LONG))
            await store.get_into(KEY, WHOLE, memoryview(target))
            assert target == LONG
        assert filled == [len(LONG)] * 3
        assert len({id(peer.writer) for peer in peers}) == 1


async def half(peer: Peer) -> None:
    await peer.read_body()
    size = len(LONG)
    head = f"HTTP/1.1 206 P\r\nContent-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}"
    await peer.send(f"{head}\r\n\r\n".encode() + LONG[: size // 2])


async def test_a_long_body_that_ends_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def half_and_gone(peer: Peer) -> None:
        await half(peer)
        peer.writer.close()

    async with stub_store(monkeypatch, half_and_gone, long_answer()) as (_, store):
        target = memoryview(bytearray(len(LONG)))
        with pytest.raises(TransientStoreError, match=f"of {len(LONG)} bytes arrived"):
            await store.get_into(KEY, WHOLE, target)
        await store.get_into(KEY, WHOLE, target)
        assert target == LONG


async def test_a_cancelled_read_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, half_and_wait) as (stub, store):
        target = bytearray(len(LONG))
        reading = asyncio.create_task(store.get_into(KEY, WHOLE, memoryview(target)))
        async with asyncio.timeout(2):
            while not target[len(LONG) // 2 - 1]:  # noqa: ASYNC110 (memory tells nobody)
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await stub.left.wait()
        assert not any(target[len(LONG) // 2 :])


async def half_and_wait(peer: Peer) -> None:
    await half(peer)
    await peer.until_closed()
