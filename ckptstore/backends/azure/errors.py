"""What Azure and its SDK say, in our words: translated once, here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientConnectorError, ClientError
from azure.core import exceptions as sdk

from ckptstore.backends._checks import no_such_upload, past_the_end
from ckptstore.backends._diagnose import RESOURCE_ERRNOS, resource_error
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

_SIGNATURE: Final = re.compile(r"(sig=)[^&\s'\"]+", re.IGNORECASE)
_SKEWED: Final = re.compile(r"date header|too old|RequestTimeTooSkewed", re.IGNORECASE)
_EXPIRED: Final = re.compile(r"time frame|expir", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of whom; for the messages, and because some codes depend on it."""

    verb: str
    key: Key
    container: str
    upload_id: UploadId | None = None
    byte_range: ByteRange | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not a success."""

    status: int
    code: str
    detail: str  # Its message, and for a failed authentication the reason.
    retry_after: str = ""


_CLASSES_OF_CODE: Final[dict[str, type[StoreError]]] = {
    "BlobNotFound": ObjectNotFoundError,
    "BlobAlreadyExists": ObjectExistsError,
    "ConditionNotMet": ObjectExistsError,
    "BlobOverwritten": ObjectExistsError,
    "InvalidMd5": DamagedError,
    "Md5Mismatch": DamagedError,
    "Crc64Mismatch": DamagedError,
    "InternalError": TransientStoreError,
}
_CLASSES_OF_STATUS: Final[dict[int, type[StoreError]]] = {
    401: CredentialsExpiredError,
    403: PermissionDeniedError,
    404: ObjectNotFoundError,
    405: UnsupportedVerbError,
    408: TransientStoreError,
    412: ObjectExistsError,
    501: UnsupportedVerbError,
}
_THROTTLING: Final = frozenset({"ServerBusy", "OperationTimedOut"})
_NO_CONTAINER: Final = frozenset(
    {"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
)


def refused(refusal: Refusal, call: Call) -> Exception:
    """Return what to raise for an answer that is not a success."""
    status, code = refusal.status, refusal.code
    detail = without_secrets(f"{code or status}: {refusal.detail or 'no message'} [HTTP {status}]")
    at = {"verb": call.verb, "key": call.key}
    if status in (429, 503) or code in _THROTTLING:
        after = refusal.retry_after
        return ThrottledError(detail, retry_after_s=float(after) if after.isdigit() else None, **at)
    if code in _NO_CONTAINER:
        return SettingsError(
            f"there is no container {call.container!r} ({detail}); check its name and the "
            "account, or create it: this program never does"
        )
    if code == "AuthenticationFailed":
        return _unauthenticated(refusal.detail, detail, at)
    if code == "InvalidRange" and call.byte_range is not None:
        return past_the_end(call.key, call.byte_range, None)
    if code == "InvalidBlockList" and call.upload_id is not None:
        return no_such_upload(call.verb, call.key, call.upload_id)
    fallback = TransientStoreError if status >= 500 else StoreError
    kind = _CLASSES_OF_CODE.get(code) or _CLASSES_OF_STATUS.get(status, fallback)
    return kind(detail, **at)


def _unauthenticated(why: str, detail: str, at: dict[str, str]) -> Exception:
    if _SKEWED.search(why):
        return SettingsError(f"the clock of this machine is off the store's ({detail}); set it")
    if _EXPIRED.search(why):
        return CredentialsExpiredError(detail, **at)
    return PermissionDeniedError(f"the credentials are not accepted: {detail}", **at)


def translated(error: Exception, call: Call) -> Exception:
    """Return what to raise for what the SDK raised; a bug of ours comes back as it was."""
    cause = getattr(error, "inner_exception", None) or error
    at = {"verb": call.verb, "key": call.key}
    detail = without_secrets(f"{type(cause).__name__}: {cause}")
    if isinstance(cause, OSError) and cause.errno in RESOURCE_ERRNOS:
        doing = f"connecting to Azure for {call.verb} {call.key}"
        return resource_error(cause, "/", doing=doing, need_bytes=0)
    if isinstance(error, sdk.ClientAuthenticationError):
        return PermissionDeniedError(f"no credentials: {detail}", **at)
    if isinstance(cause, ClientConnectorError) or isinstance(error, sdk.ServiceRequestTimeoutError):
        return RefusedError(f"the connection failed: {detail}", **at)
    if isinstance(
        error, sdk.ServiceRequestError | sdk.ServiceResponseError | sdk.DecodeError
    ) or isinstance(cause, ClientError | ConnectionError | TimeoutError):
        return TransientStoreError(f"the connection failed: {detail}", **at)
    if isinstance(error, sdk.AzureError):
        return StoreError(detail, **at)
    return error


def without_secrets(text: str) -> str:
    """Return ``text`` with the signatures of shared access tokens blacked out."""
    return _SIGNATURE.sub(r"\1...", text)
