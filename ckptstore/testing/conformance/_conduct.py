"""Cancellation, crowds and closing."""

from __future__ import annotations

import asyncio

from ckptstore.store import ObjectStore
from ckptstore.testing.conformance._base import KEY, ContractBase
from ckptstore.types import (
    parse_key,
)


class ConductContract(ContractBase):
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
