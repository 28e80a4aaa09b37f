"""Single objects: whole, in ranges, and created only if they are new."""

from __future__ import annotations

import asyncio

import pytest

from ckptstore.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance._base import KEY, ContractBase
from ckptstore.types import (
    ByteRange,
    CreateOnly,
    Version,
    parse_key,
)


class ObjectContract(ContractBase):
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


def _needs_create_only(store: ObjectStore) -> None:
    if not store.capabilities.create_only:
        pytest.skip("this store does not promise create_only")
