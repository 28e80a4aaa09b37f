"""A local directory as a store: durable, atomic, and nothing half-written under any name."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Final, TypeVar

from ckptstore.backends._checks import (
    check_parts,
    check_pieces,
    check_target,
    no_such_upload,
    noted_part,
    past_the_end,
    refused_completion,
)
from ckptstore.backends._errno import translating
from ckptstore.backends._files import Stop, opened, read_all, write_all
from ckptstore.backends._publish import Publisher, unlink_quietly
from ckptstore.backends._threads import Threads
from ckptstore.errors import (
    DamagedError,
    ObjectNotFoundError,
    PermissionDeniedError,
)
from ckptstore.integrity import crc64nvme as crc64nvme_of
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    Buffer,
    ByteRange,
    Capabilities,
    CreateOnly,
    Key,
    ObjectInfo,
    Part,
    PutMode,
    UploadId,
    UploadInfo,
    Version,
    parse_key,
    views,
)

T = TypeVar("T")

UPLOADS: Final = ".uploads"  # What is not yet an object; no key leads into it.
KEY_OF_UPLOAD: Final = "key"
THREADS_MAX: Final = 16
_UPLOAD_ID: Final = re.compile(r"[0-9a-f]{32}")


class LocalStore:
    """The directory ``root``, made when the first object is written.

    Symbolic links below the root are neither followed nor listed, so no key leads out of it.
    A key cannot be another key's directory (``a`` and ``a/b``), as it could on an object store.
    What ``fsync`` may be, and risks: ``LocalSettings``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        threads_max: int = THREADS_MAX,
        fsync: str = "always",
    ) -> None:
        self._root = os.path.realpath(root)
        self._uploads = os.path.join(self._root, UPLOADS)
        self._publisher = Publisher(self._root, sync_names=fsync == "always")
        self._sync_data = fsync != "never"
        self._threads = Threads(threads_max)
        self._tainted: set[UploadId] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self._root})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_only=True)

    async def head(self, key: Key) -> ObjectInfo:
        def work(path: str, stop: Stop) -> ObjectInfo:
            return _info(key, os.stat(path, follow_symlinks=False))

        return await self._run("head", key, work)

    async def get(self, key: Key) -> bytes:
        def work(path: str, stop: Stop) -> bytes:
            with _opened_object(key, path) as (descriptor, info):
                data = bytearray(info.size_bytes)
                size_bytes = read_all(descriptor, memoryview(data), 0, stop)
            return bytes(memoryview(data)[:size_bytes])

        return await self._run("get", key, work)

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        check_target(byte_range, target)

        def work(path: str, stop: Stop) -> None:
            with _opened_object(key, path) as (descriptor, info):
                if byte_range.stop > info.size_bytes:
                    raise past_the_end(key, byte_range, info.size_bytes)
                filled = read_all(descriptor, target.cast("B"), byte_range.start, stop)
            if filled < byte_range.size_bytes:  # Somebody cut the file off meanwhile.
                raise past_the_end(key, byte_range, byte_range.start + filled)

        await self._run("get_into", key, work)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        pieces = views([data])

        def work(path: str, stop: Stop) -> Version:
            upload_id = UploadId(uuid.uuid4().hex)
            temporary = self._new_upload(key, upload_id)
            try:
                with opened(temporary, os.O_WRONLY) as descriptor:
                    write_all(descriptor, pieces, 0, stop)
                    self._sync(descriptor)
                stop.check()
                if isinstance(mode, CreateOnly):
                    return _version(self._publisher.create(temporary, path))
                return _version(self._publisher.replace(temporary, path))
            finally:
                self._forget_upload(upload_id)

        return await self._run("put", key, work, need_bytes=memoryview(data).nbytes)

    async def multipart_create(self, key: Key) -> UploadId:
        upload_id = UploadId(uuid.uuid4().hex)

        def work(path: str, stop: Stop) -> None:
            self._new_upload(key, upload_id)

        await self._run("multipart_create", key, work)
        return upload_id

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        sent = views(pieces)
        check_pieces(part, sent)

        def work(path: str, stop: Stop) -> str:
            crc = 0
            for piece in sent:
                crc = crc64nvme_of(piece, crc)
            if crc != crc64nvme:  # Found before it is written: over a good part, perhaps.
                raise DamagedError(f"part {part.index} is damaged", verb="put_part", key=key)
            with self._opened_upload("put_part", key, upload_id) as descriptor:
                write_all(descriptor, sent, part.byte_range.start, stop)
            return noted_part(part, crc)

        need_bytes = part.byte_range.size_bytes
        return await self._run(
            "put_part", key, work, need_bytes, abandoned=lambda: self._tainted.add(upload_id)
        )

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        check_parts(key, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme)
        if upload_id in self._tainted:
            raise refused_completion(key, "a cancelled write to it may still be under way")

        def work(path: str, stop: Stop) -> Version:
            with self._opened_upload("multipart_complete", key, upload_id) as descriptor:
                found_bytes = os.fstat(descriptor).st_size
                if found_bytes != size_bytes:
                    raise refused_completion(key, f"it has {found_bytes} bytes, not {size_bytes}")
                self._sync(descriptor)
            stop.check()
            version = _version(self._publisher.replace(self._upload_path(upload_id), path))
            self._forget_upload(upload_id)
            return version

        return await self._run("multipart_complete", key, work)

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        def work(path: str, stop: Stop) -> None:
            self._forget_upload(upload_id)

        await self._run("multipart_abort", key, work)
        self._tainted.discard(upload_id)

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        directory, slash, start = prefix.rpartition("/")
        waiting = await self._entries(directory + slash, start)
        while waiting:  # The last one first.
            entry = waiting.pop()
            if isinstance(entry, ObjectInfo):
                yield entry
            else:
                waiting += await self._entries(entry, "")

    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        """Yield also what a process that was killed left of a ``put``: it looks the same."""

        def work(stop: Stop) -> list[UploadInfo]:
            with translating("list_uploads", prefix, self._uploads):
                return [upload for upload in self._scan_uploads() if upload.key.startswith(prefix)]

        for upload in await self._threads.run(work):
            yield upload

    def _scan_uploads(self) -> Iterator[UploadInfo]:
        with suppress(FileNotFoundError), os.scandir(self._uploads) as entries:
            for entry in entries:
                upload_id, dot, kind = entry.name.partition(".")
                if dot and kind == KEY_OF_UPLOAD and _UPLOAD_ID.fullmatch(upload_id):
                    with suppress(FileNotFoundError, ValueError):  # It ended, or never began.
                        key = parse_key(Path(entry.path).read_text())
                        begun_unix_s = entry.stat(follow_symlinks=False).st_mtime
                        yield UploadInfo(key, UploadId(upload_id), begun_unix_s)

    async def _entries(self, directory: str, start: str) -> list[ObjectInfo | str]:
        """Return the objects in ``directory`` and the directories (as ``a/b/``), last one first."""
        path = os.path.join(self._root, directory).rstrip("/")

        def work(stop: Stop) -> list[ObjectInfo | str]:
            if directory.partition("/")[0] == UPLOADS or os.path.realpath(path) != path:
                return []
            with translating("list_objects", directory, path):
                return _scan(path, directory, start)

        return await self._threads.run(work)

    async def delete(self, key: Key) -> None:
        def work(path: str, stop: Stop) -> None:
            try:
                _info(key, os.stat(path, follow_symlinks=False))
                self._publisher.remove(path)
            except (FileNotFoundError, NotADirectoryError):
                pass  # That is what was wanted.

        await self._run("delete", key, work)

    async def aclose(self) -> None:
        await self._threads.aclose()

    async def _run(
        self,
        verb: str,
        key: Key,
        work: Callable[[str, Stop], T],
        need_bytes: int = 0,
        *,
        abandoned: Callable[[], None] = lambda: None,
    ) -> T:
        path = os.path.join(self._root, parse_key(key))

        def guarded(stop: Stop) -> T:
            with translating(verb, key, path, need_bytes=need_bytes):
                self._check_path(verb, key, path)
                return work(path, stop)

        return await self._threads.run(guarded, abandoned=abandoned)

    def _check_path(self, verb: str, key: Key, path: str) -> None:
        if key.partition("/")[0] == UPLOADS:
            raise PermissionDeniedError(f"{UPLOADS}/ is the store's own", verb=verb, key=key)
        if os.path.realpath(path) != path:
            raise PermissionDeniedError(
                "a symbolic link is in the path; they are not followed", verb=verb, key=key
            )

    def _new_upload(self, key: Key, upload_id: UploadId) -> str:
        """Make an empty file to write to, and beside it one that says which key it is for."""
        self._publisher.ensure(self._uploads)
        path = self._upload_path(upload_id)
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with opened(f"{path}.{KEY_OF_UPLOAD}", new) as descriptor:
                os.write(descriptor, key.encode())
            with opened(path, new):
                return path
        except OSError:
            self._forget_upload(upload_id)
            raise

    def _sync(self, descriptor: int) -> None:
        if self._sync_data:
            os.fsync(descriptor)

    def _forget_upload(self, upload_id: UploadId) -> None:
        path = self._upload_path(upload_id)
        unlink_quietly(path)
        unlink_quietly(f"{path}.{KEY_OF_UPLOAD}")

    def _upload_path(self, upload_id: UploadId) -> str:
        if not _UPLOAD_ID.fullmatch(upload_id):
            raise ValueError(f"not an upload of this store: {upload_id!r}")
        return os.path.join(self._uploads, upload_id)

    @contextmanager
    def _opened_upload(self, verb: str, key: Key, upload_id: UploadId) -> Iterator[int]:
        try:
            descriptor = os.open(self._upload_path(upload_id), os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise no_such_upload(verb, key, upload_id) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _opened_object(key: Key, path: str) -> Iterator[tuple[int, ObjectInfo]]:
    # Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        yield descriptor, _info(key, os.fstat(descriptor))


def _info(key: Key, status: os.stat_result) -> ObjectInfo:
    if not S_ISREG(status.st_mode):
        raise ObjectNotFoundError("there is no such object, only a directory or device", key=key)
    # The time of the last change: that of the last write is what copying tools set it to.
    return ObjectInfo(key, status.st_size, _version(status), modified_unix_s=status.st_ctime)


def _version(status: os.stat_result) -> Version:
    return Version(etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


def _scan(path: str, directory: str, start: str) -> list[ObjectInfo | str]:
    found: list[tuple[str, ObjectInfo | str]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(start) and not (entry.name == UPLOADS and not directory):
                    found += _entry(entry, f"{directory}{entry.name}")
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A directory sorts as the start of its keys does: "a.b" comes before "a/b".
    return [item for _, item in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _entry(entry: os.DirEntry[str], name: str) -> list[tuple[str, ObjectInfo | str]]:
    if entry.is_dir(follow_symlinks=False):
        return [(f"{name}/", f"{name}/")]
    try:
        if entry.is_file(follow_symlinks=False):
            return [(name, _info(parse_key(name), entry.stat(follow_symlinks=False)))]
    except (FileNotFoundError, ValueError):  # Deleted meanwhile, or a name that no key has.
        pass
    return []
