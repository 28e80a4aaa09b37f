"""The storage contract, one protocol per verb.

Ask for the narrowest protocol that lets you do your job. ``ObjectStore`` is for the places
that build and wrap stores, not for the places that use one.

Every verb may raise any ``StoreError``. Cancelling a call closes what it holds open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol, runtime_checkable

from ckptstore.types import (
    Access,
    Buffer,
    ByteRange,
    Capabilities,
    Key,
    ObjectInfo,
    Overwrite,
    Part,
    PutMode,
    UploadId,
    UploadInfo,
    Version,
)

OVERWRITE: Final = Overwrite()


class SupportsCapabilities(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...


class SupportsHead(Protocol):
    async def head(self, key: Key) -> ObjectInfo:
        """Describe one object, or raise ``ObjectNotFoundError``."""


class SupportsGet(Protocol):
    async def get(self, key: Key) -> bytes:
        """Return a whole small object, such as a record. Bulk data goes through ``get_into``."""


class SupportsGetInto(Protocol):
    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        """Fill ``target`` with exactly the bytes asked for, or raise.

        The caller owns the memory and sizes it: ``target`` is as long as the range. Nothing
        is copied on the way that does not have to be. A short read is an error, and after an
        error ``target`` holds anything; calling again starts the range over. A range that
        reaches past the end of the object is a ``TruncatedObjectError``.
        """


class SupportsPut(Protocol):
    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        """Write ``data`` so that no reader ever sees part of it. For up to one part's bytes.

        Raises ``ObjectExistsError`` when ``mode`` refuses the write, and
        ``WriteOutcomeUnknownError`` when a conditional write cannot be told to have landed
        or not.
        """


class SupportsMultipart(Protocol):
    """Multipart as stateless verbs, so that layers and retries have nothing to lose.

    Parts may be sent in any order, concurrently, more than once. Nothing is visible under
    ``key`` until ``multipart_complete`` returns.
    """

    async def multipart_create(self, key: Key) -> UploadId: ...

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        """Send one part from the caller's memory, without copying it, and return its etag.

        The part's bytes are the pieces, one after the other; ``crc64nvme`` is that of all of
        them. The store, or the backend where the store cannot, refuses a part that arrives
        with another checksum. The memory must not change until this returns; afterwards
        nobody looks at it any more, so it may be used again at once.
        """

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        """Make the parts, in the order of their etags, one object; size and checksum must fit."""

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        """Throw the parts away. Aborting what is already gone is a success."""


class SupportsList(Protocol):
    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield every object whose key starts with ``prefix``, in key order, uncached.

        An error is raised, never turned into an end of the listing.
        """


class SupportsListUploads(Protocol):
    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        """Yield every open multipart upload to a key that starts with ``prefix``, in any order.

        What was open all the while is there; what was begun, completed or aborted meanwhile may
        be. An error is raised, never turned into an end of the listing. A server that lists
        uploads by whole keys only (MinIO) shows none here.
        """


class SupportsDelete(Protocol):
    async def delete(self, key: Key) -> None:
        """Make sure nothing is there; deleting nothing is a success."""


class ObjectStore(
    SupportsCapabilities,
    SupportsHead,
    SupportsGet,
    SupportsGetInto,
    SupportsPut,
    SupportsMultipart,
    SupportsList,
    SupportsListUploads,
    SupportsDelete,
    Protocol,
):
    """Everything at once: what a backend implements and a layer forwards."""

    async def aclose(self) -> None:
        """Let go of connections and descriptors. The objects stay."""


@runtime_checkable
class SupportsAccess(Protocol):
    """Optional, for ``ckptstore probe``: what a backend knows of the way to its store."""

    async def access(self) -> Access:
        """Tell the endpoint, the credentials (where from, until when) and the trust in it."""


@runtime_checkable
class SupportsUnchecked(Protocol):
    """Optional, for ``ckptstore probe``: writes that take the caller's word for everything.

    A backend checks much by itself before it sends anything. Here nothing is checked, so that
    only the store is left to refuse what is wrong.
    """

    async def put_unchecked(self, key: Key, data: Buffer, *, crc64nvme: int) -> Version:
        """Put ``data``, saying that its checksum is ``crc64nvme``."""

    async def multipart_complete_unchecked(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        """Complete an upload, saying that these are its parts, its size and its checksum."""


STORE_VERBS: Final = frozenset(
    {
        "head",
        "get",
        "get_into",
        "put",
        "multipart_create",
        "put_part",
        "multipart_complete",
        "multipart_abort",
        "list_objects",
        "list_uploads",
        "delete",
    }
)
