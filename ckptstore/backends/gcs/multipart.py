"""Uploads in parts. Each part is an object with a name of its own, until they are composed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from ckptstore.backends._checks import (
    check_parts,
    check_pieces,
    no_such_upload,
    noted_part,
    refused_completion,
)
from ckptstore.backends.gcs import components
from ckptstore.backends.gcs.caller import object_path
from ckptstore.backends.gcs.components import Component
from ckptstore.backends.gcs.listing import ListingVerbs
from ckptstore.backends.gcs.objects import ObjectVerbs
from ckptstore.backends.gcs.resource import FIELDS, crc_of, version_of
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import (
    DamagedError,
    ObjectNotFoundError,
    RefusedError,
    StoreError,
    TransientStoreError,
)
from ckptstore.integrity import crc64nvme as crc64nvme_of
from ckptstore.integrity import joined_crc32c
from ckptstore.types import Buffer, Key, Part, UploadId, Version, views

AT_ONCE: Final = 8  # Requests of one call, when it has many to send.

logger = logging.getLogger(__name__)


class MultipartVerbs(ObjectVerbs, ListingVerbs):
    async def multipart_create(self, key: Key) -> UploadId:
        upload_id = components.new_upload()
        call = self._caller.call("multipart_create", key)
        await self._create(call, components.begun_name(key, upload_id), ())
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
        _check_crc(key, part, sent, crc64nvme)
        name = components.new_name(key, upload_id, part.index)
        made = _component(await self._create(self._caller.call("put_part", key), name, sent))
        try:
            await self._check_open("put_part", key, upload_id)
        except StoreError:
            await self._discard(made)
            raise
        return noted_part(part, crc64nvme, str(made))

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        checked = check_parts(key, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme)
        sources: Sequence[Component] = [components.parse_component(etag) for _, etag in checked]
        try:
            await self._check_open("multipart_complete", key, upload_id)
            sources = await self._few(key, upload_id, sources)
        except TransientStoreError as error:
            if isinstance(error, RefusedError):
                raise
            raise RefusedError(  # Nothing of this can be seen, so all of it may be repeated.
                f"the parts were not joined yet: {error.detail}", verb=error.verb, key=key
            ) from error
        version = version_of(await self._composed(key, upload_id, key, sources))
        try:
            await self.multipart_abort(key, upload_id)
        except StoreError as error:
            logger.warning("%s is complete; its parts are left for gc to delete: %s", key, error)
        return version

    async def _few(
        self, key: Key, upload_id: UploadId, joined: Sequence[Component]
    ) -> Sequence[Component]:
        """Join components, round by round, until one compose takes all that are left."""
        while len(joined) > components.SOURCES_MAX:
            groups = components.grouped(joined)
            joined = await map_concurrently(
                lambda group: self._joined(key, upload_id, group), groups, in_flight_max=AT_ONCE
            )
        return joined

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        """Close the upload, then delete its components: one that comes later deletes itself."""
        await self._delete("multipart_abort", components.begun_name(key, upload_id))
        prefix = components.all_of(key, upload_id)
        names = [
            resource["name"]
            async for resource in self._resources("multipart_abort", prefix)
            if components.upload_of(resource["name"]) == (key, upload_id)
        ]
        await map_concurrently(
            lambda name: self._delete("multipart_abort", name), names, in_flight_max=AT_ONCE
        )

    async def _check_open(self, verb: str, key: Key, upload_id: UploadId) -> None:
        try:
            await self.head(Key(components.begun_name(key, upload_id)))
        except ObjectNotFoundError as error:
            raise no_such_upload(verb, key, upload_id) from error

    async def _joined(
        self, key: Key, upload_id: UploadId, sources: Sequence[Component]
    ) -> Component:
        name = components.new_name(key, upload_id, 0)
        return _component(await self._composed(key, upload_id, name, sources, ifGenerationMatch=0))

    async def _composed(
        self, key: Key, upload_id: UploadId, name: str, sources: Sequence[Component], **when: int
    ) -> dict[str, Any]:
        """Make one object of these, and only of these generations; say if it is another one.

        Size and checksum of the result follow from the sources'. The store has checked those
        on arrival, so a result that differs is a fault of the store's, and is deleted.
        """
        resource = await self._caller.ask(
            "POST",
            f"{object_path(name)}/compose",
            self._caller.call("multipart_complete", key, upload_id=upload_id),
            body={
                "sourceObjects": [
                    {
                        "name": source.name,
                        "objectPreconditions": {"ifGenerationMatch": source.generation},
                    }
                    for source in sources
                ],
                "destination": {"contentType": "application/octet-stream"},
            },
            query={"fields": FIELDS, **when},
        )
        size_bytes = sum(source.size_bytes for source in sources)
        crc = joined_crc32c((source.crc32c, source.size_bytes) for source in sources)
        if (int(resource["size"]), crc_of(resource.get("crc32c"))) != (size_bytes, crc):
            await self._discard(_component(resource))
            raise refused_completion(key, "what the store made of its parts is not their sum")
        return resource


def _component(resource: dict[str, Any]) -> Component:
    return Component(
        resource["name"],
        str(resource["generation"]),
        int(resource["size"]),
        crc_of(resource.get("crc32c")) or 0,
    )


def _check_crc(key: Key, part: Part, sent: Sequence[memoryview], crc64nvme: int) -> None:
    """The store knows no CRC-64/NVME, so that one is checked before the part leaves."""
    crc = 0
    for piece in sent:
        crc = crc64nvme_of(piece, crc)
    if crc != crc64nvme:
        raise DamagedError(
            f"part {part.index} is not what its checksum was taken of", verb="put_part", key=key
        )
