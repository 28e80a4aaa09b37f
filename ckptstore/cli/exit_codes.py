"""What a command ends with: a number by the class of what went wrong. Pure."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from ckptstore.errors import CheckpointAbortedError, CkptStoreError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNVERIFIABLE: Final = 3
INTEGRITY: Final = 4
NOT_FOUND: Final = 5
CONFIGURATION: Final = 6
UNAVAILABLE: Final = 7
DEADLINE: Final = 8
LOCAL_RESOURCE: Final = 9
CONFLICT: Final = 10
DIFFERENCES: Final = 20
SIGINT: Final = 130
SIGTERM: Final = 143

NAMES: Final = {
    FAILED: "failed",
    USAGE: "usage",
    UNVERIFIABLE: "unverifiable",
    INTEGRITY: "integrity",
    NOT_FOUND: "not_found",
    CONFIGURATION: "configuration",
    UNAVAILABLE: "unavailable",
    DEADLINE: "deadline",
    LOCAL_RESOURCE: "local_resource",
    CONFLICT: "conflict",
    SIGINT: "interrupted",
    SIGTERM: "terminated",
}

_WORST_FIRST: Final = (
    SIGINT,
    SIGTERM,
    USAGE,
    INTEGRITY,
    CONFLICT,
    LOCAL_RESOURCE,
    CONFIGURATION,
    DEADLINE,
    UNAVAILABLE,
    NOT_FOUND,
    FAILED,
    UNVERIFIABLE,
    OK,
)
_LOCAL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def worst(codes: Iterable[int]) -> int:
    """Return the code to end with when several things happened; 0 if nothing did."""
    return min(codes, key=_WORST_FIRST.index, default=OK)


def code_of(error: BaseException) -> int:
    """Return the code that stands for an error; one we do not know is a plain failure.

    An abort ends with the code of what caused it, if this process knows.
    """
    match error:
        case BaseExceptionGroup():
            return worst(map(code_of, error.exceptions))
        case CheckpointAbortedError(__cause__=Exception() as cause):
            return code_of(cause)
        case CkptStoreError():
            return error.exit_code
        case MemoryError():
            return LOCAL_RESOURCE
        case OSError() if error.errno in _LOCAL:
            return LOCAL_RESOURCE
        case _:
            return FAILED
