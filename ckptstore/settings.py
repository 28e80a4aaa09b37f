"""Settings: frozen, comparable, printable. Components (stores, clocks) never live here."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptstore.errors import UsageError
from ckptstore.types import MIB


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
class TransferSettings:
    """How bytes are cut and how many are under way at once."""

    block_size_bytes: int = 4 * MIB
    part_size_bytes: int = 16 * MIB
    in_flight_bytes_max: int = 256 * MIB

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
    """What goes before AWS's own variables and files, where two stores need different ones."""

    profile: str | None = None
    endpoint_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    retry: RetrySettings = field(default_factory=RetrySettings)
    request: RequestSettings = field(default_factory=RequestSettings)
    transfer: TransferSettings = field(default_factory=TransferSettings)
    commit: CommitSettings = field(default_factory=CommitSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    deadline_s: float = 1800.0
