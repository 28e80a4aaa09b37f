"""File descriptors: how many are left, what holds them, and who forgot to close one.

A leak of them looks like other things: connections that cannot be made, libraries that cannot
read a certificate, and, when the files were deleted, a disk that is full although nothing is
on it.
"""

from __future__ import annotations

import logging
import os
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ckptstore.errors import LocalResourceError

logger = logging.getLogger(__name__)

RESERVED: Final = 64  # For the event loop, the name resolver, libraries, and the job itself.
NAMES_MAX: Final = 3
DELETED: Final = " (deleted)"


def fitting(in_flight_max: int) -> int:
    """Return how many requests there are descriptors for, at most ``in_flight_max``.

    A request needs one: a connection or a file. Raises ``LocalResourceError`` if not even one
    fits. Where the system does not tell what is open, nothing is narrowed.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    open_now = open_targets()
    if limit == resource.RLIM_INFINITY or not open_now:
        return in_flight_max
    fit = limit - len(open_now) - RESERVED
    if fit < 1:
        raise LocalResourceError(f"too few file descriptors to work with: {described()}")
    if fit < in_flight_max:
        logger.warning("only %d requests at a time, not %d: %s", fit, in_flight_max, described())
    return min(fit, in_flight_max)


def described() -> str:
    """Say how many descriptors are open, of how many, and on what."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    targets = open_targets()
    if not targets:  # Not even one descriptor is left to look with, or there is no /proc.
        return f"the limit is {limit} (raise it with ulimit -n)"
    kinds = Counter(_kind(target) for target in targets.values())
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(NAMES_MAX))
    return (
        f"{len(targets)} are open, the limit is {limit} (raise it with ulimit -n); "
        f"most of them: {most}"
    )


@contextmanager
def accounted(doing: str) -> Iterator[None]:
    """Warn of files that were opened and deleted meanwhile and are still open afterwards.

    They take up space that no listing shows. Other threads of the job may have left them.
    """
    before = open_targets()
    try:
        yield
    finally:
        leaked = sorted(
            target.removesuffix(DELETED)
            for number, target in open_targets().items()
            if target.endswith(DELETED) and before.get(number) != target
        )
        if leaked:
            logger.warning(
                "%s: %d deleted files were left open and pin space until this process ends: %s",
                doing,
                len(leaked),
                ", ".join(leaked[:NAMES_MAX]),
            )


def open_targets() -> dict[int, str]:
    """Return what each open descriptor of this process leads to; empty where that is unknown."""
    targets: dict[int, str] = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return targets
    for number in numbers:
        try:
            targets[int(number)] = os.readlink(Path("/proc/self/fd", number))
        except OSError:  # The one that listed them, or closed by another thread since.
            continue
    return targets


def _kind(target: str) -> str:
    """Return what a descriptor is: ``socket``, ``pipe``, or the directory its file is in."""
    return os.path.dirname(target) if target.startswith("/") else target.partition(":")[0]
