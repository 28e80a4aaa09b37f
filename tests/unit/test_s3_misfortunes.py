"""Misfortunes as servers tell them, met by the whole client: what is tried again or said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.utils import formatdate
from pathlib import Path

import pytest

from ckptstore.backends.s3.store import open_s3_store
from ckptstore.clock import SystemClock
from ckptstore.errors import (
    CkptStoreError,
    CredentialsExpiredError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    SettingsError,
    StoreError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.layers.retry import RetryLayer
from ckptstore.settings import RetrySettings, TransferSettings
from ckptstore.store import ObjectStore
from ckptstore.types import MIB, Buffer, ByteRange, Key, Part, UploadId
from ckptstore.upload.uploader import Uploader
from tests.unit.s3_stub import QUICK, Behaviour, Stub, answer, refusal, stub_store
from tests.unit.test_s3_requests import COMPLETED, CREATED, access_key_of, credentials_file
from tests.world import BytesShard

KEY = Key("data/x")
UPLOAD = UploadId("u1")
DATA = b"0123456789"
PART = Part(0, ByteRange(0, len(DATA)))
OK = answer(200, ETag='"e"')
RETRY = RetrySettings(backoff_s_first=0.001, backoff_s_max=0.01, backoff_s_throttled_max=0.01)


async def send_part(store: ObjectStore) -> str:
    return await store.put_part(KEY, UPLOAD, PART, [DATA], crc64nvme=crc64nvme(DATA))


async def complete(store: ObjectStore, etag: str) -> None:
    await store.multipart_complete(
        KEY, UPLOAD, [etag], size_bytes=len(DATA), crc64nvme=crc64nvme(DATA)
    )


# credentials


async def test_a_part_whose_credentials_expired_is_replayed_once_and_never_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "credentials"
    expired = refusal(400, "ExpiredToken")
    async with stub_store(monkeypatch, expired, OK, expired, expired) as (stub, _):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", credentials_file(path, "OLD"))
        store = RetryLayer(await open_s3_store("bucket", QUICK), RETRY)
        credentials_file(path, "NEW")
        await send_part(store)
        assert [access_key_of(asked) for asked in stub.asked] == ["OLD", "NEW"]
        assert [asked.body for asked in stub.asked] == [DATA, DATA]
        with pytest.raises(CredentialsExpiredError):
            await send_part(store)
        assert len(stub.asked) == 4
        await store.aclose()


# throttling


@pytest.mark.parametrize(
    "throttled",
    [
        refusal(503, "SlowDown"),
        answer(503),
        answer(503, b"<html>busy</html>"),
        answer(429, Retry_After="0"),
        refusal(429, "TooManyRequests", Retry_After="0"),
        refusal(400, "ThrottlingException"),
        refusal(400, "KMS.ThrottlingException"),
        refusal(503, "SlowDown", x_amz_retry_after="5"),
    ],
    ids=["503", "no body", "html", "429", "429 xml", "kms 400", "kms code", "milliseconds"],
)
async def test_throttling_is_understood_in_every_dialect(
    monkeypatch: pytest.MonkeyPatch, throttled: Behaviour
) -> None:
    async with stub_store(monkeypatch, throttled, throttled, OK) as (stub, backend):
        await send_part(RetryLayer(backend, RETRY))
        assert [asked.body for asked in stub.asked] == [DATA, DATA, DATA]


SLOW_DOWN = b"\n<Error><Code>SlowDown</Code><Message>slower</Message></Error>"
BROKEN = b"\n\n<Error><Code>InternalError</Code><Message>sorry</Message></Error>"


async def test_a_completion_throttled_in_the_body_of_a_success_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, OK, answer(200, SLOW_DOWN), answer(200, COMPLETED)) as (
        stub,
        backend,
    ):
        store = RetryLayer(backend, RETRY)
        await complete(store, await send_part(store))
        assert [asked.method for asked in stub.asked] == ["PUT", "POST", "POST"]


# completions that leave it open


class WholeShard(BytesShard):
    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return [memoryview(self.data)[byte_range.start : byte_range.stop]]


SHARD = WholeShard(bytes(5 * MIB) + b"the rest")
PARTS = TransferSettings(block_size_bytes=MIB, part_size_bytes=5 * MIB, in_flight_bytes_max=5 * MIB)
GONE = refusal(404, "NoSuchUpload")
CREATE_AND_SEND = (answer(200, CREATED), OK, OK)


async def upload(
    monkeypatch: pytest.MonkeyPatch, *completing: Behaviour
) -> tuple[CkptStoreError | None, Stub]:
    """Upload a shard of two parts, whose completion goes as scripted; return what was raised."""
    async with stub_store(monkeypatch, *CREATE_AND_SEND, *completing) as (stub, backend):
        try:
            await Uploader(RetryLayer(backend, RETRY), PARTS).upload([(KEY, SHARD)])
        except CkptStoreError as error:
            return error, stub
        return None, stub


def there(data: bytes) -> Behaviour:
    return answer(200, data, ETag='"e"')


@pytest.mark.parametrize(
    "completing",
    [
        (refusal(503, "SlowDown"), GONE),  # The first one did it, whatever it said.
        (GONE,),
        (answer(200, BROKEN),),
        (refusal(500, "InternalError"),),  # Ceph's way to say that it knows no such upload.
    ],
    ids=["after a refusal", "at once", "in a success", "500"],
)
@pytest.mark.parametrize("landed", [True, False])
async def test_whether_a_completion_landed_is_seen_by_looking(
    monkeypatch: pytest.MonkeyPatch, completing: tuple[Behaviour, ...], landed: bool
) -> None:
    looked = there(SHARD.data) if landed else answer(404)
    after = () if landed else (answer(204),)  # What is not there is aborted.
    error, stub = await upload(monkeypatch, *completing, looked, *after)
    if landed:
        assert error is None
    else:
        assert isinstance(error, ObjectNotFoundError)
    asked = [one.method for one in stub.asked[3:]]
    assert asked == ["POST"] * len(completing) + ["HEAD"] + ["DELETE"] * len(after)


async def test_something_else_under_the_key_is_not_our_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error, _ = await upload(monkeypatch, GONE, there(b"something else"), answer(204))
    assert "is gone" in str(error)


async def test_a_refused_precondition_that_nobody_set_is_no_lost_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error, _ = await upload(monkeypatch, refusal(412, "PreconditionFailed"), answer(204))
    assert isinstance(error, StoreError)
    assert not isinstance(error, ObjectExistsError)
    assert "not completed: PreconditionFailed" in str(error)


# what no retry helps


def an_hour_ago() -> str:
    return formatdate(SystemClock().unix_s() - 3600, usegmt=True)


@pytest.mark.parametrize(
    ("refused", "kind", "said"),
    [
        (
            lambda: refusal(403, "RequestTimeTooSkewed", Date=an_hour_ago()),
            SettingsError,
            r"this machine is (3600|3601|3599) s ahead of the store's",
        ),
        (
            lambda: answer(
                403,
                b"<Error><Code>AccessDenied</Code><Message>Access Denied because object "
                b"protected by object lock.</Message></Error>",
            ),
            PermissionDeniedError,
            "locked, and nobody may change or delete it",
        ),
        (
            lambda: answer(
                400,
                b"<Error><Code>ObjectLocked</Code><Message>Object is WORM protected and cannot "
                b"be overwritten</Message></Error>",
            ),
            PermissionDeniedError,
            "locked, and nobody may change or delete it",
        ),
        (lambda: refusal(403, "InvalidObjectState"), StoreError, "archived by a lifecycle rule"),
    ],
    ids=["skew", "locked", "worm", "archived"],
)
async def test_what_no_retry_helps_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[[], Behaviour],
    kind: type[Exception],
    said: str,
) -> None:
    async with stub_store(monkeypatch, refused()) as (stub, backend):
        with pytest.raises(kind, match=said):
            await RetryLayer(backend, RETRY).delete(KEY)
        assert len(stub.asked) == 1


async def test_a_bucket_elsewhere_is_looked_for_once_and_then_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SDK follows the first redirect by itself, to the region that it names."""
    elsewhere = refusal(301, "PermanentRedirect", x_amz_bucket_region="eu-central-1")
    async with stub_store(monkeypatch, elsewhere, elsewhere) as (stub, backend):
        with pytest.raises(SettingsError, match="is in eu-central-1 .* set AWS_REGION"):
            await RetryLayer(backend, RETRY).delete(KEY)
        regions = [asked.headers["authorization"].split("/")[2] for asked in stub.asked]
        assert regions == ["us-east-1", "eu-central-1"]
