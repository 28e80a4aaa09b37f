"""What goes over the wire, and what is made of what comes back."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from ckptstore.backends.s3.config import POOL_HEADROOM
from ckptstore.backends.s3.store import open_s3_store
from ckptstore.errors import (
    CredentialsExpiredError,
    ObjectExistsError,
    SettingsError,
    StoreError,
    ThrottledError,
    TransientStoreError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.layers.retry import RetryLayer
from ckptstore.settings import RequestSettings, RetrySettings
from ckptstore.types import Buffer, ByteRange, CreateOnly, Key, Part, UploadId
from tests.unit.s3_stub import QUICK, Asked, Peer, answer, aws_environment, refusal, stub_store

KEY = Key("data/x")
UPLOAD = UploadId("u1")
DATA = b"0123456789"


def checksum(data: bytes) -> str:
    return base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode()


def assert_plain(asked: Asked, data: bytes) -> None:
    """Neither framed, nor hashed, nor held back; with our own checksum."""
    assert asked.body == data
    assert asked.headers["content-length"] == str(len(data))
    assert asked.headers["x-amz-checksum-crc64nvme"] == checksum(data)
    assert asked.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    for name in ("expect", "transfer-encoding", "x-amz-trailer", "content-encoding"):
        assert name not in asked.headers


async def test_a_part_travels_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch, answer(200, ETag='"e1"')) as (stub, store):
        part = Part(4, ByteRange(40, 50))
        pieces: list[Buffer] = [DATA[:3], bytearray(DATA[3:7]), memoryview(DATA)[7:]]
        etag = await store.put_part(KEY, UPLOAD, part, pieces, crc64nvme=crc64nvme(DATA))
        assert etag.endswith('"e1"')
        [asked] = stub.asked
        assert asked.method == "PUT"
        assert asked.target == "/bucket/data/x?partNumber=5&uploadId=u1"
        assert_plain(asked, DATA)


async def test_put_says_under_which_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    ok = answer(200, ETag='"e1"')
    refused = refusal(412, "PreconditionFailed")
    async with stub_store(monkeypatch, ok, ok, refused, ok) as (stub, store):
        version = await store.put(KEY, DATA)
        assert version.etag == "e1"
        await store.put(KEY, DATA, mode=CreateOnly())
        with pytest.raises(ObjectExistsError):
            await store.put(KEY, DATA, mode=CreateOnly())
        await store.put(KEY, b"")
        assert [a.headers.get("if-none-match") for a in stub.asked] == [None, "*", "*", None]
        assert_plain(stub.asked[0], DATA)
        assert_plain(stub.asked[3], b"")


CREATED = b"<CreateMultipartUploadResult><UploadId>u1</UploadId></CreateMultipartUploadResult>"
COMPLETED = b'<CompleteMultipartUploadResult><ETag>"e-2"</ETag></CompleteMultipartUploadResult>'


async def test_an_upload_declares_the_checksum_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = (answer(200, CREATED), answer(200, ETag='"e1"'), answer(200, COMPLETED))
    async with stub_store(monkeypatch, *script) as (stub, store):
        upload_id = await store.multipart_create(KEY)
        part, crc = Part(0, ByteRange(0, 10)), crc64nvme(DATA)
        etag = await store.put_part(KEY, upload_id, part, [DATA], crc64nvme=crc)
        version = await store.multipart_complete(
            KEY, upload_id, [etag], size_bytes=10, crc64nvme=crc
        )
    assert version.etag == "e-2"
    created, _, completed = stub.asked
    assert created.headers["x-amz-checksum-algorithm"] == "CRC64NVME"
    assert created.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert completed.headers["x-amz-checksum-crc64nvme"] == checksum(DATA)
    assert completed.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert completed.headers["x-amz-mp-object-size"] == "10"
    body = completed.body.decode()
    assert "<PartNumber>1</PartNumber>" in body
    assert f"<ChecksumCRC64NVME>{checksum(DATA)}</ChecksumCRC64NVME>" in body


async def test_an_error_in_the_body_of_a_success_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b"\n\n<Error><Code>InternalError</Code><Message>sorry</Message></Error>"
    async with stub_store(monkeypatch, answer(200, ETag='"e1"'), answer(200, body)) as (_, store):
        part, crc = Part(0, ByteRange(0, 10)), crc64nvme(DATA)
        etag = await store.put_part(KEY, UPLOAD, part, [DATA], crc64nvme=crc)
        with pytest.raises(TransientStoreError, match="sorry"):
            await store.multipart_complete(KEY, UPLOAD, [etag], size_bytes=10, crc64nvme=crc)


async def test_parts_that_do_not_add_up_are_not_even_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch, answer(200, ETag='"e1"')) as (stub, store):
        part, crc = Part(0, ByteRange(0, 10)), crc64nvme(DATA)
        etag = await store.put_part(KEY, UPLOAD, part, [DATA], crc64nvme=crc)
        for etags, size_bytes, whole in (([etag], 11, crc), ([etag], 10, crc + 1), ([], 0, crc)):
            with pytest.raises(StoreError, match="not completed"):
                await store.multipart_complete(
                    KEY, UPLOAD, etags, size_bytes=size_bytes, crc64nvme=whole
                )
        assert len(stub.asked) == 1


async def test_the_sdk_tries_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down = refusal(503, "SlowDown", Retry_After="7")
    async with stub_store(monkeypatch, slow_down, refusal(500, "InternalError")) as (stub, store):
        with pytest.raises(ThrottledError) as caught:
            await store.put(KEY, DATA)
        assert caught.value.retry_after_s == 7
        with pytest.raises(TransientStoreError):
            await store.get(KEY)
        assert len(stub.asked) == 2


# reading


async def read(
    store_answer: bytes, status: int, monkeypatch: pytest.MonkeyPatch, **headers: str
) -> bytes:
    target = bytearray(4)
    async with stub_store(monkeypatch, answer(status, store_answer, **headers)) as (stub, store):
        await store.get_into(KEY, ByteRange(2, 6), memoryview(target))
        assert stub.asked[0].headers["range"] == "bytes=2-5"
    return bytes(target)


async def test_a_range_is_read_into_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await read(b"2345", 206, monkeypatch, Content_Range="bytes 2-5/10") == b"2345"


@pytest.mark.parametrize(
    ("body", "status", "content_range", "retryable"),
    [
        (b"23", 206, "bytes 2-3/4", False),  # The object ends there.
        (b"3456", 206, "bytes 3-6/10", True),
        (b"2345", 206, "lines 2-5/10", True),
        (b"23", 206, "bytes 2-5/10", True),
        (b"23456", 206, "bytes 2-5/10", True),
        (DATA, 200, "", False),  # The server ignores ranges.
        (b"0123", 200, "", False),
    ],
)
async def test_other_bytes_than_asked_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, content_range: str, retryable: bool
) -> None:
    headers = {"Content_Range": content_range} if content_range else {}
    with pytest.raises(StoreError) as caught:
        await read(body, status, monkeypatch, **headers)
    assert caught.value.retryable == retryable


async def cut_off(peer: Peer) -> None:
    await peer.read_body()
    head = b"HTTP/1.1 206 P\r\nContent-Length: 4\r\nContent-Range: bytes 2-5/10\r\n\r\n"
    await peer.send(head + b"23")
    peer.writer.close()


async def test_a_body_that_ends_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch, cut_off) as (_, store):
        with pytest.raises(TransientStoreError):
            await store.get_into(KEY, ByteRange(2, 6), memoryview(bytearray(4)))
    async with stub_store(monkeypatch, cut_off) as (_, store):
        with pytest.raises(TransientStoreError):
            await store.get(KEY)


async def in_chunks(peer: Peer) -> None:
    await peer.read_body()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await peer.send(b"6\r\n012345\r\n4\r\n6789\r\n0\r\n\r\n")


async def test_a_body_of_undeclared_length_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, in_chunks, in_chunks) as (_, store):
        assert await store.get(KEY) == DATA
        target = bytearray(10)
        await store.get_into(KEY, ByteRange(0, 10), memoryview(target))
        assert target == DATA


def page(*keys: str, following: str = "") -> bytes:
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    more = (
        f"<EncodingType>url</EncodingType><IsTruncated>{str(bool(following)).lower()}</IsTruncated>"
    )
    name = "NextContinuationToken"
    token = "" if following in ("", "lost") else f"<{name}>{following}</{name}>"
    return f"<ListBucketResult>{more}{token}{entries}</ListBucketResult>".encode()


async def test_a_listing_goes_on_from_page_to_page(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (answer(200, page("p/", "p/a", "p/b%20c", following="t1")), answer(200, page("p/d")))
    async with stub_store(monkeypatch, *script) as (stub, store):
        found = [info.key async for info in store.list_objects("p/")]
        assert found == ["p/a", "p/b c", "p/d"]  # "p/" is what a console made.
        assert "prefix=p%2F" in stub.asked[0].target
        assert "continuation-token=t1" in stub.asked[1].target


async def test_a_listing_that_does_not_say_how_it_goes_on_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, answer(200, page("p/a", following="lost"))) as (_, store):
        with pytest.raises(StoreError, match="goes on"):
            _ = [info async for info in store.list_objects("p/")]


# credentials, regions, addresses


def access_key_of(asked: Asked) -> str:
    return asked.headers["authorization"].partition("Credential=")[2].partition("/")[0]


def credentials_file(path: Path, key: str) -> str:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")
    return str(path)


async def test_expired_credentials_are_loaded_anew_and_tried_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "credentials"
    expired = refusal(400, "ExpiredToken")
    script = (expired, answer(200, ETag='"e"'), expired, expired)
    async with stub_store(monkeypatch, *script) as (stub, _):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", credentials_file(path, "OLD"))
        store = RetryLayer(await open_s3_store("bucket", QUICK), RetrySettings(backoff_s_max=0.01))
        credentials_file(path, "NEW")
        await store.put(KEY, DATA)
        assert [access_key_of(asked) for asked in stub.asked] == ["OLD", "NEW"]
        with pytest.raises(CredentialsExpiredError):
            await store.put(KEY, DATA)
        await store.aclose()


async def test_missing_credentials_say_where_they_were_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws_environment(monkeypatch, AWS_SHARED_CREDENTIALS_FILE="/no/such/credentials")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(SettingsError) as caught:
        await open_s3_store("bucket", QUICK)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    assert "/no/such/credentials" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"AWS_PROFILE": "nobody"},
        {"AWS_ENDPOINT_URL": "no scheme"},
        {"AWS_REGION": "not a region!"},
        {"AWS_SECRET_ACCESS_KEY": ""},
    ],
    ids=str,
)
async def test_a_configuration_that_cannot_work_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    aws_environment(monkeypatch, **wrong)
    with pytest.raises(SettingsError):
        await open_s3_store("bucket", QUICK)


async def test_a_custom_endpoint_needs_no_region_and_gets_plain_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, answer(200, ETag='"e"')) as (stub, store):
        await store.put(KEY, DATA)
        assert "/us-east-1/s3/" in stub.asked[0].headers["authorization"]
        assert stub.asked[0].target == "/bucket/data/x"


async def test_the_region_and_addressing_of_the_configuration_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\nregion = eu-west-3\ns3 =\n  addressing_style = virtual\n")
    async with stub_store(monkeypatch, answer(200, ETag='"e"')) as (stub, _):
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        monkeypatch.setenv("AWS_ENDPOINT_URL", stub.url.replace("127.0.0.1", "localhost"))
        store = await open_s3_store("bucket", QUICK)
        assert "localhost" in repr(store)
        client = store._caller._client
        assert client.meta.config.s3["addressing_style"] == "virtual"
        assert client.meta.region_name == "eu-west-3"
        await store.aclose()
        await (await open_s3_store("bucket", QUICK)).aclose()
        stub.script.clear()


async def test_a_store_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch) as (stub, store):
        monkeypatch.setattr("os.getpid", lambda: 1)
        with pytest.raises(SettingsError, match="forked"):
            await store.head(KEY)
        assert stub.asked == []


async def test_the_pool_has_room_for_all_requests_and_listings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = asyncio.Event()
    arrived = 0

    async def hold(peer: Peer) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 4 + POOL_HEADROOM:
            held.set()
        await held.wait()
        await answer(204)(peer)

    behaviours = [hold] * (4 + POOL_HEADROOM)
    settings = RequestSettings(in_flight_max=4, connect_s_max=5, answer_s_max=5)
    async with stub_store(monkeypatch, *behaviours, settings=settings) as (_, store):
        async with asyncio.timeout(10):
            await asyncio.gather(*(store.delete(KEY) for _ in behaviours))
