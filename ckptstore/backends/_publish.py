"""Giving files their final names, so that a name once seen survives a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ckptstore.backends._files import sync_directory
from ckptstore.errors import StoreError, UnsupportedVerbError

TRIES_MAX: Final = 10
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class Publisher:
    """Names and directories below ``root``."""

    def __init__(self, root: str, *, sync_names: bool = True) -> None:
        self._root = root
        self._sync_names = sync_names
        self._durable: set[str] = set()

    def create(self, temporary: str, path: str) -> os.stat_result:
        """Give a synced file the name ``path`` as well, unless it is taken."""

        def link() -> None:
            try:
                os.link(temporary, path, follow_symlinks=False)
            except FileExistsError:
                # Whoever was refused may act on what it finds there, so that must last.
                self._sync(os.path.dirname(path))
                raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise UnsupportedVerbError(
                    f"{self._root}: this file system has no hard links, and without them one "
                    "of two writers could overwrite the other"
                ) from error

        return self._publish(temporary, path, link)

    def replace(self, temporary: str, path: str) -> os.stat_result:
        """Rename a synced file to ``path``, over what is there."""
        return self._publish(temporary, path, lambda: os.replace(temporary, path))

    def _publish(self, temporary: str, path: str, name_it: Callable[[], None]) -> os.stat_result:
        status = os.stat(temporary)
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                self.ensure(os.path.dirname(path))
                name_it()
            except FileNotFoundError:  # Somebody removed the directory, because it was empty.
                if not tries_left:
                    raise
            except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                if isinstance(error, FileExistsError) and not os.path.isdir(path):
                    raise
                raise StoreError(
                    f"{path}: one of its directories is an object, or it is a directory itself; "
                    "a local directory cannot hold both a and a/b"
                ) from error
            else:
                break
        self._sync(os.path.dirname(path))
        return status

    def ensure(self, path: str) -> None:
        """Make a directory below the root, or the root itself, and what is missing above it.

        A directory that somebody else just made may not be durable yet, so the first use of
        each syncs its parent, whoever made it.
        """
        if path in self._durable and os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        below_root = len(path) > len(self._root)
        if below_root or not os.path.isdir(parent):
            self.ensure(parent)
        made = False
        with suppress(FileExistsError):
            os.mkdir(path)
            made = True
        if made or below_root:
            self._sync(parent)
        self._durable.add(path)

    def _sync(self, directory: str) -> None:
        if self._sync_names:
            sync_directory(directory)

    def remove(self, path: str) -> None:
        """Unlink a file, and the directories above it that are empty then."""
        os.unlink(path)
        directory = os.path.dirname(path)
        self._sync(directory)
        while directory != self._root:
            self._durable.discard(directory)
            try:
                os.rmdir(directory)
            except OSError:  # Not empty, or gone already.
                return
            directory = os.path.dirname(directory)


def unlink_quietly(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
