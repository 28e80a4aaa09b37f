"""Bulk bytes: from the caller's memory to S3 and back, without a copy that could be spared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptstore.backends._checks import check_pieces, check_range, check_target, noted_part
from ckptstore.backends.http import chunks, direct
from ckptstore.backends.http.body import BufferBody
from ckptstore.backends.s3.caller import Caller
from ckptstore.backends.s3.errors import Call
from ckptstore.backends.s3.headers import checksum_header, version_of
from ckptstore.integrity import crc64nvme as crc64nvme_of
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    Buffer,
    ByteRange,
    CreateOnly,
    Key,
    Part,
    PutMode,
    UploadId,
    Version,
    views,
)


class BulkVerbs:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        condition = {"IfNoneMatch": "*"} if isinstance(mode, CreateOnly) else {}
        return await self._put(key, data, crc64nvme_of(data), **condition)

    async def put_unchecked(self, key: Key, data: Buffer, *, crc64nvme: int) -> Version:
        return await self._put(key, data, crc64nvme)

    async def _put(self, key: Key, data: Buffer, crc64nvme: int, **condition: str) -> Version:
        call = self._caller.call("put", key)
        parameters = {"ChecksumCRC64NVME": checksum_header(crc64nvme), **condition}
        return version_of(await self._upload("put_object", call, views([data]), **parameters))

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
        call = self._caller.call("put_part", key, upload_id=upload_id)
        answer = await self._upload(
            "upload_part",
            call,
            sent,
            PartNumber=part.index + 1,
            ChecksumCRC64NVME=checksum_header(crc64nvme),
        )
        return noted_part(part, crc64nvme, answer["ETag"])

    async def _upload(
        self, operation: str, call: Call, pieces: Sequence[memoryview], **parameters: str | int
    ) -> Any:  # noqa: ANN401
        async with self._caller.watched(call) as watch:
            watch.connecting()
            if not pieces:
                return await self._caller.send(operation, call, Body=b"", **parameters)
            body = BufferBody(pieces, watch.sent)
            try:
                return await self._caller.send(operation, call, Body=body, **parameters)
            except BaseException:
                body.abort()  # The connection may still hold on to the caller's memory.
                raise

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        check_target(byte_range, target)
        call = self._caller.call("get_into", key, byte_range=byte_range)
        wanted = f"bytes={byte_range.start}-{byte_range.stop - 1}"
        async with self._caller.watched(call) as watch:
            watch.asked()
            answer = await self._caller.send("get_object", call, Range=wanted)
            async with answer["Body"] as body:
                check_range(
                    key, byte_range, answer.get("ContentRange"), answer.get("ContentLength")
                )
                if direct.is_plain(body.raw_stream, target.nbytes):
                    await direct.fill(body.raw_stream, target.cast("B"), watch.received)
                else:
                    await chunks.fill(body.raw_stream, target.cast("B"), call.key, watch.received)
