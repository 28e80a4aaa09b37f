"""A file as a shard: read part by part, never as a whole, and never half old and half new."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence

from ckptstore.errors import ConflictError, LocalResourceError
from ckptstore.manifest.layout import ShardKind
from ckptstore.push.walk import Fingerprint, LocalFile
from ckptstore.types import Buffer, ByteRange


class FileSource:
    """A ``ShardSource`` over a file. Holds one descriptor for each part being read, no more.

    Every read ends with comparing the file with what it was when it was found, so parts of two
    states of a file never end up in one object: ``ConflictError`` instead.
    """

    kind = ShardKind.FILE

    def __init__(self, file: LocalFile) -> None:
        self._file = file

    def __repr__(self) -> str:
        return f"FileSource({self._file.location})"

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return (await asyncio.to_thread(self._read, byte_range),)

    def _read(self, byte_range: ByteRange) -> bytearray:
        try:
            descriptor = os.open(self._file.location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise self._changed("was removed") from error
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            data = self._filled(descriptor, byte_range)
            self._check_unchanged(descriptor)
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            os.close(descriptor)
        return data

    def _filled(self, descriptor: int, byte_range: ByteRange) -> bytearray:
        data = bytearray(byte_range.size_bytes)
        target = memoryview(data)
        filled = 0
        while filled < len(data):
            count = os.preadv(descriptor, [target[filled:]], byte_range.start + filled)
            if count == 0:
                raise self._changed("became shorter")
            filled += count
        return data

    def _check_unchanged(self, descriptor: int) -> None:
        if Fingerprint.of(os.fstat(descriptor)) != self._file.fingerprint:
            raise self._changed("changed")

    def _changed(self, how: str) -> ConflictError:
        return ConflictError(
            f"{self._file.location} {how} while it was pushed; push again once nobody writes to it"
        )

    def _unreadable(self, error: OSError) -> LocalResourceError:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "; raise the limit (ulimit -n) or lower --concurrency"
        else:
            advice = ""
        return LocalResourceError(
            f"{self._file.location} could not be read: {error.strerror}{advice}"
        )
