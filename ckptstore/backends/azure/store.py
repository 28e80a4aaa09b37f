"""A container as a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from ckptstore.backends._checks import (
    UploadGoneError,
    check_parts,
    check_pieces,
    check_range,
    check_target,
    noted_part,
)
from ckptstore.backends.azure import wire
from ckptstore.backends.azure.access import AzureAccess
from ckptstore.backends.azure.caller import Caller, open_caller
from ckptstore.backends.http import chunks, direct
from ckptstore.clock import SystemClock
from ckptstore.errors import ObjectExistsError, ObjectNotFoundError
from ckptstore.integrity import crc64nvme as crc64nvme_of
from ckptstore.settings import RequestSettings
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    MIB,
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
    views,
)

AZURE_CAPABILITIES: Final = Capabilities(
    create_only=True,
    part_size_bytes_max=4000 * MIB,
    part_count_max=50_000,
    fan_out=64,
)
_IF_NEW: Final = {"If-None-Match": "*"}


class AzureStore:
    """An Azure container. Belongs to the loop it was opened on.

    Azure keeps blocks under the name of a blob, whoever sent them. So an upload's id stands in
    the ids of its blocks, and a first block says that it was begun. Completing one upload of a
    key ends all of them; aborting discards the blocks once no upload of that key is open.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._aborted: set[UploadId] = set()  # By us: a late part must not bring them back.

    def __repr__(self) -> str:
        return f"AzureStore({self._caller})"

    @property
    def capabilities(self) -> Capabilities:
        return AZURE_CAPABILITIES

    async def head(self, key: Key) -> ObjectInfo:
        headers, _ = await self._caller.ask("HEAD", self._caller.call("head", key))
        return wire.info_of(key, headers)

    async def get(self, key: Key) -> bytes:
        _, body = await self._caller.ask("GET", self._caller.call("get", key))
        return body

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        check_target(byte_range, target)
        call = self._caller.call("get_into", key, byte_range=byte_range)
        wanted = {"x-ms-range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
        async with self._caller.watched(call) as watch:
            watch.asked()
            async with self._caller.sent("GET", call, key, None, wanted, b"") as raw:
                headers = raw.headers
                check_range(
                    key, byte_range, headers.get("Content-Range"), headers.get("Content-Length")
                )
                view = target.cast("B")
                if direct.is_plain(raw, len(view)):
                    await direct.fill(raw, view, watch.received)
                else:  # The emulator answers in chunks.
                    await chunks.fill(raw, view, key, watch.received)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        crc = crc64nvme_of(data)
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "x-ms-content-crc64": wire.checksum_header(crc),
            **wire.crc_metadata(crc),
            **(_IF_NEW if isinstance(mode, CreateOnly) else {}),
        }
        call = self._caller.call("put", key)
        return wire.version_of(await self._caller.upload(call, {}, headers, views([data])))

    async def multipart_create(self, key: Key) -> UploadId:
        upload_id = wire.new_upload_id(SystemClock().unix_s())
        await self._mark("multipart_create", key, upload_id, wire.BEGUN)
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
        if upload_id in self._aborted:
            raise UploadGoneError(f"upload {upload_id} was aborted", verb="put_part", key=key)
        block_id = wire.new_block_id(upload_id, part.index)
        call = self._caller.call("put_part", key, upload_id=upload_id)
        headers = {"x-ms-content-crc64": wire.checksum_header(crc64nvme)}
        await self._caller.upload(call, {"comp": "block", "blockid": block_id}, headers, sent)
        return noted_part(part, crc64nvme, block_id)

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        parts = check_parts(key, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme)
        call = self._caller.call("multipart_complete", key, upload_id=upload_id)
        headers, _ = await self._caller.ask(
            "PUT",
            call,
            {"comp": "blocklist"},
            wire.crc_metadata(crc64nvme),
            body=wire.block_list(block_id for _, block_id in parts),
        )
        return wire.version_of(headers)

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        """Discard the blocks, unless another upload of the key is open: then whoever ends last.

        Azure discards blocks only when the blob is written, so an empty one is, where there is
        none, and deleted again. A blob that is there is left alone: its blocks end in a week.
        """
        self._aborted.add(upload_id)
        found, ended = await self._uploads("multipart_abort", key)
        if upload_id not in found:
            return
        if found - ended - {upload_id}:
            await self._mark("multipart_abort", key, upload_id, wire.ENDED)
            found, ended = await self._uploads("multipart_abort", key)
            if found - ended:
                return
        call = self._caller.call("multipart_abort", key)
        with suppress(ObjectExistsError, ObjectNotFoundError):
            headers, _ = await self._caller.ask(
                "PUT", call, {"comp": "blocklist"}, _IF_NEW, body=wire.block_list(())
            )
            await self._caller.ask("DELETE", call, None, {"If-Match": headers["ETag"]})

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._listed("list_objects", prefix, "metadata"):
            yield info

    async def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        """Yield the uploads of keys under which there is no blob yet: Azure shows no others."""
        async for info in self._listed("list_uploads", prefix, "uncommittedblobs"):
            if info.size_bytes == 0:  # What is not committed has no bytes yet.
                found, ended = await self._uploads("list_uploads", info.key)
                for upload_id in sorted(found - ended):
                    yield UploadInfo(info.key, upload_id, wire.begun_unix_s(upload_id))

    async def delete(self, key: Key) -> None:
        with suppress(ObjectNotFoundError):
            await self._caller.ask("DELETE", self._caller.call("delete", key))

    async def aclose(self) -> None:
        await self._caller.aclose()

    async def _listed(self, verb: str, prefix: str, include: str) -> AsyncIterator[ObjectInfo]:
        query = {"restype": "container", "comp": "list", "prefix": prefix, "include": include}
        if not prefix:
            del query["prefix"]
        while True:
            call = self._caller.call(verb, prefix)
            _, body = await self._caller.ask("GET", call, query, of_container=True)
            found, marker = wire.page_of(body)
            for info in found:
                yield info
            if not marker:
                return
            query["marker"] = marker

    async def _mark(self, verb: str, key: Key, upload_id: UploadId, what: str) -> None:
        query = {"comp": "block", "blockid": wire.new_block_id(upload_id, what)}
        await self._caller.ask("PUT", self._caller.call(verb, key), query, body=b"-")

    async def _uploads(self, verb: str, key: Key) -> tuple[set[UploadId], set[UploadId]]:
        query = {"comp": "blocklist", "blocklisttype": "uncommitted"}
        try:
            _, body = await self._caller.ask("GET", self._caller.call(verb, key), query)
        except ObjectNotFoundError:
            return set(), set()
        return wire.uploads_of(wire.uncommitted_ids(body))


async def open_azure_store(access: AzureAccess, settings: RequestSettings) -> AzureStore:
    """Open a container; no request is sent. Raises ``SettingsError`` without credentials."""
    return AzureStore(await open_caller(access, settings))
