"""What real servers answer to mistakes, and that it means the same to us."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ckptstore.backends.s3.store import S3Store, open_s3_store
from ckptstore.errors import (
    DamagedError,
    PermissionDeniedError,
    SettingsError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.settings import RequestSettings
from ckptstore.types import ByteRange, Key, Part
from tests.integration.buckets import Bucket

pytestmark = pytest.mark.integration

KEY = Key("data/x")
WHOLE = b"payload"
PART = Part(0, ByteRange(0, len(WHOLE)))


@pytest.fixture
async def store(bucket: Bucket) -> AsyncIterator[S3Store]:
    store = await open_s3_store(bucket.name, RequestSettings())
    yield store
    await store.aclose()


async def test_a_bucket_that_is_not_there_is_a_matter_of_settings(
    bucket: Bucket, server_name: str
) -> None:
    store = await open_s3_store("no-such-bucket-anywhere", RequestSettings())
    with pytest.raises(SettingsError, match="no-such-bucket-anywhere"):
        await store.get(KEY)
    with pytest.raises(SettingsError, match="no-such-bucket-anywhere"):
        _ = [info async for info in store.list_objects("")]
    # SeaweedFS would make the bucket, if it were allowed to.
    kind = SettingsError if server_name == "localstack" else PermissionDeniedError
    with pytest.raises(kind, match="no-such-bucket-anywhere"):
        await store.put(KEY, WHOLE)
    await store.aclose()


async def test_the_server_itself_finds_a_part_that_arrives_damaged(store: S3Store) -> None:
    upload_id = await store.multipart_create(KEY)
    with pytest.raises(DamagedError):
        await store.put_part(KEY, upload_id, PART, [b"pay1oad"], crc64nvme=crc64nvme(WHOLE))
    await store.multipart_abort(KEY, upload_id)


@pytest.mark.parametrize("server_name", ["localstack"])
async def test_the_server_keeps_the_checksum_of_the_whole(store: S3Store) -> None:
    upload_id = await store.multipart_create(KEY)
    crc = crc64nvme(WHOLE)
    etag = await store.put_part(KEY, upload_id, PART, [WHOLE], crc64nvme=crc)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=len(WHOLE), crc64nvme=crc)
    assert (await store.head(KEY)).crc64nvme == crc


@pytest.mark.parametrize("server_name", ["localstack"])
async def test_a_second_completion_is_no_failure_but_a_question(store: S3Store) -> None:
    upload_id = await store.multipart_create(KEY)
    crc = crc64nvme(WHOLE)
    etag = await store.put_part(KEY, upload_id, PART, [WHOLE], crc64nvme=crc)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=len(WHOLE), crc64nvme=crc)
    with pytest.raises(WriteOutcomeUnknownError):
        await store.multipart_complete(KEY, upload_id, [etag], size_bytes=len(WHOLE), crc64nvme=crc)


async def test_what_we_wrote_is_what_anyone_else_reads(store: S3Store, bucket: Bucket) -> None:
    """No framing, no encoding, no surprise in the metadata."""
    await store.put(KEY, WHOLE)
    answer = bucket.raw.get_object(Bucket=bucket.name, Key=KEY)
    assert answer["Body"].read() == WHOLE
    assert answer.get("ContentEncoding", "") == ""
