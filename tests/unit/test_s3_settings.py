"""What a user asks of S3 beyond AWS's own variables, and what then goes over the wire."""

from __future__ import annotations

import os

import pytest

from ckptstore.backends.s3.store import S3Store
from ckptstore.cli.main import execute
from ckptstore.errors import UsageError
from ckptstore.integrity import crc64nvme
from ckptstore.settings import S3Settings
from ckptstore.types import ByteRange, Key, Part
from tests.unit.s3_stub import Asked, Behaviour, answer, aws_environment, stub_store
from tests.unit.test_s3_requests import COMPLETED, CREATED, page

KEY = Key("data/x")
DATA = b"0123456789"
SSE = "x-amz-server-side-encryption"


async def every_verb(store: S3Store) -> None:
    """Call each verb that sends a request, in an order that the script below answers."""
    crc = crc64nvme(DATA)
    await store.put(KEY, DATA)
    upload_id = await store.multipart_create(KEY)
    etag = await store.put_part(KEY, upload_id, Part(0, ByteRange(0, 10)), [DATA], crc64nvme=crc)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=10, crc64nvme=crc)
    await store.head(KEY)
    await store.get(KEY)
    await store.get_into(KEY, ByteRange(0, 10), memoryview(bytearray(10)))
    await store.multipart_abort(KEY, upload_id)
    assert [info async for info in store.list_objects("data/")] == []
    assert [upload async for upload in store.list_uploads("data/")] == []
    await store.delete(KEY)


EVERY_ANSWER: tuple[Behaviour, ...] = (
    answer(200, ETag='"e"'),
    answer(200, CREATED),
    answer(200, ETag='"e"'),
    answer(200, COMPLETED),
    answer(200, DATA, ETag='"e"'),
    answer(200, DATA),
    answer(206, DATA, Content_Range="bytes 0-9/10"),
    answer(204),
    answer(200, page()),
    answer(200, b"<ListMultipartUploadsResult></ListMultipartUploadsResult>"),
    answer(204),
)


async def asked_with(monkeypatch: pytest.MonkeyPatch, access: S3Settings) -> list[Asked]:
    async with stub_store(monkeypatch, *EVERY_ANSWER, access=access) as (stub, store):
        await every_verb(store)
        return stub.asked


async def test_whoever_pays_says_so_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = await asked_with(monkeypatch, S3Settings(request_payer=True))
    assert {one.headers.get("x-amz-request-payer") for one in asked} == {"requester"}
    assert len(asked) == len(EVERY_ANSWER)


async def test_a_new_object_says_how_it_is_kept_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = S3Settings(kms_key_id="key-1", storage_class="STANDARD_IA")
    put, created, *others = await asked_with(monkeypatch, access)
    for one in (put, created):
        assert one.headers[SSE] == "aws:kms"
        assert one.headers[f"{SSE}-aws-kms-key-id"] == "key-1"
        assert one.headers[f"{SSE}-bucket-key-enabled"] == "true"
        assert one.headers["x-amz-storage-class"] == "STANDARD_IA"
    assert not [name for one in others for name in one.headers if name.startswith(SSE)]
    assert not [one for one in others if "x-amz-storage-class" in one.headers]


@pytest.mark.parametrize("sse", ["AES256", "aws:kms:dsse"])
async def test_only_plain_kms_has_bucket_keys(monkeypatch: pytest.MonkeyPatch, sse: str) -> None:
    put, *_ = await asked_with(monkeypatch, S3Settings(sse=sse))
    assert put.headers[SSE] == sse
    assert f"{SSE}-bucket-key-enabled" not in put.headers


async def test_nothing_is_asked_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in await asked_with(monkeypatch, S3Settings()):
        assert not {SSE, "x-amz-storage-class", "x-amz-request-payer"} & one.headers.keys()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sse": "rot13"}, "'rot13' is no server-side encryption"),
        ({"addressing_style": "sideways"}, "'sideways' is no addressing style"),
        ({"sse": "AES256", "kms_key_id": "k"}, "not with AES256"),
        ({"storage_class": "DEEP_ARCHIVE"}, "cannot be read at once"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_work_is_refused_at_once(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        S3Settings(**wrong)  # type: ignore[arg-type]


def test_the_environment_fills_in_what_was_left_open() -> None:
    environment = {
        "CKPTSTORE_SSE": "aws:kms",
        "CKPTSTORE_KMS_KEY_ID": "key-1",
        "CKPTSTORE_BUCKET_KEY": "false",
        "CKPTSTORE_STORAGE_CLASS": "ONEZONE_IA",
        "CKPTSTORE_REQUEST_PAYER": "1",
        "CKPTSTORE_ADDRESSING_STYLE": "virtual",
    }
    told = S3Settings().with_environment(environment)
    assert told == S3Settings(
        sse="aws:kms",
        kms_key_id="key-1",
        bucket_key=False,
        storage_class="ONEZONE_IA",
        request_payer=True,
        addressing_style="virtual",
    )
    chosen = S3Settings(storage_class="STANDARD").with_environment(environment)
    assert chosen.storage_class == "STANDARD"
    assert S3Settings().with_environment({}) == S3Settings()


def test_the_command_line_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    aws_environment(monkeypatch)
    words = ["ls", "s3://bucket/x", "--endpoint-url", "http://127.0.0.1:1", "--deadline", "1s"]
    assert execute([*words, "--profile", "nobody"]) == 6
    assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL_S3"} & os.environ.keys()


# directory buckets

EXPRESS = "ckpts--use1-az4--x-s3"
OPENED = b"""<CreateSessionResult><Credentials><AccessKeyId>a</AccessKeyId>
<SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>"""


async def test_a_directory_bucket_is_listed_by_directories_and_put_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = (
        answer(200, page("p/rank-2", "p/other", following="t1")),
        answer(200, page("p/rank-1", "p/rank-10", "p/rank-dir/x")),
    )
    async with stub_store(monkeypatch, answer(200, OPENED), *pages, bucket=EXPRESS) as (
        stub,
        store,
    ):
        found = [info.key async for info in store.list_objects("p/rank-")]
        assert found == ["p/rank-1", "p/rank-10", "p/rank-2", "p/rank-dir/x"]
        assert "session" in stub.asked[0].target
        assert all("prefix=p%2F&" in f"{one.target}&" for one in stub.asked[1:])
        assert store.capabilities.fan_out == 1
