"""Move shards into the store within a byte budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ckptstore.budget import ByteBudget
from ckptstore.concurrency import task_group
from ckptstore.errors import CkptStoreError, WriteOutcomeUnknownError
from ckptstore.integrity import block_crcs, whole_crc
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import ShardEntry, pack_crcs
from ckptstore.progress import Progress
from ckptstore.settings import TransferSettings
from ckptstore.store import (
    SupportsCapabilities,
    SupportsHead,
    SupportsMultipart,
    SupportsPut,
)
from ckptstore.types import Buffer, ByteRange, Key, Part, UploadId, views
from ckptstore.upload.plan import plan_part_size, plan_parts

logger = logging.getLogger(__name__)

SHARDS_IN_FLIGHT_MAX: Final = 16  # Each holds an open multipart upload, and perhaps a file.
ABORT_S_MAX: Final = 2.0


class ShardSource(Protocol):
    """A shard that can stage any of its bytes into host memory."""

    @property
    def kind(self) -> ShardKind: ...
    @property
    def size_bytes(self) -> int: ...
    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        """Return these bytes as pieces, to be laid end to end, without copying if possible.

        The memory must stay as it is until the part was sent. Parts are asked for in order,
        several at a time, and again only if the whole upload is tried again.
        """


class UploadStore(SupportsCapabilities, SupportsHead, SupportsPut, SupportsMultipart, Protocol):
    """All that uploading needs."""


@dataclass(frozen=True, slots=True)
class _Sent:
    etag: str
    crcs: tuple[int, ...]


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

    async def upload(self, sources: Sequence[tuple[Key, ShardSource]]) -> tuple[ShardEntry, ...]:
        """Make every shard durable and return what was written, in the order given.

        All or nothing for this rank: the first failure cancels the rest and aborts their
        uploads. The error raised is the store's own, not an ``ExceptionGroup``.
        """
        self.progress.objects_total += len(sources)
        self.progress.bytes_total += sum(source.size_bytes for _, source in sources)
        async with task_group() as group:
            tasks = [group.create_task(self._upload_shard(key, source)) for key, source in sources]
        return tuple(task.result() for task in tasks)

    async def _upload_shard(self, key: Key, source: ShardSource) -> ShardEntry:
        part_size_bytes = plan_part_size(
            source.size_bytes,
            part_size_bytes=self._settings.part_size_bytes,
            block_size_bytes=self._settings.block_size_bytes,
            capabilities=self._store.capabilities,
        )
        parts = plan_parts(source.size_bytes, part_size_bytes)
        async with self._shards:
            if len(parts) > 1:
                crcs = await self._send_in_parts(key, source, parts)
            else:
                crcs = await self._send_whole(key, source)
        self.progress.objects_done += 1
        return self._entry(key, source.size_bytes, part_size_bytes, crcs)

    async def _send_whole(self, key: Key, source: ShardSource) -> tuple[int, ...]:
        """Send a shard of at most one part by a single request."""
        async with self._budget.hold(source.size_bytes):
            pieces = (
                await _staged(source, ByteRange(0, source.size_bytes)) if source.size_bytes else ()
            )
            data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
            crcs = block_crcs([data], self._settings.block_size_bytes)
            await self._store.put(key, data)
        self.progress.bytes_done += source.size_bytes
        return crcs

    async def _send_in_parts(
        self, key: Key, source: ShardSource, parts: Sequence[Part]
    ) -> tuple[int, ...]:
        creating = asyncio.ensure_future(self._store.multipart_create(key))
        try:
            upload_id = await asyncio.shield(creating)
            async with task_group() as group:
                tasks = [
                    group.create_task(self._send_part(key, source, upload_id, part))
                    for part in parts
                ]
            sent = [task.result() for task in tasks]
            crcs = tuple(crc for one in sent for crc in one.crcs)
            crc = whole_crc(crcs, self._settings.block_size_bytes, source.size_bytes)
            await self._complete(key, upload_id, [one.etag for one in sent], source.size_bytes, crc)
        except BaseException:
            await self._abandon(key, creating)
            raise
        return crcs

    async def _send_part(
        self, key: Key, source: ShardSource, upload_id: UploadId, part: Part
    ) -> _Sent:
        size_bytes = part.byte_range.size_bytes
        async with self._budget.hold(size_bytes):
            pieces = await _staged(source, part.byte_range)
            crcs = block_crcs(pieces, self._settings.block_size_bytes)  # 16 MiB: under 1 ms.
            crc = whole_crc(crcs, self._settings.block_size_bytes, size_bytes)
            etag = await self._store.put_part(key, upload_id, part, pieces, crc64nvme=crc)
        self.progress.bytes_done += size_bytes
        return _Sent(etag, crcs)

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
        self, key: Key, size_bytes: int, part_size_bytes: int, crcs: tuple[int, ...]
    ) -> ShardEntry:
        block_size_bytes = self._settings.block_size_bytes
        return ShardEntry(
            key=key,
            size_bytes=size_bytes,
            block_size_bytes=block_size_bytes,
            part_size_bytes=part_size_bytes,
            crc64nvme=pack_crcs([whole_crc(crcs, block_size_bytes, size_bytes)]),
            block_crcs=pack_crcs(crcs),
        )


async def _staged(source: ShardSource, byte_range: ByteRange) -> tuple[memoryview, ...]:
    """Return the pieces, and never believe a source about how many bytes they are."""
    pieces = views(await source.stage(byte_range))
    found = sum(len(piece) for piece in pieces)
    if found != byte_range.size_bytes:
        raise CkptStoreError(f"{source!r} staged {found} of {byte_range.size_bytes} bytes")
    return pieces
