"""The pace that all requests keep together while the store refuses some of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import ThrottledError
from ckptstore.layers.throttle import Pace
from ckptstore.opening import layered
from ckptstore.settings import RequestSettings, Settings
from ckptstore.store import OVERWRITE
from ckptstore.testing.simulated.buckets import TokenBuckets
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import (
    Buffer,
    ByteRange,
    CreateOnly,
    Key,
    Part,
    PutMode,
    UploadId,
    Version,
)


class RationedStore(MemoryStore):
    """Serves so many requests a second, and refuses the others."""

    def __init__(self, per_s: float, burst: float, latency_s: float, *, seed: int) -> None:
        super().__init__()
        self._buckets = TokenBuckets(per_s=per_s, burst=burst, depth=1)
        self._latency_s = latency_s
        self._rng = random.Random(seed)
        self.refused = 0

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        await asyncio.sleep(self._latency_s * self._rng.uniform(0.5, 1.5))
        if self._buckets.wait_s(key) > 0:
            self.refused += 1
            raise ThrottledError("503 SlowDown", verb="put", key=key)
        return await super().put(key, data, mode=mode)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("in_flight_max", [32, 256])
@pytest.mark.parametrize(("per_s", "burst"), [(100, 100), (100, 10), (10, 10)])
def test_256_parts_finish_in_little_more_than_the_ideal_time(
    per_s: float, burst: float, in_flight_max: int, seed: int
) -> None:
    async def tell() -> None:
        rationed = RationedStore(per_s, burst, latency_s=0.02, seed=seed)
        settings = Settings(request=RequestSettings(in_flight_max=in_flight_max))
        store = layered(rationed, "", settings)
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(store.put(Key(f"data/{n}"), b"x") for n in range(256)))
        ideal_s = (256 - burst) / per_s + 0.02
        assert rationed.refused > 0
        assert loop.time() <= 1.3 * ideal_s

    random.seed(seed)  # Of the retries' jitter.
    run_virtual(tell())


def test_there_is_no_pace_until_something_is_refused_and_in_the_end_none_again() -> None:
    async def tell() -> None:
        pace = Pace()
        loop = asyncio.get_running_loop()
        for _ in range(100):
            await pace.turn()
            pace.served()
        assert loop.time() == 0
        pace.refused()
        turns = 0
        while pace.rate_per_s is not None:
            await pace.turn()
            pace.served()
            turns += 1
        assert loop.time() > 1
        assert 0 < turns < 10_000

    run_virtual(tell())


def test_a_store_that_refuses_everything_is_asked_ever_less() -> None:
    async def tell() -> None:
        pace = Pace()
        loop = asyncio.get_running_loop()
        for _ in range(100):
            await pace.turn()
            pace.refused()
            await asyncio.sleep(0.1)
        before_s = loop.time()
        await pace.turn()
        await pace.turn()
        assert loop.time() - before_s > 5

    run_virtual(tell())


def test_one_refusal_after_a_lull_does_not_hold_everything_up() -> None:
    async def tell() -> None:
        pace = Pace()
        pace.refused()
        loop = asyncio.get_running_loop()
        await pace.turn()
        await pace.turn()
        assert loop.time() < 1

    run_virtual(tell())


class ClosedToData(MemoryStore):
    """Refuses every part."""

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        raise ThrottledError("503 SlowDown", verb="put_part", key=key)


def test_a_decision_and_the_end_of_an_upload_do_not_wait_behind_data() -> None:
    async def tell() -> None:
        memory = ClosedToData()
        store = layered(memory, "", Settings(request=RequestSettings(in_flight_max=32)))
        loop = asyncio.get_running_loop()
        key = Key("data/large")
        upload_id = await store.multipart_create(key)
        sending = [
            asyncio.ensure_future(
                store.put_part(key, upload_id, Part(n, ByteRange(n, n + 1)), [b"x"], crc64nvme=0)
            )
            for n in range(16)
        ]
        await asyncio.sleep(60)  # By now, a turn takes many seconds to come.
        before_s = loop.time()
        await store.put(Key("decision"), b"abort", mode=CreateOnly())
        await store.multipart_abort(key, upload_id)
        assert loop.time() == before_s
        assert memory.uploads_open == 0
        for part in sending:
            part.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    run_virtual(tell())


def test_a_turn_that_is_cancelled_holds_up_nobody() -> None:
    async def tell() -> None:
        pace = Pace()
        pace.refused()
        waiting = [asyncio.ensure_future(pace.turn()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        async with asyncio.timeout(100):
            await asyncio.gather(*waiting[1:])

    run_virtual(tell())
