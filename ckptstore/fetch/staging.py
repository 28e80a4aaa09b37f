"""A directory that appears all at once and durably, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckptstore.backends._diagnose import RESOURCE_ERRNOS, resource_error
from ckptstore.concurrency import in_thread, map_concurrently
from ckptstore.errors import (
    CkptStoreError,
    ConflictError,
    IntegrityError,
    LocalResourceError,
    UsageError,
)
from ckptstore.fetch.journal import Journal
from ckptstore.fetch.plan import OutputFile

REPLACED: Final = "replaced"
SYNCED_TOGETHER: Final = 64  # By one thread; several at once share what the disk does for each.


@dataclass(frozen=True, slots=True)
class Staging:
    """A directory to fill, and what of it is filled already."""

    root: Path
    journal: Journal


@asynccontextmanager
async def staged(
    destination: Path,
    *,
    size_bytes: int,
    file_count: int,
    name: str | None = None,
    replace: bool = False,
) -> AsyncIterator[Staging]:
    """Give a directory to fill, beside ``destination``; make it that when the block ends.

    Before: ``ConflictError`` if something is at ``destination`` already, other than an empty
    directory (``replace`` lets a directory be, until this one takes its place), and
    ``LocalResourceError`` if the disk has no room.

    It lies in ``.<destination>.ckptstore-partial-<name>``, which nobody reads and anybody may
    delete. If the block fails, is cancelled, or the process dies, that stays if the journal says
    that work is in it, and the next block with the same ``name`` goes on from there. Nothing is
    left of a checkpoint that was found damaged, of a conflict, or without a name.
    """
    final = await in_thread(_checked, destination, replace)
    partial = final.with_name(f".{final.name}.ckptstore-partial-{name or secrets.token_hex(4)}")
    root = partial / "files"
    with local_errors(partial, "create the directory"):
        root.mkdir(parents=True, exist_ok=True)
    keep = False
    try:
        with local_errors(partial, "open the journal"):
            journal = Journal(partial / "journal")
    except ConflictError:
        raise  # It is somebody's.
    with journal:
        try:
            await in_thread(_put_back, partial / REPLACED, final)
            await in_thread(_check_room, partial, size_bytes, file_count)
            yield Staging(root, journal)
            await _publish(root, final, replace)
        except (IntegrityError, ConflictError, UsageError):
            raise
        except BaseException as error:
            keep = name is not None and len(journal) > 0
            if keep:
                error.add_note(f"what was restored so far is kept in {partial}: run this again")
            raise
        finally:
            if not keep:
                shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def local_errors(path: Path, doing: str, *, need_bytes: int = 0) -> Iterator[None]:
    """Turn every ``OSError`` of the block into a ``LocalResourceError`` with its true cause."""
    try:
        yield
    except CkptStoreError:  # Some of ours are OSErrors too.
        raise
    except OSError as error:
        doing = f"could not {doing}"
        if error.errno in RESOURCE_ERRNOS:
            raise resource_error(error, str(path), doing=doing, need_bytes=need_bytes) from error
        raise LocalResourceError(f"{doing}: {error.strerror} [{path}]") from error


def create_files(root: Path, files: Sequence[OutputFile], *, sparse: bool = False) -> None:
    """Make the files, at their full size, with the space for them set aside.

    ``sparse`` leaves that to whoever writes: what nobody wrote are zeros that take no room.
    """
    for file in files:
        location = root / file.path
        with local_errors(location, "create the file", need_bytes=file.size_bytes):
            location.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o777 if file.executable else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(location, flags, mode)
            try:
                os.ftruncate(descriptor, file.size_bytes)
                if file.size_bytes and not sparse:
                    os.posix_fallocate(descriptor, 0, file.size_bytes)
                write_at(descriptor, memoryview(file.head), 0)
            finally:
                os.close(descriptor)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of ``data``; a short write goes on where it stopped."""
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _checked(destination: Path, replace: bool) -> Path:
    final = destination.resolve()
    if not final.parent.is_dir():
        raise UsageError(f"{final.parent} is not a directory; create it first")
    if final.is_dir():
        if os.path.ismount(final):
            raise UsageError(
                f"{final} is a mount point, which cannot appear all at once; "
                f"restore into a directory below it, such as {final / 'checkpoint'}"
            )
        if any(final.iterdir()) and not replace:
            raise ConflictError(
                f"{final} is not empty; restore into a new directory, or remove that one first"
            )
    elif final.exists():
        raise ConflictError(f"{final} is a file; restore into a new directory")
    return final


def _check_room(partial: Path, size_bytes: int, file_count: int) -> None:
    """Raise unless there is room for what is not there yet."""
    parent = partial.parent
    with local_errors(parent, "look at the free space"):
        space = os.statvfs(parent)
        there = [path.lstat() for path in _contents(partial / "files")[0]]
    file_count -= len(there)
    free_bytes = space.f_bavail * space.f_frsize
    if free_bytes < size_bytes - sum(512 * status.st_blocks for status in there):
        raise LocalResourceError(
            f"{parent} has {free_bytes} bytes free and the checkpoint takes {size_bytes}; "
            "free some space or restore less of it with --only"
        )
    if space.f_files and space.f_favail < file_count:
        raise LocalResourceError(
            f"{parent} has {space.f_favail} inodes free and the checkpoint takes {file_count}; "
            "delete small files there or restore elsewhere"
        )


async def _publish(root: Path, final: Path, replace: bool) -> None:
    await sync_files(root)
    await in_thread(_appear, root, final, replace)


async def sync_files(root: Path) -> None:
    """Make all that is below ``root`` durable, itself last."""
    files, directories = await in_thread(_contents, root)
    groups = [
        files[start : start + SYNCED_TOGETHER] for start in range(0, len(files), SYNCED_TOGETHER)
    ]
    await map_concurrently(lambda group: in_thread(_sync, group), groups)
    await in_thread(_sync, directories)


def _contents(root: Path) -> tuple[list[Path], list[Path]]:
    """Return all files below ``root``, and all directories, itself last."""
    files: list[Path] = []
    directories: list[Path] = []
    for directory, _, names in os.walk(root, topdown=False):
        files += [Path(directory, name) for name in names]
        directories.append(Path(directory))
    return files, directories


def _put_back(old: Path, final: Path) -> None:
    """Undo what a process did that died while it put one directory in the place of another."""
    with local_errors(old, "put it back where it was"):
        if old.exists() and not final.exists():
            old.rename(final)
        elif old.exists():  # The new one took its place.
            shutil.rmtree(old)


def _appear(root: Path, final: Path, replace: bool) -> None:
    old = root.with_name(REPLACED)
    try:
        if replace and final.is_dir():
            final.rename(old)
        root.rename(final)
    except OSError as error:
        if old.exists() and not final.exists():
            old.rename(final)
        raise ConflictError(
            f"something appeared at {final} meanwhile ({error.strerror}); nothing was restored"
        ) from error
    _sync([final.parent])


def _sync(paths: Sequence[Path]) -> None:
    for path in paths:
        with local_errors(path, "make it durable"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
