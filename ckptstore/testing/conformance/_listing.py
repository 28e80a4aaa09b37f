"""Listings of objects and of open uploads, and deleting."""

from __future__ import annotations

import asyncio
import time

import pytest

from ckptstore.errors import (
    ObjectNotFoundError,
)
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance._base import KEY, ContractBase
from ckptstore.types import (
    parse_key,
)


class ListingContract(ContractBase):
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


def _assert_recent(unix_s: float | None) -> None:
    """The clocks of store and client may differ, but not by a day."""
    assert unix_s is not None
    assert abs(unix_s - time.time()) < 24 * 3600
