"""What the errors of the operating system mean to a store: translated once, here."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckptstore.backends._diagnose import RESOURCE_ERRNOS, resource_error
from ckptstore.errors import (
    CkptStoreError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    TransientStoreError,
)

_CLASSES: Final[dict[int, tuple[type[StoreError], str]]] = {
    errno.ENOENT: (ObjectNotFoundError, "there is no such object"),
    errno.ENOTDIR: (ObjectNotFoundError, "there is no such object: a file is in its path"),
    errno.EISDIR: (ObjectNotFoundError, "there is no such object, only a directory"),
    errno.EEXIST: (ObjectExistsError, "the object is already there"),
    errno.EACCES: (PermissionDeniedError, "this user may not do that"),
    errno.EPERM: (PermissionDeniedError, "this user may not do that"),
    errno.EROFS: (PermissionDeniedError, "the file system is mounted read-only"),
    errno.ELOOP: (PermissionDeniedError, "a symbolic link is in the path; they are not followed"),
    errno.EIO: (TransientStoreError, "the disk failed"),
    errno.ESTALE: (TransientStoreError, "the network file system lost track of the file"),
    errno.ETIMEDOUT: (TransientStoreError, "the network file system does not answer"),
    errno.EAGAIN: (TransientStoreError, "the system is short of something for the moment"),
    errno.EINTR: (TransientStoreError, "the call was interrupted"),
}


@contextmanager
def translating(verb: str, key: str, path: str, *, need_bytes: int = 0) -> Iterator[None]:
    """Turn every ``OSError`` of the block into one of ours."""
    try:
        yield
    except CkptStoreError:  # Some of ours are OSErrors too.
        raise
    except OSError as error:
        if error.errno in RESOURCE_ERRNOS:
            doing = f"{verb} {key}"
            raise resource_error(error, path, doing=doing, need_bytes=need_bytes) from error
        kind, meaning = _CLASSES.get(error.errno or 0, (StoreError, "the system refused"))
        raise kind(f"{meaning} [{error.strerror}]", verb=verb, key=key) from error
