"""Listings, page by page. The parts of open uploads are objects, and told apart by their names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from ckptstore.backends.gcs.caller import Caller
from ckptstore.backends.gcs.components import upload_of
from ckptstore.backends.gcs.resource import info_of, unix_s
from ckptstore.types import Key, ObjectInfo, UploadId, UploadInfo

PAGE: Final = 1000
FIELDS: Final = "items(name,size,generation,etag,updated),nextPageToken"


class ListingVerbs:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for resource in self._resources("list_objects", prefix):
            name = resource["name"]
            # What ends with a slash is what consoles leave to show a directory.
            if not name.endswith("/") and upload_of(name) is None:
                yield info_of(resource)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        """Yield each upload that has a component left, completed and aborted ones as well.

        Its components stand next to each other in the listing.
        """
        begun: tuple[tuple[Key, UploadId], float] | None = None
        async for resource in self._resources("list_uploads", prefix):
            upload = upload_of(resource["name"])
            if upload is None or not upload[0].startswith(prefix):
                continue
            at_unix_s = unix_s(resource.get("updated")) or 0.0
            if begun is not None and begun[0] == upload:
                begun = (upload, min(begun[1], at_unix_s))
                continue
            if begun is not None:
                yield UploadInfo(*begun[0], begun[1])
            begun = (upload, at_unix_s)
        if begun is not None:
            yield UploadInfo(*begun[0], begun[1])

    async def _resources(self, verb: str, prefix: str) -> AsyncIterator[dict[str, Any]]:
        """Yield what the store says of each object, in the order of their names."""
        token: dict[str, str] = {}
        while True:
            call = self._caller.call(verb, prefix)
            query: dict[str, str | int] = {
                "prefix": prefix,
                "fields": FIELDS,
                "maxResults": PAGE,
                **token,
            }
            page = await self._caller.ask("GET", "/o", call, query=query)
            for resource in page.get("items", ()):
                yield resource
            if not page.get("nextPageToken"):
                return
            token = {"pageToken": page["nextPageToken"]}
