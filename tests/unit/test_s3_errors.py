"""What S3 and its SDK say becomes one of our errors: code by code."""

from __future__ import annotations

import errno
import ssl
from email.utils import formatdate
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from botocore import exceptions as sdk

from ckptstore.backends._checks import UploadGoneError
from ckptstore.backends.s3.errors import MEANING_OF_CODE, Call, Meaning, translated
from ckptstore.errors import (
    CredentialsExpiredError,
    DamagedError,
    LocalResourceError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    RefusedError,
    SettingsError,
    StoreError,
    ThrottledError,
    TransientStoreError,
    UnsupportedVerbError,
    WriteOutcomeUnknownError,
)
from ckptstore.types import ByteRange, Key, UploadId

CALL = Call("put", Key("data/x"), "bucket")


def said(
    code: str, status: int, call: Call = CALL, headers: dict[str, str] | None = None
) -> Exception:
    response: Any = {
        "Error": {"Code": code, "Message": "said so"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    return translated(sdk.ClientError(response, "Operation"), call)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SlowDown", 503, ThrottledError),
        ("", 503, ThrottledError),  # A load balancer's, or the answer to a HEAD.
        ("503", 503, ThrottledError),
        ("InternalError", 503, ThrottledError),  # Any 503 is throttling.
        ("TooManyRequests", 429, ThrottledError),
        ("429", 429, ThrottledError),
        ("BandwidthLimitExceeded", 509, ThrottledError),
        ("ThrottlingException", 400, ThrottledError),  # KMS answers 400.
        ("KMS.ThrottlingException", 400, ThrottledError),
        ("RequestLimitExceeded", 400, ThrottledError),
        ("InternalError", 500, TransientStoreError),
        ("InternalError", 200, TransientStoreError),  # In the body of a completion.
        ("500", 500, TransientStoreError),
        ("502", 502, TransientStoreError),
        ("504", 504, TransientStoreError),
        ("520", 520, TransientStoreError),
        ("RequestTimeout", 400, TransientStoreError),
        ("ExpiredToken", 400, CredentialsExpiredError),
        ("RequestExpired", 403, CredentialsExpiredError),
        ("InvalidToken", 400, CredentialsExpiredError),
        ("RequestTimeTooSkewed", 403, SettingsError),
        ("SignatureDoesNotMatch", 403, PermissionDeniedError),
        ("AccessDenied", 403, PermissionDeniedError),
        ("403", 403, PermissionDeniedError),
        ("InvalidAccessKeyId", 403, PermissionDeniedError),
        ("NoSuchKey", 404, ObjectNotFoundError),
        ("404", 404, ObjectNotFoundError),
        ("NoSuchBucket", 404, SettingsError),
        ("PermanentRedirect", 301, SettingsError),
        ("AuthorizationHeaderMalformed", 400, SettingsError),
        ("PreconditionFailed", 412, ObjectExistsError),
        ("412", 412, ObjectExistsError),
        ("ConditionalRequestConflict", 409, RefusedError),
        ("OperationAborted", 409, RefusedError),
        ("BadDigest", 400, DamagedError),
        ("XAmzContentChecksumMismatch", 400, DamagedError),
        ("NotImplemented", 501, UnsupportedVerbError),
        ("MethodNotAllowed", 405, UnsupportedVerbError),
        ("EntityTooLarge", 400, StoreError),
        ("InvalidPartOrder", 400, StoreError),
        ("KMS.DisabledException", 400, StoreError),
        ("SomethingNew", 400, StoreError),
    ],
)
def test_answer_becomes(code: str, status: int, kind: type[Exception]) -> None:
    error = said(code, status)
    assert type(error) is kind
    assert "said so" in str(error)
    if isinstance(error, StoreError):
        assert (error.verb, error.key) == ("put", "data/x")


@pytest.mark.parametrize("code", sorted(MEANING_OF_CODE))
def test_every_code_of_the_table_is_judged_by_itself_when_the_status_is_odd(code: str) -> None:
    error = said(code, 418)
    assert isinstance(error, StoreError | SettingsError)
    throttled = MEANING_OF_CODE[code] is Meaning.THROTTLE
    assert isinstance(error, ThrottledError) == throttled


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"x-amz-retry-after": "1500"}, 1.5),
        ({"x-amz-retry-after": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": formatdate(0, usegmt=True)}, 0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_read(headers: dict[str, str], seconds: float | None) -> None:
    error = said("SlowDown", 503, headers=headers)
    assert isinstance(error, ThrottledError)
    assert error.retry_after_s == seconds


@pytest.mark.parametrize(
    ("code", "offset_s", "way"),
    [
        ("RequestTimeTooSkewed", -1000, "1000 s ahead"),
        ("RequestTimeTooSkewed", 1000, "1000 s behind"),
        ("SignatureDoesNotMatch", 4000, "4000 s behind"),
    ],
)
def test_a_wrong_clock_is_measured(
    code: str, offset_s: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptstore.clock.SystemClock.unix_s", lambda _: 1_800_000_000.0)
    date = formatdate(1_800_000_000 + offset_s, usegmt=True)
    error = said(code, 403, headers={"date": date})
    assert isinstance(error, SettingsError)
    assert way in str(error)


def test_a_missing_bucket_says_what_to_do() -> None:
    assert "create it" in str(said("NoSuchBucket", 404))


def test_a_bucket_elsewhere_names_its_region() -> None:
    error = said("PermanentRedirect", 301, headers={"x-amz-bucket-region": "eu-central-1"})
    assert "eu-central-1" in str(error)


def test_a_lost_upload_depends_on_what_was_asked() -> None:
    def gone(verb: str) -> Exception:
        return said("NoSuchUpload", 404, Call(verb, Key("data/x"), "bucket", UploadId("u")))

    assert type(gone("put_part")) is UploadGoneError
    assert type(gone("multipart_complete")) is WriteOutcomeUnknownError


def test_damage_of_the_whole_is_a_refusal_to_complete() -> None:
    call = Call("multipart_complete", Key("data/x"), "bucket", UploadId("u"))
    error = said("BadDigest", 400, call)
    assert type(error) is StoreError
    assert "not completed" in str(error)


def test_a_range_past_the_end_names_it() -> None:
    call = Call("get_into", Key("data/x"), "bucket", byte_range=ByteRange(8, 12))
    error = said("InvalidRange", 416, call)
    assert isinstance(error, StoreError)
    assert not error.retryable
    assert "8 to 12" in str(error)


def test_a_head_without_a_reason_may_be_an_expired_token() -> None:
    error = said("400", 400, Call("head", Key("data/x"), "bucket"))
    assert isinstance(error, CredentialsExpiredError)


def connector_error(kind: type[aiohttp.ClientConnectorError], cause: OSError) -> OSError:
    return kind(Mock(), cause)


URL = "http://localhost:1"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            sdk.EndpointConnectionError(
                endpoint_url=URL,
                error=connector_error(aiohttp.ClientConnectorError, ConnectionRefusedError()),
            ),
            RefusedError,
        ),
        (
            sdk.EndpointConnectionError(
                endpoint_url=URL, error=aiohttp.ClientOSError(errno.ECONNRESET, "reset")
            ),
            TransientStoreError,
        ),
        (sdk.ConnectTimeoutError(endpoint_url=URL), RefusedError),
        (sdk.ProxyConnectionError(proxy_url=URL), RefusedError),
        (sdk.ReadTimeoutError(endpoint_url=URL), TransientStoreError),
        (sdk.ConnectionClosedError(endpoint_url=URL), TransientStoreError),
        (sdk.HTTPClientError(error=OSError("broken")), TransientStoreError),
        (sdk.SSLError(endpoint_url=URL, error=ssl.SSLError("eof")), TransientStoreError),
        (sdk.ResponseStreamingError(error="cut"), TransientStoreError),
        (sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2), TransientStoreError),
        (aiohttp.ClientPayloadError("cut"), TransientStoreError),
        (aiohttp.ServerDisconnectedError(), TransientStoreError),
        (aiohttp.ClientConnectionError("cut"), TransientStoreError),
        (TimeoutError(), TransientStoreError),
        (ConnectionResetError(), TransientStoreError),
        (sdk.NoCredentialsError(), CredentialsExpiredError),
        (
            sdk.CredentialRetrievalError(provider="sso", error_msg="expired"),
            CredentialsExpiredError,
        ),
        (sdk.UnauthorizedSSOTokenError(), CredentialsExpiredError),
        (sdk.ParamValidationError(report="what"), StoreError),
        (
            sdk.SSLError(
                endpoint_url=URL,
                error=aiohttp.ClientConnectorCertificateError(
                    Mock(), ssl.SSLCertVerificationError("self-signed")
                ),
            ),
            SettingsError,
        ),
        (
            sdk.EndpointConnectionError(
                endpoint_url=URL,
                error=connector_error(
                    aiohttp.ClientConnectorError, OSError(errno.EMFILE, "Too many open files")
                ),
            ),
            LocalResourceError,
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_failure_to_get_an_answer_becomes(error: Exception, kind: type[Exception]) -> None:
    assert type(translated(error, CALL)) is kind


@pytest.mark.parametrize("bug", [RuntimeError("Event loop is closed"), TypeError("a bug")])
def test_a_bug_is_not_taken_for_the_network(bug: Exception) -> None:
    assert translated(sdk.HTTPClientError(error=bug), CALL) is bug


def test_what_is_not_of_the_sdk_comes_back_as_it_was() -> None:
    bug = ValueError("ours")
    assert translated(bug, CALL) is bug
