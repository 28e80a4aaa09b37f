"""A directory that appears all at once and durably, or not at all."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from ckptstore.backends._diagnose import RESOURCE_ERRNOS, resource_error
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import CkptStoreError, ConflictError, LocalResourceError, UsageError
from ckptstore.fetch.plan import OutputFile

T = TypeVar("T")

SYNCED_TOGETHER: Final = 64  # By one thread; several at once share what the disk does for each.
THREAD_S_MAX: Final = 60.0  # What a disk may take for one batch before we give up on a thread.


@asynccontextmanager
async def staged(destination: Path, *, size_bytes: int, file_count: int) -> AsyncIterator[Path]:
    """Give a directory to fill, beside ``destination``; make it that when the block ends.

    Before: ``ConflictError`` if something is at ``destination`` already, other than an empty
    directory, and ``LocalResourceError`` if the disk has no room. If the block fails, or is
    cancelled, nothing of it is left. A machine that dies leaves
    ``.<name>.ckptstore-partial-<id>``, which nobody reads and anybody may delete.
    """
    final = await in_thread(_checked, destination, size_bytes, file_count)
    staging = final.with_name(f".{final.name}.ckptstore-partial-{secrets.token_hex(4)}")
    try:
        with local_errors(staging, "create the directory"):
            staging.mkdir()
        yield staging
        await _publish(staging, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run ``work`` in a thread; when cancelled, wait for it, for it still uses our files."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running}, timeout=THREAD_S_MAX)
        raise


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


def create_files(root: Path, files: Sequence[OutputFile]) -> None:
    """Make the files, at their full size, with the space for them set aside."""
    for file in files:
        location = root / file.path
        with local_errors(location, "create the file", need_bytes=file.size_bytes):
            location.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o777 if file.executable else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(location, flags, mode)
            try:
                if file.size_bytes:
                    os.posix_fallocate(descriptor, 0, file.size_bytes)
                write_at(descriptor, memoryview(file.head), 0)
            finally:
                os.close(descriptor)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of ``data``; a short write goes on where it stopped."""
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _checked(destination: Path, size_bytes: int, file_count: int) -> Path:
    final = destination.resolve()
    _check_free(final)
    _check_room(final.parent, size_bytes, file_count)
    return final


def _check_free(final: Path) -> None:
    if not final.parent.is_dir():
        raise UsageError(f"{final.parent} is not a directory; create it first")
    if final.is_dir():
        if os.path.ismount(final):
            raise UsageError(
                f"{final} is a mount point, which cannot appear all at once; "
                f"restore into a directory below it, such as {final / 'checkpoint'}"
            )
        if any(final.iterdir()):
            raise ConflictError(
                f"{final} is not empty; restore into a new directory, or remove that one first"
            )
    elif final.exists():
        raise ConflictError(f"{final} is a file; restore into a new directory")


def _check_room(parent: Path, size_bytes: int, file_count: int) -> None:
    with local_errors(parent, "look at the free space"):
        space = os.statvfs(parent)
    free_bytes = space.f_bavail * space.f_frsize
    if free_bytes < size_bytes:
        raise LocalResourceError(
            f"{parent} has {free_bytes} bytes free and the checkpoint takes {size_bytes}; "
            "free some space or restore less of it with --only"
        )
    if space.f_files and space.f_favail < file_count:
        raise LocalResourceError(
            f"{parent} has {space.f_favail} inodes free and the checkpoint takes {file_count}; "
            "delete small files there or restore elsewhere"
        )


async def _publish(staging: Path, final: Path) -> None:
    files, directories = await in_thread(_contents, staging)
    groups = [
        files[start : start + SYNCED_TOGETHER] for start in range(0, len(files), SYNCED_TOGETHER)
    ]
    await map_concurrently(lambda group: in_thread(_sync, group), groups)
    await in_thread(_sync, directories)
    await in_thread(_appear, staging, final)


def _contents(root: Path) -> tuple[list[Path], list[Path]]:
    """Return all files below ``root``, and all directories, itself last."""
    files: list[Path] = []
    directories: list[Path] = []
    for directory, _, names in os.walk(root, topdown=False):
        files += [Path(directory, name) for name in names]
        directories.append(Path(directory))
    return files, directories


def _appear(staging: Path, final: Path) -> None:
    try:
        staging.rename(final)
    except OSError as error:
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
