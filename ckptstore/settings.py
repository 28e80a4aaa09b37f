"""Settings: frozen, comparable, printable. Components (stores, clocks) never live here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ckptstore.errors import UsageError
from ckptstore.types import MIB

COMPRESS_VARIABLE: Final = "CKPTSTORE_COMPRESS"
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("", "0", "false", "no", "off")

ADDRESSING_STYLES: Final = ("auto", "path", "virtual")
FSYNC_POLICIES: Final = ("always", "data", "never")
ENCRYPTIONS: Final = ("AES256", "aws:kms", "aws:kms:dsse")
OFFLINE_CLASSES: Final = ("GLACIER", "DEEP_ARCHIVE")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How long to go on trying one request, for each kind of misfortune.

    Throttling has the longer budget: a bucket may take up to an hour to split a hot prefix,
    and meanwhile the only cure is to ask less often.
    """

    fault_s_max: float = 120.0
    throttle_s_max: float = 1800.0
    backoff_s_first: float = 0.1
    backoff_s_max: float = 20.0
    backoff_s_throttled_max: float = 0.5  # The pace of all requests together does the rest.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """Limits on requests. ``stall_s_max`` is how long a request may go without moving a byte."""

    in_flight_max: int = 32
    connect_s_max: float = 10.0
    stall_s_max: float = 30.0
    answer_s_max: float = 60.0  # From the last byte sent to the first byte of the answer.
    complete_s_max: float = 600.0  # S3 may take minutes to join the parts of a large object.


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Compress every block with zstd, where that makes it smaller, before it is sent.

    ``level`` 1 is as good as any for weights: higher ones cost more and bring nothing.
    """

    level: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 19:
            raise UsageError(f"the level of compression must be from 1 to 19: {self.level}")


def compression_wished() -> Compression | None:
    """Return what the environment says: ``CKPTSTORE_COMPRESS=1``, or nothing."""
    wish = os.environ.get(COMPRESS_VARIABLE, "").strip().lower()
    if wish not in (*_YES, *_NO):
        raise UsageError(f"{COMPRESS_VARIABLE} must be 1 or 0: {wish!r}")
    return Compression() if wish in _YES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """How bytes are cut and how many are under way at once."""

    block_size_bytes: int = 4 * MIB
    part_size_bytes: int = 16 * MIB
    in_flight_bytes_max: int = 256 * MIB
    compression: Compression | None = field(default_factory=compression_wished)

    def __post_init__(self) -> None:
        if self.block_size_bytes <= 0 or self.part_size_bytes < self.block_size_bytes:
            raise UsageError("a part must hold at least one block, and a block one byte")
        if self.in_flight_bytes_max <= 0:
            raise UsageError("in_flight_bytes_max must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """How the ranks wait for each other.

    The coordinator stops collecting votes ``decision_s_reserve`` before the deadline, so that
    there is time left to decide and for the others to hear of it.
    """

    poll_s_first: float = 0.02
    poll_s_max: float = 1.0
    decision_s_reserve: float = 5.0
    watch_s: float = 5.0  # How often a rank that uploads looks whether it is in vain.


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """What goes before AWS's own variables and files, and what those have no words for.

    ``None`` leaves a thing as AWS's files or the bucket have it. ``sse`` is what S3 encrypts
    with; ``kms_key_id`` alone means ``aws:kms``. ``bucket_key`` spares nearly all requests to
    KMS, whose limits throttle a large save otherwise.
    """

    profile: str | None = None
    endpoint_url: str | None = None
    addressing_style: str | None = None
    sse: str | None = None
    kms_key_id: str | None = None
    bucket_key: bool = True
    storage_class: str | None = None
    request_payer: bool = False

    def __post_init__(self) -> None:
        _one_of("addressing style", self.addressing_style, ADDRESSING_STYLES)
        _one_of("server-side encryption", self.sse, ENCRYPTIONS)
        if self.kms_key_id and self.sse == "AES256":
            raise UsageError("a KMS key encrypts with aws:kms or aws:kms:dsse, not with AES256")
        if self.storage_class in OFFLINE_CLASSES:
            raise UsageError(
                f"objects of storage class {self.storage_class} cannot be read at once, and "
                "records must be; let a lifecycle rule move old data/ there instead"
            )

    def with_environment(self, environment: Mapping[str, str]) -> S3Settings:
        """Return these settings, with what they leave open taken from ``CKPTSTORE_`` variables."""
        told = {
            name: environment.get(f"CKPTSTORE_{name.upper()}") or None
            for name in ("addressing_style", "sse", "kms_key_id", "storage_class")
            if getattr(self, name) is None
        }
        pays = self.request_payer or _is_on(environment, "CKPTSTORE_REQUEST_PAYER", default=False)
        bucket_key = self.bucket_key and _is_on(environment, "CKPTSTORE_BUCKET_KEY", default=True)
        return replace(self, **told, request_payer=pays, bucket_key=bucket_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsSettings:
    """What goes before Google's own variables and files, and what those have no words for.

    ``project`` is billed for every request, as buckets ask for whose readers pay.
    """

    project: str | None = None
    endpoint_url: str | None = None

    def with_environment(self, environment: Mapping[str, str]) -> GcsSettings:
        """Return these settings, with what they leave open taken from ``CKPTSTORE_`` variables."""
        return GcsSettings(
            project=self.project or environment.get("CKPTSTORE_GCS_PROJECT") or None,
            endpoint_url=self.endpoint_url or environment.get("CKPTSTORE_GCS_ENDPOINT_URL") or None,
        )


def _one_of(what: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"{value!r} is no {what}; it is one of {', '.join(known)}")


def _is_on(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name, "").strip().lower()
    return text in ("1", "true", "yes", "on") if text else default


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """How durable a local directory is when power fails; a process that dies loses nothing anyway.

    ``fsync="always"`` syncs every file and every directory that names it: what is committed
    survives a power cut. ``"data"`` leaves out the directories: a power cut may lose the newest
    checkpoints, decisions among them, so an attempt that was aborted may look undecided, but on
    most file systems no file that has a name is torn. ``"never"`` leaves everything to the
    kernel: a power cut may lose checkpoints, or damage committed ones, which the checksums
    find. Only for what can be made again.
    """

    fsync: str = "always"

    def __post_init__(self) -> None:
        _one_of("fsync policy", self.fsync, FSYNC_POLICIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    retry: RetrySettings = field(default_factory=RetrySettings)
    request: RequestSettings = field(default_factory=RequestSettings)
    transfer: TransferSettings = field(default_factory=TransferSettings)
    commit: CommitSettings = field(default_factory=CommitSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    local: LocalSettings = field(default_factory=LocalSettings)
    gcs: GcsSettings = field(default_factory=GcsSettings)
    deadline_s: float = 1800.0
