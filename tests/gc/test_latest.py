"""``latest`` is what it was at some moment, whatever lands while it is being looked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ckptstore.backends.memory import MemoryStore
from ckptstore.commit.catalog import latest_commit
from ckptstore.manifest.layout import decisions_prefix, incarnations_prefix
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import ObjectInfo
from tests.world import RUN, World


class MeddledStore(MemoryStore):
    """Between the two listings that ``latest`` takes, something happens."""

    listed = 0

    async def meddle(self) -> None: ...

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if prefix in (decisions_prefix(RUN), incarnations_prefix(RUN)):
            self.listed += 1
            if self.listed == 2:
                await self.meddle()
        async for info in super().list_objects(prefix):
            yield info


def test_a_zombie_that_commits_between_the_two_listings_is_never_the_latest() -> None:
    async def tell() -> None:
        store = MeddledStore()
        world = World(store)
        first = await world.begin(step=100)
        await world.save(first)
        zombie = await world.begin(step=900, incarnation=1)
        meddled = False

        async def claim_then_commit_late() -> None:
            nonlocal meddled
            await world.begin(step=101)  # The job was restarted: incarnation 2, from step 100.
            await world.save(zombie)
            meddled = True

        store.listed = 0
        store.meddle = claim_then_commit_late  # type: ignore[method-assign]
        latest = await latest_commit(store, RUN)
        assert meddled
        assert latest is not None
        assert latest.attempt == first

    run_virtual(tell())


def test_a_commit_between_the_two_listings_is_seen_or_not_but_nothing_else_is() -> None:
    async def tell() -> None:
        store = MeddledStore()
        world = World(store)
        first = await world.begin(step=100)
        await world.save(first)

        async def go_on() -> None:
            await world.save(await world.begin(step=101))

        store.listed = 0
        store.meddle = go_on  # type: ignore[method-assign]
        latest = await latest_commit(store, RUN)
        assert latest is not None
        assert latest.attempt == first  # What incarnation 2 went on from.

    run_virtual(tell())
