"""The same over TLS, which is how everybody uses it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from ckptstore.errors import SettingsError, StalledError
from ckptstore.integrity import crc64nvme
from ckptstore.types import MIB, ByteRange, Key, Part, UploadId
from tests.unit.s3_stub import Peer, answer, stub_store
from tests.unit.test_s3_stall import never_read

TLS = Path(__file__).parent / "tls"
CERTIFICATE = TLS / "cert.pem"
KEY = Key("data/x")


def server_side() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, TLS / "key.pem")
    return context


async def test_bodies_travel_unhashed_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bytearray(range(256)) * (3 * MIB // 256)
    bundle = str(CERTIFICATE)
    script = (
        answer(200, ETag='"e"'),
        answer(206, b"2345", Content_Range="bytes 2-5/10"),
    )
    async with stub_store(monkeypatch, *script, tls=server_side(), AWS_CA_BUNDLE=bundle) as (
        stub,
        store,
    ):
        part, crc = Part(0, ByteRange(0, len(memory))), crc64nvme(memory)
        await store.put_part(KEY, UploadId("u"), part, [memory], crc64nvme=crc)
        assert stub.asked[0].body == memory
        assert stub.asked[0].headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        target = bytearray(4)
        await store.get_into(KEY, ByteRange(2, 6), memoryview(target))
        assert target == b"2345"


async def test_a_certificate_that_is_not_trusted_is_a_matter_of_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, tls=server_side()) as (stub, store):
        with pytest.raises(SettingsError, match="AWS_CA_BUNDLE"):
            await store.put(KEY, b"x")
        assert stub.asked == []


async def test_a_stalled_upload_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    big = bytes(32 * MIB)

    async def stop_reading(peer: Peer) -> None:
        await never_read(peer)

    async with stub_store(
        monkeypatch, stop_reading, tls=server_side(), AWS_CA_BUNDLE=str(CERTIFICATE)
    ) as (stub, store):
        part = Part(0, ByteRange(0, len(big)))
        with pytest.raises(StalledError):
            await store.put_part(KEY, UploadId("u"), part, [big], crc64nvme=crc64nvme(big))
        async with asyncio.timeout(2):
            await stub.left.wait()
