"""What S3 and its SDK say, in our words: translated once, here.

Servers differ in their codes, so a code that is not in the table is judged by its status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any, Final

import aiohttp
from botocore import exceptions as sdk

from ckptstore.backends._checks import no_such_upload, past_the_end, refused_completion
from ckptstore.backends._diagnose import RESOURCE_ERRNOS, resource_error
from ckptstore.clock import SystemClock
from ckptstore.errors import (
    CredentialsExpiredError,
    DamagedError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    RefusedError,
    SettingsError,
    StoreError,
    ThrottledError,
    TransientStoreError,
    UnsupportedVerbError,
)
from ckptstore.types import ByteRange, Key, UploadId

SKEW_S_MAX: Final = 300.0  # S3 allows 15 minutes; a clock that is off by 5 is wrong already.


class Meaning(Enum):
    THROTTLE = auto()
    SERVER = auto()
    AUTH_EXPIRED = auto()
    SIGNATURE = auto()
    SKEW = auto()
    DENIED = auto()
    NO_OBJECT = auto()
    NO_BUCKET = auto()
    NO_UPLOAD = auto()
    REGION = auto()
    EXISTS = auto()
    CONFLICT = auto()
    CORRUPT = auto()
    PAST_THE_END = auto()
    UNSUPPORTED = auto()
    LOCKED = auto()
    ARCHIVED = auto()
    PERMANENT = auto()


MEANING_OF_CODE: Final[dict[str, Meaning]] = {
    code: meaning
    for meaning, codes in {
        Meaning.THROTTLE: (
            "SlowDown Throttling ThrottlingException ThrottledException RequestThrottled "
            "RequestThrottledException TooManyRequests TooManyRequestsException "
            "RequestLimitExceeded BandwidthLimitExceeded LimitExceededException "
            "ProvisionedThroughputExceededException PriorRequestNotComplete "
            "EC2ThrottledException ServiceUnavailable"
        ),
        Meaning.SERVER: "InternalError RequestTimeout RequestTimeoutException",
        Meaning.AUTH_EXPIRED: (
            "ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired InvalidToken"
        ),
        Meaning.SIGNATURE: "SignatureDoesNotMatch",
        Meaning.SKEW: "RequestTimeTooSkewed",
        Meaning.DENIED: (
            "AccessDenied InvalidAccessKeyId AllAccessDisabled AccountProblem Forbidden"
        ),
        Meaning.NO_OBJECT: "NoSuchKey",
        Meaning.NO_BUCKET: "NoSuchBucket InvalidBucketName",
        Meaning.NO_UPLOAD: "NoSuchUpload",
        Meaning.REGION: "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraint",
        Meaning.EXISTS: "PreconditionFailed",
        Meaning.CONFLICT: "ConditionalRequestConflict OperationAborted",
        Meaning.CORRUPT: (
            "BadDigest InvalidDigest XAmzContentSHA256Mismatch XAmzContentChecksumMismatch "
            "IncompleteBody"
        ),
        Meaning.PAST_THE_END: "InvalidRange",
        Meaning.UNSUPPORTED: "NotImplemented MethodNotAllowed",
        Meaning.LOCKED: "ObjectLocked",
        Meaning.ARCHIVED: "InvalidObjectState",
        Meaning.PERMANENT: (
            "EntityTooLarge EntityTooSmall InvalidPart InvalidPartOrder TooManyParts "
            "InvalidRequest InvalidArgument MalformedXML KeyTooLongError"
        ),
    }.items()
    for code in codes.split()
}

_LOCK: Final = re.compile(r"object lock|\bWORM\b|legal hold", re.IGNORECASE)
MEANING_OF_STATUS: Final[dict[int, Meaning]] = {
    301: Meaning.REGION,
    403: Meaning.DENIED,
    404: Meaning.NO_OBJECT,
    405: Meaning.UNSUPPORTED,
    409: Meaning.CONFLICT,
    412: Meaning.EXISTS,
    416: Meaning.PAST_THE_END,
    429: Meaning.THROTTLE,
    500: Meaning.SERVER,
    501: Meaning.UNSUPPORTED,
    502: Meaning.SERVER,
    503: Meaning.THROTTLE,
    504: Meaning.SERVER,
    509: Meaning.THROTTLE,
}


def meaning_of(code: str, status: int) -> Meaning:
    """Return what an answer means, by its code if that is known, else by its status."""
    if code.startswith("KMS."):
        return Meaning.THROTTLE if "Throttl" in code else Meaning.PERMANENT
    fallback = Meaning.SERVER if status >= 500 else Meaning.PERMANENT
    known = MEANING_OF_CODE.get(code)
    if known is None or status in (429, 503, 509):  # Any 503 is throttling, whatever it says.
        return MEANING_OF_STATUS.get(status, fallback)
    return known


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of whom; for the messages, and because some codes depend on it."""

    verb: str
    key: Key
    bucket: str
    upload_id: UploadId | None = None
    byte_range: ByteRange | None = None


def translated(error: Exception, call: Call) -> Exception:
    """Return what to raise for what the SDK raised; a bug of ours comes back as it was."""
    inner = getattr(error, "kwargs", {}).get("error")
    if isinstance(inner, RuntimeError | TypeError):  # A wrong event loop, say. Not the network.
        return inner
    if isinstance(error, sdk.ClientError):
        return _answer(error, call)
    if isinstance(error, _NO_CREDENTIALS):
        return CredentialsExpiredError(f"no credentials: {error}", verb=call.verb, key=call.key)
    if isinstance(error, _BROKEN):
        return _broken(error, inner, call)
    if isinstance(error, sdk.BotoCoreError):
        return StoreError(f"{type(error).__name__}: {error}", verb=call.verb, key=call.key)
    return error


_NO_CREDENTIALS: Final = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.UnauthorizedSSOTokenError,
)
_BROKEN: Final = (
    sdk.ConnectionError,
    sdk.HTTPClientError,
    sdk.IncompleteReadError,
    sdk.ResponseStreamingError,
    aiohttp.ClientError,  # What breaks while a body streams reaches us raw.
    OSError,
)


def _broken(error: Exception, inner: object, call: Call) -> Exception:
    """Return what to raise when there was no answer, or only part of one."""
    cause = inner if isinstance(inner, OSError) else error
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return SettingsError(
            f"the certificate of the S3 endpoint is not trusted ({cause}); set AWS_CA_BUNDLE to "
            "the bundle that it is signed with"
        )
    if isinstance(cause, OSError) and cause.errno in RESOURCE_ERRNOS:
        doing = f"connecting to S3 for {call.verb} {call.key}"
        return resource_error(cause, "/", doing=doing, need_bytes=0)
    detail = f"the connection failed: {type(cause).__name__}: {cause}"
    never_sent = isinstance(cause, aiohttp.ClientConnectorError) or isinstance(
        error, sdk.ConnectTimeoutError | sdk.ProxyConnectionError
    )
    kind = RefusedError if never_sent else TransientStoreError
    return kind(detail, verb=call.verb, key=call.key)


def _answer(error: Any, call: Call) -> Exception:  # noqa: ANN401 (a ClientError; no types there)
    """Return what to raise for an answer that is not a success."""
    response = error.response
    said = response.get("Error", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    code = str(said.get("Code", ""))
    detail = f"{code or status}: {said.get('Message') or 'no message'} [HTTP {status}]"
    meaning = meaning_of(code, status)
    if meaning is Meaning.DENIED and _LOCK.search(detail):  # AWS has no code of its own for it.
        meaning = Meaning.LOCKED
    if call.verb == "head" and status == 400:  # A HEAD has no body to say why.
        meaning, detail = Meaning.AUTH_EXPIRED, f"{detail}: what an expired token looks like"
    return _in_our_words(meaning, detail, call, headers, said)


def _in_our_words(
    meaning: Meaning, detail: str, call: Call, headers: dict[str, str], said: dict[str, Any]
) -> Exception:
    at = {"verb": call.verb, "key": call.key}
    skew_s = _skew_s(headers)
    match meaning:
        case Meaning.THROTTLE:
            return ThrottledError(detail, retry_after_s=_retry_after_s(headers), **at)
        case Meaning.NO_BUCKET:
            return SettingsError(
                f"there is no bucket {call.bucket!r} ({detail}); check its name, the region and "
                "the endpoint, or create it: this program never does"
            )
        case Meaning.DENIED:
            return PermissionDeniedError(f"not allowed in bucket {call.bucket!r}: {detail}", **at)
        case Meaning.REGION:
            region = said.get("Region") or headers.get("x-amz-bucket-region") or "another region"
            return SettingsError(
                f"the bucket {call.bucket!r} is in {region} ({detail}); set AWS_REGION"
            )
        case Meaning.SKEW | Meaning.SIGNATURE if (
            meaning is Meaning.SKEW or abs(skew_s) > SKEW_S_MAX
        ):
            way = "ahead" if skew_s < 0 else "behind"
            return SettingsError(
                f"the clock of this machine is {abs(skew_s):.0f} s {way} of the store's "
                f"({detail}); set it right"
            )
        case Meaning.NO_UPLOAD if call.upload_id is not None:
            return no_such_upload(call.verb, call.key, call.upload_id)
        case Meaning.PAST_THE_END if call.byte_range is not None:
            return past_the_end(call.key, call.byte_range, None)
        # Nothing is conditional in a completion: GCS says so of a checksum that it does not like.
        case Meaning.CORRUPT | Meaning.EXISTS if call.verb == "multipart_complete":
            return refused_completion(call.key, detail)
        case _:
            advice = _ADVICE.get(meaning, "")
            return _CLASSES.get(meaning, StoreError)(advice + detail, **at)


_CLASSES: Final[dict[Meaning, type[StoreError]]] = {
    Meaning.SERVER: TransientStoreError,
    Meaning.AUTH_EXPIRED: CredentialsExpiredError,
    Meaning.SIGNATURE: PermissionDeniedError,
    Meaning.NO_OBJECT: ObjectNotFoundError,
    Meaning.EXISTS: ObjectExistsError,
    Meaning.CONFLICT: RefusedError,
    Meaning.CORRUPT: DamagedError,
    Meaning.UNSUPPORTED: UnsupportedVerbError,
    Meaning.LOCKED: PermissionDeniedError,
}
_ADVICE: Final = {
    Meaning.LOCKED: (
        "the object is locked, and nobody may change or delete it before its retention ends or "
        "its legal hold is lifted: "
    ),
    Meaning.ARCHIVED: (
        "the object was archived by a lifecycle rule; restore it with the store's own tools, "
        "then try again: "
    ),
}


def _retry_after_s(headers: dict[str, str]) -> float | None:
    """Return how long the store asked us to wait: milliseconds, seconds, or until when."""
    text = headers.get("x-amz-retry-after", "")
    if text.isdigit():
        return int(text) / 1000
    text = headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    until_unix_s = _unix_s(text)
    return None if until_unix_s is None else max(0.0, until_unix_s - SystemClock().unix_s())


def _skew_s(headers: dict[str, str]) -> float:
    """Return by how many seconds the store's clock is ahead of ours; 0 if it does not say."""
    theirs_unix_s = _unix_s(headers.get("date", ""))
    return 0.0 if theirs_unix_s is None else theirs_unix_s - SystemClock().unix_s()


def _unix_s(http_date: str) -> float | None:
    try:
        return parsedate_to_datetime(http_date).timestamp()
    except ValueError:
        return None
