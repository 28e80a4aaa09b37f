"""The reference backend: a dict, with the same promises as the real ones."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import assert_never

from ckptstore.backends._checks import (
    check_pieces,
    check_target,
    no_such_upload,
    past_the_end,
    refused_completion,
)
from ckptstore.clock import Clock, SystemClock
from ckptstore.errors import DamagedError, ObjectExistsError, ObjectNotFoundError
from ckptstore.integrity import crc64nvme as crc64nvme_of
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    Buffer,
    ByteRange,
    Capabilities,
    CreateOnly,
    Key,
    ObjectInfo,
    Overwrite,
    Part,
    PutMode,
    UploadId,
    UploadInfo,
    Version,
    views,
)


class MemoryStore:
    """Objects in this process's memory, gone when the store is."""

    def __init__(
        self, capabilities: Capabilities | None = None, *, clock: Clock | None = None
    ) -> None:
        self._capabilities = capabilities or Capabilities(create_only=True)
        self._clock = clock or SystemClock()
        self._objects: dict[Key, tuple[bytes, ObjectInfo]] = {}
        self._uploads: dict[UploadId, tuple[UploadInfo, dict[int, bytes]]] = {}
        self._serial = itertools.count(1)

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects)} objects)"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def uploads_open(self) -> int:
        """How many multipart uploads were begun and neither completed nor aborted."""
        return len(self._uploads)

    async def head(self, key: Key) -> ObjectInfo:
        return self._found("head", key)[1]

    async def get(self, key: Key) -> bytes:
        return self._found("get", key)[0]

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        check_target(byte_range, target)
        data, info = self._found("get_into", key)
        if byte_range.stop > info.size_bytes:
            raise past_the_end(key, byte_range, info.size_bytes)
        target.cast("B")[:] = memoryview(data)[byte_range.start : byte_range.stop]

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        match mode:
            case Overwrite():
                pass
            case CreateOnly():
                if key in self._objects:
                    raise ObjectExistsError("the object is already there", verb="put", key=key)
            case _:
                assert_never(mode)
        return self._keep(key, bytes(data))

    async def multipart_create(self, key: Key) -> UploadId:
        upload_id = UploadId(f"upload-{next(self._serial)}")
        self._uploads[upload_id] = (UploadInfo(key, upload_id, self._clock.unix_s()), {})
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
        if upload_id not in self._uploads:
            raise no_such_upload("put_part", key, upload_id)
        arrived = b"".join(sent)  # The one copy: here it plays the part of the network.
        if crc64nvme_of(arrived) != crc64nvme:
            raise DamagedError(f"part {part.index} arrived damaged", verb="put_part", key=key)
        self._uploads[upload_id][1][part.index] = arrived
        return _etag(part.index, arrived)

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        if upload_id not in self._uploads:
            raise no_such_upload("multipart_complete", key, upload_id)
        _, parts = self._uploads[upload_id]
        for index, etag in enumerate(part_etags):
            if index not in parts or _etag(index, parts[index]) != etag:
                raise refused_completion(key, f"part {index} is missing or another one")
        whole = b"".join(parts[index] for index in range(len(part_etags)))
        if len(whole) != size_bytes:
            raise refused_completion(key, f"it has {len(whole)} bytes, not {size_bytes}")
        if crc64nvme_of(whole) != crc64nvme:
            raise refused_completion(key, "its checksum is another one")
        del self._uploads[upload_id]
        return self._keep(key, whole)

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        self._uploads.pop(upload_id, None)

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        found = sorted(key for key in self._objects if key.startswith(prefix))
        for key in found:
            if key in self._objects:  # It may have been deleted since.
                yield self._objects[key][1]

    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        for upload, _ in list(self._uploads.values()):
            if upload.key.startswith(prefix):
                yield upload

    async def delete(self, key: Key) -> None:
        self._objects.pop(key, None)

    async def aclose(self) -> None:
        """Nothing to let go of; the objects stay, as they would anywhere else."""

    def _found(self, verb: str, key: Key) -> tuple[bytes, ObjectInfo]:
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError("there is no such object", verb=verb, key=key) from None

    def _keep(self, key: Key, data: bytes) -> Version:
        version = Version(etag=f"e{next(self._serial)}")
        info = ObjectInfo(key, len(data), version, crc64nvme_of(data), self._clock.unix_s())
        self._objects[key] = (data, info)
        return version


def _etag(index: int, data: bytes) -> str:
    return f"{index}-{crc64nvme_of(data):016x}"


_NAMED: dict[str, MemoryStore] = {}


def named_memory_store(name: str) -> MemoryStore:
    """Return the store of that name, the same one for the whole life of this process."""
    return _NAMED.setdefault(name, MemoryStore())
