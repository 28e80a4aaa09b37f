"""Why this machine really refused: "no space left on device" has many causes but one name."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckptstore import descriptors
from ckptstore.errors import LocalResourceError
from ckptstore.types import MIB

RESOURCE_ERRNOS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EFBIG}
)
SLACK_BYTES: Final = 16 * MIB  # File systems keep a little for themselves.
PINNED_FRACTION_MIN: Final = 0.05
NAMES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file that was deleted and still takes up space, because a process has it open."""

    pid: int
    name: str
    size_bytes: int


def resource_error(error: OSError, path: str, *, doing: str, need_bytes: int) -> LocalResourceError:
    """Return what to raise for an errno of ``RESOURCE_ERRNOS``, with the numbers that prove it."""
    match error.errno:
        case errno.EMFILE | errno.ENFILE:
            cause = f"no file descriptors are left: {descriptors.described()}"
        case errno.EDQUOT:
            cause = "the quota of this user, group or project is used up; ask for more or delete"
        case errno.EFBIG:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            bound = "the file system's" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
            cause = f"a file would grow over the size limit (RLIMIT_FSIZE: {bound})"
        case _:
            cause = _no_space(path, need_bytes)
    return LocalResourceError(f"{doing}: {cause} [{error.strerror}, {path}]")


def deleted_open_files(device: int) -> Iterator[PinnedFile]:
    """Yield the deleted files that hold space on ``device``, of every process we may look into."""
    seen: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
            if not target.endswith(" (deleted)"):
                continue
            status = link.stat()
        except OSError:  # Closed since, or not ours to see.
            continue
        if status.st_dev == device and status.st_nlink == 0 and status.st_ino not in seen:
            seen.add(status.st_ino)
            name = target.removesuffix(" (deleted)")
            yield PinnedFile(int(link.parts[2]), name, status.st_blocks * 512)


def _no_space(path: str, need_bytes: int) -> str:
    where = _existing(path)
    try:
        space = os.statvfs(where)
        pinned = sorted(deleted_open_files(os.stat(where).st_dev), key=lambda f: -f.size_bytes)
    except OSError as error:
        return f"no space is left, and looking into why failed: {error}"
    free_bytes = space.f_bavail * space.f_frsize
    total_bytes = space.f_blocks * space.f_frsize
    if space.f_files and not space.f_favail:
        return (
            f"no inodes are left ({space.f_files} in use) though {_size(free_bytes)} are free; "
            "delete small files"
        )
    pinned_bytes = sum(file.size_bytes for file in pinned)
    if pinned and (
        pinned_bytes >= need_bytes > 0 or pinned_bytes >= PINNED_FRACTION_MIN * total_bytes
    ):
        names = ", ".join(f"{f.name} by process {f.pid}" for f in pinned[:NAMES_MAX])
        return (
            f"{len(pinned)} deleted files that are still open pin {_size(pinned_bytes)} "
            f"({_size(free_bytes)} are free); end or fix who holds them: {names}"
        )
    if free_bytes >= need_bytes + SLACK_BYTES:
        return (
            f"the system says no space although {_size(free_bytes)} are free on {where} and "
            f"{_size(need_bytes)} were needed; look at quotas and at kernel limits (inotify, epoll)"
        )
    if space.f_bfree and not space.f_bavail:
        reserved = _size(space.f_bfree * space.f_frsize)
        return f"the {reserved} that are left are reserved for root; free some space"
    return (
        f"the disk is full: {_size(free_bytes)} of {_size(total_bytes)} are free; free some space"
    )


def _existing(path: str) -> str:
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path or "/"


def _size(size_bytes: int) -> str:
    return (
        f"{size_bytes / MIB:.1f} MiB"
        if size_bytes < 1024 * MIB
        else f"{size_bytes / MIB / 1024:.1f} GiB"
    )
