"""Objects uploaded in parts."""

from __future__ import annotations

import asyncio

import pytest

from ckptstore.errors import (
    StoreError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance._base import KEY, ContractBase
from ckptstore.types import (
    Buffer,
)


class MultipartContract(ContractBase):
    async def test_parts_are_invisible_until_complete(self, store: ObjectStore) -> None:
        whole = self.content(self.part_size_bytes + 5)
        upload_id = await store.multipart_create(KEY)
        first = await self.send(store, upload_id, 0, whole[: self.part_size_bytes])
        second = await self.send(store, upload_id, 1, whole[self.part_size_bytes :])
        await self.assert_nothing_visible(store)
        version = await self.complete(store, upload_id, [first, second], whole)
        assert await self.raw_get(store, KEY) == whole
        info = await store.head(KEY)
        assert (info.size_bytes, info.version) == (len(whole), version)
        assert info.crc64nvme in (None, crc64nvme(whole))

    async def test_an_upload_leaves_the_old_object_until_complete(self, store: ObjectStore) -> None:
        await store.put(KEY, b"old")
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, b"new")
        assert await self.raw_get(store, KEY) == b"old"
        await self.complete(store, upload_id, [etag], b"new")
        assert await self.raw_get(store, KEY) == b"new"

    async def test_parts_may_come_in_any_order_and_at_once(self, store: ObjectStore) -> None:
        size = self.part_size_bytes
        whole = self.content(3 * size + 1)
        upload_id = await store.multipart_create(KEY)
        order = [3, 1, 0, 2]
        sent = await asyncio.gather(
            *(self.send(store, upload_id, i, whole[i * size : (i + 1) * size]) for i in order)
        )
        etags = [etag for _, etag in sorted(zip(order, sent, strict=True))]
        await self.complete(store, upload_id, etags, whole)
        assert await self.raw_get(store, KEY) == whole

    async def test_a_part_may_be_sent_again(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        await self.send(store, upload_id, 0, b"first")
        etag = await self.send(store, upload_id, 0, b"again")
        await self.complete(store, upload_id, [etag], b"again")
        assert await self.raw_get(store, KEY) == b"again"

    async def test_a_part_is_its_pieces_one_after_the_other(self, store: ObjectStore) -> None:
        memory = bytearray(self.content(100_000))
        view = memoryview(memory)
        pieces: list[Buffer] = [
            b"header",
            view[10:99_000],
            bytearray(),
            view[5:6],
            memoryview(b"tail"),
        ]
        whole = b"".join(pieces)
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, *pieces)
        await self.complete(store, upload_id, [etag], whole)
        assert await self.raw_get(store, KEY) == whole

    async def test_memory_of_a_sent_part_is_free_again(self, store: ObjectStore) -> None:
        memory = bytearray(b"first")
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, memory)
        memory[:] = b"other"
        await self.complete(store, upload_id, [etag], b"first")
        assert await self.raw_get(store, KEY) == b"first"

    async def test_damaged_part_is_refused(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        part = self.part(0, 7)
        with pytest.raises(StoreError):
            await store.put_part(
                KEY, upload_id, part, [b"dbmaged"], crc64nvme=crc64nvme(b"damaged")
            )
        with pytest.raises(StoreError):
            await self.complete(store, upload_id, [""], b"damaged")
        await store.multipart_abort(KEY, upload_id)
        await self.assert_nothing_visible(store)

    async def test_pieces_that_are_not_the_part_are_refused(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        with pytest.raises(ValueError, match="7 bytes"):
            await store.put_part(KEY, upload_id, self.part(0, 7), [b"short"], crc64nvme=0)
        await store.multipart_abort(KEY, upload_id)

    async def test_wrong_checksum_of_the_whole_is_refused(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, b"payload")
        with pytest.raises(StoreError):
            await self.complete(store, upload_id, [etag], b"PAYLOAD")
        await store.multipart_abort(KEY, upload_id)
        await self.assert_nothing_visible(store)

    async def test_a_missing_part_is_refused(self, store: ObjectStore) -> None:
        size = self.part_size_bytes
        whole = self.content(size + 1)
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, whole[:size])
        with pytest.raises(StoreError):
            await store.multipart_complete(
                KEY, upload_id, [etag], size_bytes=len(whole), crc64nvme=crc64nvme(whole[:size])
            )
        await store.multipart_abort(KEY, upload_id)
        await self.assert_nothing_visible(store)

    async def test_parts_out_of_their_order_are_refused(self, store: ObjectStore) -> None:
        size = self.part_size_bytes
        half = self.content(size)  # The same twice: the checksum of the whole shows nothing.
        upload_id = await store.multipart_create(KEY)
        etags = [await self.send(store, upload_id, index, half) for index in range(2)]
        with pytest.raises(StoreError):
            await self.complete(store, upload_id, etags[::-1], half + half)
        await store.multipart_abort(KEY, upload_id)
        await self.assert_nothing_visible(store)

    async def test_an_aborted_upload_never_becomes_visible(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, b"payload")
        await store.multipart_abort(KEY, upload_id)
        with pytest.raises(WriteOutcomeUnknownError):
            await self.complete(store, upload_id, [etag], b"payload")
        await self.assert_nothing_visible(store)

    async def test_a_part_of_an_aborted_upload_is_refused_for_good(
        self, store: ObjectStore
    ) -> None:
        upload_id = await store.multipart_create(KEY)
        await store.multipart_abort(KEY, upload_id)
        with pytest.raises(StoreError) as caught:
            await self.send(store, upload_id, 0, b"payload")
        assert not caught.value.retryable

    async def test_aborting_twice_is_fine(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        await store.multipart_abort(KEY, upload_id)
        await store.multipart_abort(KEY, upload_id)

    async def test_aborting_after_completing_leaves_the_object(self, store: ObjectStore) -> None:
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, b"payload")
        await self.complete(store, upload_id, [etag], b"payload")
        await store.multipart_abort(KEY, upload_id)
        assert await self.raw_get(store, KEY) == b"payload"

    async def test_two_uploads_of_one_key_do_not_mix(self, store: ObjectStore) -> None:
        one, two = await store.multipart_create(KEY), await store.multipart_create(KEY)
        etag_one = await self.send(store, one, 0, b"one")
        await self.send(store, two, 0, b"two")
        await self.complete(store, one, [etag_one], b"one")
        await store.multipart_abort(KEY, two)
        assert await self.raw_get(store, KEY) == b"one"
