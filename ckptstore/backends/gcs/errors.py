"""What Cloud Storage and Google's libraries say, in our words: translated once, here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http.client import HTTPException
from typing import Any, Final

import requests
from google.auth import exceptions as auth
from urllib3 import exceptions as wire

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
    StalledError,
    StoreError,
    ThrottledError,
    TransientStoreError,
    UnsupportedVerbError,
)
from ckptstore.types import ByteRange, Key, UploadId


class Meaning(Enum):
    THROTTLE = auto()
    SERVER = auto()
    AUTH_EXPIRED = auto()
    DENIED = auto()
    NOT_FOUND = auto()
    NO_BUCKET = auto()
    PRECONDITION = auto()
    CONFLICT = auto()
    CORRUPT = auto()
    PAST_THE_END = auto()
    UNSUPPORTED = auto()
    PERMANENT = auto()


MEANING_OF_STATUS: Final[dict[int, Meaning]] = {
    304: Meaning.PRECONDITION,
    401: Meaning.AUTH_EXPIRED,
    403: Meaning.DENIED,
    404: Meaning.NOT_FOUND,
    408: Meaning.SERVER,
    409: Meaning.CONFLICT,
    410: Meaning.SERVER,  # What the request hung on is gone; a new request has a new one.
    412: Meaning.PRECONDITION,
    416: Meaning.PAST_THE_END,
    429: Meaning.THROTTLE,
    501: Meaning.UNSUPPORTED,
    503: Meaning.THROTTLE,
}
MEANING_OF_REASON: Final[dict[str, Meaning]] = {
    reason: meaning
    for meaning, reasons in {
        Meaning.THROTTLE: "rateLimitExceeded userRateLimitExceeded",  # Also with status 403.
        Meaning.CORRUPT: "InvalidDigest BadDigest CrcMismatch",
    }.items()
    for reason in reasons.split()
}
NO_BUCKET_SAID: Final = "bucket does not exist"
CRC_SAID: Final = "crc32c"  # "Provided CRC32C ... doesn't match calculated CRC32C ..."


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of whom; for the messages, and because some answers depend on it."""

    verb: str
    key: Key
    bucket: str
    upload_id: UploadId | None = None
    byte_range: ByteRange | None = None


def meaning_of(status: int, reason: str, message: str) -> Meaning:
    """Return what an answer that is not a success means."""
    known = MEANING_OF_REASON.get(reason)
    if known is not None:
        return known
    if status == 400 and CRC_SAID in message.lower():
        return Meaning.CORRUPT
    if status == 404 and NO_BUCKET_SAID in message.lower():
        return Meaning.NO_BUCKET
    fallback = Meaning.SERVER if status >= 500 else Meaning.PERMANENT
    return MEANING_OF_STATUS.get(status, fallback)


def answered(answer: requests.Response, call: Call) -> Exception:
    """Return what to raise for an answer that is not a success; reads its body."""
    reason, message = _said(answer)
    meaning = meaning_of(answer.status_code, reason, message)
    if meaning is Meaning.NOT_FOUND and call.verb in _BUCKET_ALONE:
        meaning = Meaning.NO_BUCKET  # Nothing else can be missing there.
    detail = f"{reason or answer.reason}: {message or 'no message'} [HTTP {answer.status_code}]"
    return _in_our_words(meaning, detail, call, answer.headers.get("Retry-After", ""))


_BUCKET_ALONE: Final = ("put", "multipart_create", "put_part", "list_objects", "list_uploads")


def _said(answer: requests.Response) -> tuple[str, str]:
    """Return reason and message: of JSON, and of plain text as media requests get it."""
    text = answer.text.strip()
    try:
        said = json.loads(text)["error"]
        first: dict[str, Any] = next(iter(said.get("errors", ())), {})
        return str(first.get("reason", "")), str(said.get("message", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return "", text[:300]


def _in_our_words(meaning: Meaning, detail: str, call: Call, retry_after: str) -> Exception:
    at = {"verb": call.verb, "key": call.key}
    completing = call.verb == "multipart_complete"
    match meaning:
        case Meaning.THROTTLE:
            return ThrottledError(detail, retry_after_s=_retry_after_s(retry_after), **at)
        case Meaning.NO_BUCKET:
            return SettingsError(
                f"there is no bucket {call.bucket!r} ({detail}); check its name and the "
                "credentials, or create it: this program never does"
            )
        case Meaning.DENIED:
            return PermissionDeniedError(f"not allowed in bucket {call.bucket!r}: {detail}", **at)
        case Meaning.NOT_FOUND if call.upload_id is not None:
            return no_such_upload(call.verb, call.key, call.upload_id)
        case Meaning.PAST_THE_END if call.byte_range is not None:
            return past_the_end(call.key, call.byte_range, None)
        case Meaning.CORRUPT | Meaning.PRECONDITION if completing:
            return refused_completion(call.key, detail)
        case _:
            return _CLASSES.get(meaning, StoreError)(detail, **at)


_CLASSES: Final[dict[Meaning, type[StoreError]]] = {
    Meaning.SERVER: TransientStoreError,
    Meaning.AUTH_EXPIRED: CredentialsExpiredError,
    Meaning.NOT_FOUND: ObjectNotFoundError,
    Meaning.PRECONDITION: ObjectExistsError,
    Meaning.CONFLICT: RefusedError,
    Meaning.CORRUPT: DamagedError,
    Meaning.UNSUPPORTED: UnsupportedVerbError,
}


def translated(error: Exception, call: Call) -> Exception:
    """Return what to raise for what a library raised; a bug of ours comes back as it was."""
    at = {"verb": call.verb, "key": call.key}
    said = f"{type(error).__name__}: {error}"
    match error:
        case auth.TransportError():
            return RefusedError(f"no token, the connection failed: {said}", **at)
        case auth.RefreshError():
            kind = RefusedError if error.retryable else CredentialsExpiredError
            return kind(f"no token: {said}", **at)
        case auth.GoogleAuthError():
            return SettingsError(f"the Google Cloud credentials cannot be used: {said}")
        case requests.RequestException() | wire.HTTPError() | HTTPException() | OSError():
            return _broken(error, said, call)
        case _:
            return error


def _broken(error: Exception, said: str, call: Call) -> Exception:
    """Return what to raise for a request whose connection did not hold."""
    at = {"verb": call.verb, "key": call.key}
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in RESOURCE_ERRNOS:
            doing = f"connecting to Cloud Storage for {call.verb} {call.key}"
            return resource_error(cause, "/", doing=doing, need_bytes=0)
    if isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE" in said:
        return SettingsError(
            f"the certificate of the endpoint is not trusted ({said}); set REQUESTS_CA_BUNDLE to "
            "the bundle that it is signed with"
        )
    if any(isinstance(cause, _NEVER_SENT) for cause in causes):
        return RefusedError(f"no connection: {said}", **at)
    if any(isinstance(cause, _SILENT) for cause in causes):
        return StalledError(f"nothing moved for too long; its connection was closed: {said}", **at)
    if isinstance(error, _MISUSED):
        return SettingsError(f"the endpoint cannot be used: {said}")
    return TransientStoreError(f"the connection failed: {said}", **at)


_NEVER_SENT: Final = (wire.NewConnectionError, wire.ConnectTimeoutError, requests.ConnectTimeout)
_SILENT: Final = (TimeoutError, wire.TimeoutError, requests.Timeout)
_MISUSED: Final = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and what is behind it: libraries wrap errors as causes and as arguments."""
    found: list[BaseException] = []
    left: list[object] = [error]
    while left:
        one = left.pop()
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            left += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return found


def _retry_after_s(text: str) -> float | None:
    """Return how long the store asked us to wait: seconds, or until when."""
    if text.isdigit():
        return float(text)
    try:
        until_unix_s = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
    return max(0.0, until_unix_s - SystemClock().unix_s())
