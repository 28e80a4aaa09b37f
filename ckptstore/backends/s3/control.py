"""Everything but bulk bytes and listings: records, and the frame of an upload."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ckptstore.backends._checks import UploadGoneError, check_parts, read_note
from ckptstore.backends.s3.caller import Caller
from ckptstore.backends.s3.headers import checksum_header, checksum_of, unix_s, version_of
from ckptstore.errors import ObjectNotFoundError
from ckptstore.types import Key, ObjectInfo, UploadId, Version


class ControlVerbs:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def head(self, key: Key) -> ObjectInfo:
        call = self._caller.call("head", key)
        answer = await self._caller.ask("head_object", call, ChecksumMode="ENABLED")
        crc = checksum_of(answer.get("ChecksumCRC64NVME"))
        modified_unix_s = unix_s(answer.get("LastModified"))
        size_bytes = int(answer["ContentLength"])
        return ObjectInfo(key, size_bytes, version_of(answer), crc, modified_unix_s)

    async def get(self, key: Key) -> bytes:
        call = self._caller.call("get", key)
        async with self._caller.watched(call) as watch:
            watch.asked()
            answer = await self._caller.send("get_object", call)
            total_bytes = int(answer.get("ContentLength", 0))
            received = bytearray()
            async with answer["Body"] as body:
                # A body that ends early raises here; read() of the SDK's would not have to.
                async for chunk in body.raw_stream.content.iter_any():
                    received += chunk
                    watch.received(len(received), total_bytes)
        return bytes(received)

    async def multipart_create(self, key: Key) -> UploadId:
        answer = await self._caller.ask(
            "create_multipart_upload",
            self._caller.call("multipart_create", key),
            ChecksumAlgorithm="CRC64NVME",
            ChecksumType="FULL_OBJECT",
        )
        return UploadId(answer["UploadId"])

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
        return await self.multipart_complete_unchecked(
            key, upload_id, part_etags, size_bytes=size_bytes, crc64nvme=crc64nvme
        )

    async def multipart_complete_unchecked(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        parts = [
            {
                "PartNumber": note.number + 1,
                "ETag": note.etag,
                "ChecksumCRC64NVME": checksum_header(note.crc64nvme),
            }
            for note in (read_note(key, index, text) for index, text in enumerate(part_etags))
        ]
        answer = await self._caller.ask(
            "complete_multipart_upload",
            self._caller.call("multipart_complete", key, upload_id=upload_id),
            MultipartUpload={"Parts": parts},
            MpuObjectSize=size_bytes,
            ChecksumCRC64NVME=checksum_header(crc64nvme),
            ChecksumType="FULL_OBJECT",
        )
        return version_of(answer)

    async def multipart_abort(self, key: Key, upload_id: UploadId) -> None:
        call = self._caller.call("multipart_abort", key, upload_id=upload_id)
        gone = (UploadGoneError, ObjectNotFoundError)  # The latter from servers without codes.
        with suppress(*gone):
            await self._caller.ask("abort_multipart_upload", call)

    async def delete(self, key: Key) -> None:
        await self._caller.ask("delete_object", self._caller.call("delete", key))
