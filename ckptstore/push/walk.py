"""What is in a directory that is to be pushed: looked at, and opened once, before any upload."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptstore.errors import UsageError
from ckptstore.paths import check_distinct, check_path


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells a file from a later state of itself, or from another one in its place."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Fingerprint:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to push: its path in the directory, where it lies, and its state when found."""

    path: str
    location: Path
    fingerprint: Fingerprint
    executable: bool

    @property
    def size_bytes(self) -> int:
        return self.fingerprint.size_bytes


def walk(directory: Path) -> tuple[LocalFile, ...]:
    """Return every file under ``directory``, sorted by path.

    Empty files count; empty directories do not. A symbolic link to a file inside the
    directory stands for that file. Raises ``UsageError``, before a byte is sent, for whatever
    cannot be pushed and restored as it is: a link that leads outside or to a directory, a
    device or pipe, a file that cannot be read, a name that is not safe everywhere, or a
    directory that holds no file.
    """
    if not directory.exists():
        raise UsageError(f"{directory}: there is no such directory to push")
    if not directory.is_dir():
        raise UsageError(f"{directory} is a file; push the directory it lies in")
    root = directory.resolve()
    files = tuple(sorted(_files(root, root), key=lambda file: file.path))
    if not files:
        raise UsageError(f"{directory} holds no file; there is nothing to push")
    try:
        check_distinct(file.path for file in files)
    except ValueError as error:
        raise UsageError(f"{directory}: {error}; rename one of them") from error
    return files


def _files(root: Path, directory: Path) -> Iterator[LocalFile]:
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise UsageError(f"{directory}: cannot be listed: {error.strerror}") from error
    for entry in entries:
        if entry.is_symlink():
            _check_link(root, entry)
        if entry.is_dir():
            yield from _files(root, entry)
        else:
            yield _looked_at(root, entry)


def _check_link(root: Path, link: Path) -> None:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before Python 3.13.
        raise UsageError(f"{link} is a symbolic link that leads nowhere; remove it") from error
    if not target.is_relative_to(root):
        raise UsageError(
            f"{link} is a symbolic link to {target}, outside of the directory; "
            "copy what it points to in its place (cp -L)"
        )
    if target.is_dir():
        raise UsageError(
            f"{link} is a symbolic link to a directory, whose files would be pushed twice; "
            "remove it"
        )


def _looked_at(root: Path, location: Path) -> LocalFile:
    path = location.relative_to(root).as_posix()
    try:
        check_path(path)
    except ValueError as error:
        raise UsageError(f"{root}: {error}; rename the file") from error
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end.
        descriptor = os.open(location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{location}: cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{location} is a device, a pipe or a socket; only files can be pushed")
    executable = bool(status.st_mode & stat.S_IXUSR)
    return LocalFile(path, location, Fingerprint.of(status), executable)
