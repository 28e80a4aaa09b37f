"""The contract as tests. Subclass, provide ``store``, and pytest does the rest.

What a store could satisfy by agreeing with itself is read through ``raw_get``: override it
with a second client, or with another way in, wherever there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

import pytest

from ckptstore.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.store import ObjectStore
from ckptstore.types import (
    Buffer,
    ByteRange,
    CreateOnly,
    Key,
    Part,
    UploadId,
    Version,
    parse_key,
)

KEY = parse_key("a/b/shard-0")


class StoreContract:
    """Every promise of ``ckptstore.store``, as a test.

    ``part_size_bytes`` is what all parts but the last have in these tests; raise it to the
    least that the store takes. ``list_count`` should be more than fits on a page of its listing.
    Some servers list directory by directory (``a/c`` before ``a-b``): for them, say that
    ``lists_in_key_order`` is false. Within one directory all of them keep the order.
    ``lists_uploads`` is false where open uploads are not listed by prefix (MinIO).
    """

    part_size_bytes: ClassVar[int] = 1024
    list_count: ClassVar[int] = 30
    lists_in_key_order: bool = True
    lists_uploads: bool = True

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError("provide a store that is empty")

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        """Return what lies under ``key``, past the store under test if that is possible."""
        return await store.get(key)

    def part(self, index: int, size_bytes: int) -> Part:
        start = index * self.part_size_bytes
        return Part(index, ByteRange(start, start + size_bytes))

    def content(self, size_bytes: int) -> bytes:
        return bytes(range(251)) * (size_bytes // 251) + bytes(range(size_bytes % 251))

    async def send(
        self, store: ObjectStore, upload_id: UploadId, index: int, *pieces: Buffer
    ) -> str:
        data = b"".join(pieces)
        part = self.part(index, len(data))
        return await store.put_part(KEY, upload_id, part, pieces, crc64nvme=crc64nvme(data))

    async def complete(
        self, store: ObjectStore, upload_id: UploadId, etags: Sequence[str], whole: bytes
    ) -> Version:
        crc = crc64nvme(whole)
        return await store.multipart_complete(
            KEY, upload_id, etags, size_bytes=len(whole), crc64nvme=crc
        )

    async def assert_nothing_visible(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectNotFoundError):
            await store.head(KEY)
        assert [info async for info in store.list_objects("")] == []

    # put, get, head

    async def test_get_returns_what_was_put(self, store: ObjectStore) -> None:
        await store.put(KEY, b"payload")
        assert await store.get(KEY) == b"payload"
        assert await self.raw_get(store, KEY) == b"payload"

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    async def test_every_kind_of_buffer_can_be_put(
        self, store: ObjectStore, kind: type[bytes | bytearray | memoryview]
    ) -> None:
        await store.put(KEY, kind(b"payload"))
        assert await self.raw_get(store, KEY) == b"payload"

    async def test_an_object_may_be_empty(self, store: ObjectStore) -> None:
        await store.put(KEY, b"")
        assert await store.get(KEY) == b""
        assert (await store.head(KEY)).size_bytes == 0

    async def test_put_overwrites(self, store: ObjectStore) -> None:
        first = await store.put(KEY, b"first")
        second = await store.put(KEY, b"the second")
        assert await self.raw_get(store, KEY) == b"the second"
        assert first != second

    async def test_head_describes_the_object(self, store: ObjectStore) -> None:
        version = await store.put(KEY, b"payload")
        info = await store.head(KEY)
        assert (info.key, info.size_bytes, info.version) == (KEY, 7, version)
        assert info.crc64nvme in (None, crc64nvme(b"payload"))

    async def test_memory_of_what_was_put_is_free_again(self, store: ObjectStore) -> None:
        memory = bytearray(b"first")
        await store.put(KEY, memory)
        memory[:] = b"other"
        assert await self.raw_get(store, KEY) == b"first"

    async def test_missing_object_is_not_found(self, store: ObjectStore) -> None:
        await store.put(parse_key("a/b/shard-00"), b"a longer name is another object")
        with pytest.raises(ObjectNotFoundError):
            await store.head(KEY)
        with pytest.raises(ObjectNotFoundError):
            await store.get(KEY)
        with pytest.raises(ObjectNotFoundError):
            await store.get_into(KEY, ByteRange(0, 1), memoryview(bytearray(1)))

    @pytest.mark.parametrize(
        "name",
        ["with space", "plus+and%percent", "q?a=b&c", "#hash", "ünïcødé/雪", "x" * 200, "a=b,c;d"],
    )
    async def test_unusual_keys_are_kept_as_they_are(self, store: ObjectStore, name: str) -> None:
        key = parse_key(f"odd/{name}")
        await store.put(key, name.encode())
        assert await store.get(key) == name.encode()
        assert [info.key async for info in store.list_objects("odd/")] == [key]

    # ranges

    async def test_range_is_half_open_and_lands_in_our_memory(self, store: ObjectStore) -> None:
        await store.put(KEY, b"0123456789")
        memory = bytearray(b"-----")
        await store.get_into(KEY, ByteRange(2, 5), memoryview(memory)[1:4])
        assert memory == b"-234-"

    async def test_range_may_be_the_whole_object(self, store: ObjectStore) -> None:
        whole = self.content(300_000)
        await store.put(KEY, whole)
        memory = bytearray(len(whole))
        await store.get_into(KEY, ByteRange(0, len(whole)), memoryview(memory))
        assert memory == whole

    @pytest.mark.parametrize("start", [8, 10, 11])
    async def test_range_past_the_end_is_an_error(self, store: ObjectStore, start: int) -> None:
        await store.put(KEY, b"0123456789")
        target = memoryview(bytearray(4))
        with pytest.raises(StoreError) as caught:
            await store.get_into(KEY, ByteRange(start, start + 4), target)
        assert not caught.value.retryable
        assert not isinstance(caught.value, ObjectNotFoundError)

    @pytest.mark.parametrize("size_bytes", [2, 4])
    async def test_target_must_be_as_long_as_the_range(
        self, store: ObjectStore, size_bytes: int
    ) -> None:
        await store.put(KEY, b"0123456789")
        with pytest.raises(ValueError, match="3 bytes"):
            await store.get_into(KEY, ByteRange(0, 3), memoryview(bytearray(size_bytes)))

    # create-only

    async def test_create_only_refuses_a_second_writer(self, store: ObjectStore) -> None:
        _needs_create_only(store)
        await store.put(KEY, b"first", mode=CreateOnly())
        with pytest.raises(ObjectExistsError):
            await store.put(KEY, b"second", mode=CreateOnly())
        assert await self.raw_get(store, KEY) == b"first"

    async def test_create_only_refuses_what_was_uploaded_in_parts(self, store: ObjectStore) -> None:
        _needs_create_only(store)
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, b"in parts")
        await self.complete(store, upload_id, [etag], b"in parts")
        with pytest.raises(ObjectExistsError):
            await store.put(KEY, b"second", mode=CreateOnly())
        assert await self.raw_get(store, KEY) == b"in parts"

    async def test_one_of_two_concurrent_creators_wins(self, store: ObjectStore) -> None:
        _needs_create_only(store)
        offers = [b"one", b"two", b"three", b"four"]
        answers = await asyncio.gather(
            *(store.put(KEY, offer, mode=CreateOnly()) for offer in offers),
            return_exceptions=True,
        )
        won = [o for o, a in zip(offers, answers, strict=True) if isinstance(a, Version)]
        assert len(won) == 1
        lost = [answer for answer in answers if not isinstance(answer, Version)]
        # A store may answer that it could not tell yet; nobody but the winner may hear yes.
        assert all(isinstance(answer, ObjectExistsError | StoreError) for answer in lost)
        assert await self.raw_get(store, KEY) == won[0]

    async def test_a_deleted_object_can_be_created_again(self, store: ObjectStore) -> None:
        _needs_create_only(store)
        await store.put(KEY, b"first", mode=CreateOnly())
        await store.delete(KEY)
        await store.put(KEY, b"second", mode=CreateOnly())
        assert await self.raw_get(store, KEY) == b"second"

    # multipart

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

    async def test_an_open_upload_is_listed_until_it_is_completed(self, store: ObjectStore) -> None:
        if not self.lists_uploads:
            pytest.skip("this server does not list open uploads by prefix")
        upload_id = await store.multipart_create(KEY)
        etag = await self.send(store, upload_id, 0, b"payload")
        [upload] = [upload async for upload in store.list_uploads("a/")]
        assert (upload.key, upload.upload_id) == (KEY, upload_id)
        _assert_recent(upload.begun_unix_s)
        assert [upload async for upload in store.list_uploads("b/")] == []
        await self.complete(store, upload_id, [etag], b"payload")
        assert [upload async for upload in store.list_uploads("")] == []

    async def test_every_open_upload_is_listed_also_of_one_key(self, store: ObjectStore) -> None:
        if not self.lists_uploads:
            pytest.skip("this server does not list open uploads by prefix")
        keys = [parse_key(f"many/{i:02d}") for i in range(20)] * 2
        begun = await asyncio.gather(*(store.multipart_create(key) for key in keys))
        found = [(upload.key, upload.upload_id) async for upload in store.list_uploads("many/")]
        assert sorted(found) == sorted(zip(keys, begun, strict=True))
        await asyncio.gather(*(store.multipart_abort(*upload) for upload in found))
        assert [upload async for upload in store.list_uploads("")] == []

    async def test_a_single_put_leaves_no_open_upload(self, store: ObjectStore) -> None:
        await store.put(KEY, b"payload")
        assert [upload async for upload in store.list_uploads("")] == []

    # listing and deleting

    async def test_listing_is_ordered_by_whole_keys(self, store: ObjectStore) -> None:
        if not self.lists_in_key_order:
            pytest.skip("this server lists directory by directory")
        names = ["p/2", "p/10", "q/1", "p/1", "p/a.b", "p/a/c", "p/a-b/c", "p/é", "p/Z", "p.x"]
        for name in names:
            await store.put(parse_key(name), b"x")
        expected = sorted(name for name in names if name.startswith("p/"))
        assert [info.key async for info in store.list_objects("p/")] == expected
        assert [info.key async for info in store.list_objects("")] == sorted(names)

    async def test_listing_a_directory_is_ordered_and_all_there(self, store: ObjectStore) -> None:
        for name in ("p/2", "p/10", "q/1", "p/1", "p/é", "p/Z", "p.x", "p/a/c", "p/a-b/c"):
            await store.put(parse_key(name), b"x")
        found = [info.key async for info in store.list_objects("p/")]
        in_it = [key for key in found if key.count("/") == 1]
        assert in_it == ["p/1", "p/10", "p/2", "p/Z", "p/é"]
        assert sorted(set(found) - set(in_it)) == ["p/a-b/c", "p/a/c"]

    async def test_a_prefix_may_end_within_a_name(self, store: ObjectStore) -> None:
        for name in ("p/rank-0", "p/rank-1", "p/rank", "p/other", "p/rank-dir/x"):
            await store.put(parse_key(name), b"x")
        found = [info.key async for info in store.list_objects("p/rank-")]
        assert found == ["p/rank-0", "p/rank-1", "p/rank-dir/x"]

    async def test_listing_tells_sizes_versions_and_ages(self, store: ObjectStore) -> None:
        version = await store.put(KEY, b"payload")
        [info] = [info async for info in store.list_objects("a/")]
        assert (info.size_bytes, info.version) == (7, version)
        _assert_recent(info.modified_unix_s)
        _assert_recent((await store.head(KEY)).modified_unix_s)

    async def test_listing_nothing_yields_nothing(self, store: ObjectStore) -> None:
        assert [info async for info in store.list_objects("no/such/prefix/")] == []

    async def test_a_long_listing_is_complete(self, store: ObjectStore) -> None:
        keys = [parse_key(f"many/{i:05d}") for i in range(self.list_count)]
        for start in range(0, len(keys), 50):
            await asyncio.gather(*(store.put(key, b"") for key in keys[start : start + 50]))
        assert [info.key async for info in store.list_objects("many/")] == keys

    async def test_listing_sees_what_just_changed(self, store: ObjectStore) -> None:
        await store.put(KEY, b"x")
        assert [info.key async for info in store.list_objects("a/")] == [KEY]
        await store.delete(KEY)
        assert [info.key async for info in store.list_objects("a/")] == []

    async def test_a_deleted_object_is_gone(self, store: ObjectStore) -> None:
        neighbour = parse_key("a/b/shard-1")
        await store.put(KEY, b"x")
        await store.put(neighbour, b"y")
        await store.delete(KEY)
        with pytest.raises(ObjectNotFoundError):
            await store.head(KEY)
        assert await store.get(neighbour) == b"y"

    async def test_deleting_nothing_is_fine(self, store: ObjectStore) -> None:
        await store.delete(KEY)
        await store.delete(parse_key("never/was"))

    # the rest

    async def test_a_cancelled_put_is_whole_or_not_there(self, store: ObjectStore) -> None:
        whole = self.content(1_000_000)
        task = asyncio.create_task(store.put(KEY, whole))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.done()
        found = [info.size_bytes async for info in store.list_objects("")]
        assert found in ([], [len(whole)])

    async def test_a_cancelled_part_leaves_an_upload_that_can_be_aborted(
        self, store: ObjectStore
    ) -> None:
        upload_id = await store.multipart_create(KEY)
        task = asyncio.create_task(self.send(store, upload_id, 0, self.content(1_000_000)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        await store.multipart_abort(KEY, upload_id)
        await self.assert_nothing_visible(store)

    async def test_many_requests_at_once_all_end(self, store: ObjectStore) -> None:
        keys = [parse_key(f"crowd/{i}") for i in range(100)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(store.put(key, key.encode()) for key in keys))
            found = await asyncio.gather(*(store.get(key) for key in keys))
        assert found == [key.encode() for key in keys]

    async def test_capabilities_can_be_met(self, store: ObjectStore) -> None:
        assert store.capabilities.part_size_bytes_min <= self.part_size_bytes
        assert self.part_size_bytes <= store.capabilities.part_size_bytes_max

    async def test_closing_twice_is_fine(self, store: ObjectStore) -> None:
        await store.aclose()
        await store.aclose()


def _assert_recent(unix_s: float | None) -> None:
    """The clocks of store and client may differ, but not by a day."""
    assert unix_s is not None
    assert abs(unix_s - time.time()) < 24 * 3600


def _needs_create_only(store: ObjectStore) -> None:
    if not store.capabilities.create_only:
        pytest.skip("this store does not promise create_only")
