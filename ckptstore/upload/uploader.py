"""Move shards into the store within a byte budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ckptstore.budget import ByteBudget
from ckptstore.concurrency import task_group
from ckptstore.errors import CkptStoreError, WriteOutcomeUnknownError
from ckptstore.integrity import block_crcs, joined_crc64nvme, pack_crcs, whole_crc
from ckptstore.manifest.model import Packed, ShardEntry
from ckptstore.packing import Numbers
from ckptstore.progress import Progress
from ckptstore.settings import Compression, TransferSettings
from ckptstore.store import (
    SupportsCapabilities,
    SupportsHead,
    SupportsMultipart,
    SupportsPut,
)
from ckptstore.types import ByteRange, Key, Part, UploadId
from ckptstore.upload.packer import Packer
from ckptstore.upload.plan import plan_part_size, plan_parts
from ckptstore.upload.source import ShardSource, staged

logger = logging.getLogger(__name__)

SHARDS_IN_FLIGHT_MAX: Final = 16  # Each holds an open multipart upload, and perhaps a file.
ABORT_S_MAX: Final = 2.0


class UploadStore(SupportsCapabilities, SupportsHead, SupportsPut, SupportsMultipart, Protocol):
    """All that uploading needs."""


@dataclass(frozen=True, slots=True)
class _Sent:
    etag: str
    size_bytes: int
    crc: int
    block_crcs: tuple[int, ...]


class Uploader:
    def __init__(
        self, store: UploadStore, settings: TransferSettings, *, progress: Progress | None = None
    ) -> None:
        self._store = store
        self._settings = settings
        self._budget = ByteBudget(settings.in_flight_bytes_max)
        self._shards = asyncio.Semaphore(SHARDS_IN_FLIGHT_MAX)
        self.progress = progress or Progress()

    def __str__(self) -> str:
        return f"{self.progress}; {self._budget}"

    async def upload(
        self,
        sources: Sequence[tuple[Key, ShardSource]],
        *,
        numbers: Mapping[Key, Sequence[Numbers]] | None = None,
    ) -> tuple[ShardEntry, ...]:
        """Make every shard durable and return what was written, in the order given.

        ``numbers`` says where floating-point numbers lie in a shard, which helps compression.

        All or nothing for this rank: the first failure cancels the rest and aborts their
        uploads. The error raised is the store's own, not an ``ExceptionGroup``.
        """
        self.progress.objects_total += len(sources)
        self.progress.bytes_total += sum(source.size_bytes for _, source in sources)
        async with task_group() as group:
            tasks = [
                group.create_task(self._upload_shard(key, source, (numbers or {}).get(key, ())))
                for key, source in sources
            ]
        return tuple(task.result() for task in tasks)

    async def _upload_shard(
        self, key: Key, source: ShardSource, numbers: Sequence[Numbers]
    ) -> ShardEntry:
        part_size_bytes = plan_part_size(
            source.size_bytes,
            part_size_bytes=self._settings.part_size_bytes,
            block_size_bytes=self._settings.block_size_bytes,
            capabilities=self._store.capabilities,
        )
        parts = plan_parts(source.size_bytes, part_size_bytes)
        packed = None
        async with self._shards:
            if self._settings.compression is not None:
                packer = self._packer(source, numbers, self._settings.compression)
                sent = await self._send_packed(key, packer, parts, part_size_bytes)
                packed = packer.packed
            elif len(parts) > 1:
                sent = await self._send_in_parts(key, source, parts)
            else:
                sent = [await self._send_whole(key, source)]
        self.progress.objects_done += 1
        return self._entry(key, part_size_bytes, sent, packed)

    async def _send_whole(self, key: Key, source: ShardSource) -> _Sent:
        """Send a shard of at most one part by a single request."""
        async with self._budget.hold(source.size_bytes):
            pieces = (
                await staged(source, ByteRange(0, source.size_bytes)) if source.size_bytes else ()
            )
            return await self._put(key, pieces, source.size_bytes)

    async def _put(self, key: Key, pieces: Sequence[memoryview], content_bytes: int) -> _Sent:
        data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        sent = self._sent("", [data])
        await self._store.put(key, data)
        self.progress.bytes_done += content_bytes
        return sent

    async def _send_in_parts(
        self, key: Key, source: ShardSource, parts: Sequence[Part]
    ) -> Sequence[_Sent]:
        async def send(upload_id: UploadId, part: Part) -> _Sent:
            async with self._budget.hold(part.byte_range.size_bytes):
                pieces = await staged(source, part.byte_range)
                sent = await self._put_part(key, upload_id, part, pieces)
            self.progress.bytes_done += sent.size_bytes
            return sent

        async def send_all(upload_id: UploadId) -> Sequence[_Sent]:
            async with task_group() as group:
                tasks = [group.create_task(send(upload_id, part)) for part in parts]
            return [task.result() for task in tasks]

        return await self._multipart(key, send_all)

    async def _send_packed(
        self, key: Key, packer: Packer, parts: Sequence[Part], part_size_bytes: int
    ) -> Sequence[_Sent]:
        """Send what the packer makes of a shard; that is never more than what goes into it.

        How many parts it will be is only known in the end, so a shard that might be several is
        a multipart upload, also if it becomes one. A part holds room for what is packed too.
        """
        if len(parts) <= 1:
            async with self._budget.hold(2 * packer.content_bytes):
                pieces = await packer.take(part_size_bytes)
                return [await self._put(key, pieces, packer.content_bytes)]
        sent: dict[int, _Sent] = {}
        turn = asyncio.Lock()

        async def send_next(upload_id: UploadId, content_bytes: int) -> None:
            async with self._budget.hold(2 * part_size_bytes):
                async with turn:
                    start = packer.taken_bytes
                    pieces = await packer.take(part_size_bytes)
                if pieces:
                    part = Part(start // part_size_bytes, ByteRange(start, start + _total(pieces)))
                    sent[part.index] = await self._put_part(key, upload_id, part, pieces)
            self.progress.bytes_done += content_bytes

        async def send_all(upload_id: UploadId) -> Sequence[_Sent]:
            async with task_group() as group:
                for part in parts:
                    group.create_task(send_next(upload_id, part.byte_range.size_bytes))
            return [sent[index] for index in sorted(sent)]

        return await self._multipart(key, send_all)

    async def _multipart(
        self, key: Key, send_all: Callable[[UploadId], Awaitable[Sequence[_Sent]]]
    ) -> Sequence[_Sent]:
        creating = asyncio.ensure_future(self._store.multipart_create(key))
        try:
            upload_id = await asyncio.shield(creating)
            sent = await send_all(upload_id)
            size_bytes = sum(one.size_bytes for one in sent)
            crc = joined_crc64nvme((one.crc, one.size_bytes) for one in sent)
            await self._complete(key, upload_id, [one.etag for one in sent], size_bytes, crc)
        except BaseException:
            await self._abandon(key, creating)
            raise
        return sent

    async def _put_part(
        self, key: Key, upload_id: UploadId, part: Part, pieces: Sequence[memoryview]
    ) -> _Sent:
        sent = self._sent("", pieces)  # 16 MiB: under 1 ms.
        etag = await self._store.put_part(key, upload_id, part, pieces, crc64nvme=sent.crc)
        return replace(sent, etag=etag)

    def _sent(self, etag: str, pieces: Sequence[memoryview]) -> _Sent:
        size_bytes, block_size_bytes = _total(pieces), self._settings.block_size_bytes
        crcs = block_crcs(pieces, block_size_bytes)
        return _Sent(etag, size_bytes, whole_crc(crcs, block_size_bytes, size_bytes), crcs)

    def _packer(
        self, source: ShardSource, numbers: Sequence[Numbers], compression: Compression
    ) -> Packer:
        return Packer(
            source, numbers, block_size_bytes=self._settings.block_size_bytes, settings=compression
        )

    async def _complete(
        self, key: Key, upload_id: UploadId, etags: Sequence[str], size_bytes: int, crc: int
    ) -> None:
        try:
            await self._store.multipart_complete(
                key, upload_id, etags, size_bytes=size_bytes, crc64nvme=crc
            )
        except WriteOutcomeUnknownError:
            # The key holds our uid, so whatever stands here, we put it here.
            info = await self._store.head(key)
            if info.size_bytes != size_bytes or info.crc64nvme not in (None, crc):
                raise

    async def _abandon(self, key: Key, creating: asyncio.Future[UploadId]) -> None:
        """Abort within two seconds, also if cancelled meanwhile; the first error matters more.

        An upload that is still being created is waited for: what nobody knows, nobody aborts.
        """

        async def abort() -> None:
            try:
                async with asyncio.timeout(ABORT_S_MAX):
                    await self._store.multipart_abort(key, await creating)
            except (CkptStoreError, TimeoutError) as error:
                logger.warning(
                    "%s: its multipart upload could not be aborted (%s) and may be billed until "
                    "it is; a lifecycle rule or a garbage collection ends it",
                    key,
                    str(error) or "no answer",
                )

        if creating.done() and (creating.cancelled() or creating.exception() is not None):
            return  # There is none, as far as anybody can tell.
        await asyncio.shield(asyncio.ensure_future(abort()))

    def _entry(
        self, key: Key, part_size_bytes: int, sent: Sequence[_Sent], packed: Packed | None
    ) -> ShardEntry:
        crc = joined_crc64nvme((one.crc, one.size_bytes) for one in sent)
        return ShardEntry(
            key=key,
            size_bytes=sum(one.size_bytes for one in sent),
            block_size_bytes=self._settings.block_size_bytes,
            part_size_bytes=part_size_bytes,
            crc64nvme=pack_crcs([crc]),
            block_crcs=pack_crcs([crc for one in sent for crc in one.block_crcs]),
            packed=packed,
        )


def _total(pieces: Sequence[memoryview]) -> int:
    return sum(len(piece) for piece in pieces)
