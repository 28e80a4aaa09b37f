"""Listings, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ckptstore.backends.s3.caller import Caller
from ckptstore.backends.s3.headers import unix_s, version_of
from ckptstore.backends.s3.options import is_directory_bucket
from ckptstore.errors import StoreError
from ckptstore.types import Key, ObjectInfo, UploadId, UploadInfo


class ListingVerbs:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield in key order; of a directory bucket, which has none, after all of it was read."""
        found = self._objects(_listed_by(self._caller.bucket, prefix))
        if is_directory_bucket(self._caller.bucket):
            wanted = [info async for info in found if info.key.startswith(prefix)]
            for info in sorted(wanted, key=lambda info: info.key):
                yield info
        else:
            async for info in found:
                yield info

    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        """Yield what the server shows. MinIO shows only uploads whose whole key is the prefix."""
        async for upload in self._uploads(_listed_by(self._caller.bucket, prefix)):
            if upload.key.startswith(prefix):
                yield upload

    async def _objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        token: dict[str, str] = {}
        while True:
            call = self._caller.call("list_objects", prefix)
            page = await self._caller.ask("list_objects_v2", call, Prefix=prefix, **token)
            for entry in page.get("Contents", ()):
                if not entry["Key"].endswith("/"):  # What consoles leave to show a directory.
                    yield ObjectInfo(
                        Key(entry["Key"]),
                        int(entry["Size"]),
                        version_of(entry),
                        modified_unix_s=unix_s(entry.get("LastModified")),
                    )
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                raise _lost("list_objects", prefix)
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def _uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        marker: dict[str, str] = {}
        while True:
            call = self._caller.call("list_uploads", prefix)
            page = await self._caller.ask("list_multipart_uploads", call, Prefix=prefix, **marker)
            for entry in page.get("Uploads", ()):
                upload_id = UploadId(entry["UploadId"])
                yield UploadInfo(Key(entry["Key"]), upload_id, unix_s(entry.get("Initiated")))
            if not page.get("IsTruncated"):
                return
            if not page.get("NextKeyMarker"):
                raise _lost("list_uploads", prefix)
            marker = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextUploadIdMarker"):
                marker["UploadIdMarker"] = page["NextUploadIdMarker"]


def _listed_by(bucket: str, prefix: str) -> str:
    """Return the prefix to ask for: a directory bucket takes none that ends within a name."""
    if not is_directory_bucket(bucket):
        return prefix
    directory, slash, _ = prefix.rpartition("/")
    return directory + slash


def _lost(verb: str, prefix: str) -> StoreError:
    return StoreError("the listing goes on, but not how", verb=verb, key=prefix)
