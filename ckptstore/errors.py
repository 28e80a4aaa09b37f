"""Every exception ckptstore raises on purpose.

A class earns its place here only if a caller would act on it differently. The class says
what to do next (``retryable``, ``exit_code``); the message says what happened, and may
change at any time.

Errors cross process boundaries (a worker process reports to its parent), so each of them
must survive pickling: one positional ``detail``, everything else keyword-only with a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Damage:
    """One place where an object is not what was written: block ``block`` at byte ``offset``.

    ``expected`` and ``found`` are checksums in hexadecimal, or words where there is nothing
    to take a checksum of (``"an object"``, ``"missing"``).
    """

    object: str
    block: int
    offset: int
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.object}: block {self.block} at byte {self.offset}: "
            f"expected {self.expected}, found {self.found}"
        )


class CkptStoreError(Exception):
    """Base of the tree; catch this to catch all of ckptstore and nothing else.

    ``exit_code`` is what the command line ends with when this is what stopped it.
    """

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class UsageError(CkptStoreError, ValueError):
    """What was asked for makes no sense: a bad URL, run name, step or option."""

    exit_code = 2


class SettingsError(CkptStoreError):
    """Credentials, environment or configuration keep us from working."""

    exit_code = 6


class FormatVersionError(CkptStoreError):
    """A store or record was written by a format version that this release does not read."""

    exit_code = 6


class IntegrityError(CkptStoreError):
    """Bytes we read are not the bytes that were promised; ``damage`` says where, if known."""

    exit_code = 4

    def __init__(self, detail: str, *, damage: tuple[Damage, ...] = ()) -> None:
        super().__init__(detail)
        self.damage = damage


class UntrustedCodeError(CkptStoreError):
    """A stored object names code that nobody declared safe; nothing of it was run."""

    exit_code = 6


class CheckpointNotFoundError(CkptStoreError):
    """There is no committed checkpoint under that name."""

    exit_code = 5


class CheckpointAbortedError(CkptStoreError):
    """The attempt was decided and the decision is abort: no reader will ever see it."""


class CheckpointInDoubtError(CkptStoreError):
    """The store fell silent before we could learn the decision: commit, abort or none yet.

    Deciding again settles it, from any process and at any time (``ckptstore resolve``).
    """

    exit_code = 7


class ConflictError(CkptStoreError):
    """Somebody else got there first, or going on would overwrite what is there."""

    exit_code = 10


class DeadlineExceededError(CkptStoreError):
    """The time that the caller allowed is used up."""

    exit_code = 8


class LocalResourceError(CkptStoreError):
    """This machine ran out of something: disk, inodes, descriptors, memory."""

    exit_code = 9


class StoreError(CkptStoreError):
    """A storage verb failed."""

    def __init__(self, detail: str, *, verb: str = "", key: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.verb = verb
        self.key = key

    def __str__(self) -> str:
        where = " ".join(part for part in (self.verb, self.key) if part)
        return f"{self.detail} ({where})" if where else self.detail


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is no object under this key."""

    exit_code = 5


class TruncatedObjectError(StoreError):
    """A range reaches past the end of the object: it is shorter than the caller knows it to be."""

    exit_code = 4


class ObjectExistsError(StoreError, FileExistsError):
    """A create-only write found an object already there."""

    exit_code = 10


class PermissionDeniedError(StoreError, PermissionError):
    """These credentials may not do that, or do not exist; trying again will not help."""

    exit_code = 6


class UnsupportedVerbError(StoreError):
    """This store cannot do that; see ``Capabilities`` before calling."""

    exit_code = 6


class TransientStoreError(StoreError):
    """The store asked us to come back later, the connection broke, or bytes arrived damaged."""

    retryable = True
    exit_code = 7


class RefusedError(TransientStoreError):
    """The store did nothing, for now: trying again is safe, also for a conditional write."""


class DamagedError(RefusedError):
    """Bytes arrived with another checksum than they were sent with; a try or two more may do."""


class ThrottledError(RefusedError):
    """The store is refusing work because there is too much of it; slow down, then try again.

    ``retry_after_s`` is how long the store itself asked us to wait, if it said so.
    """

    def __init__(
        self, detail: str, *, verb: str = "", key: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail, verb=verb, key=key)
        self.retry_after_s = retry_after_s


class StalledError(TransientStoreError):
    """No byte of a request moved for too long; its connection was closed."""

    exit_code = 8


class CredentialsExpiredError(StoreError):
    """The credentials ran out while we worked; refresh them once and try again."""

    exit_code = 6


class RetriesExhaustedError(StoreError):
    """A retryable failure outlived its budget; the cause is the last one. Do not retry again."""

    exit_code = 7


class WriteOutcomeUnknownError(StoreError):
    """A write that must not be repeated may or may not have landed; read back to find out."""

    exit_code = 7
