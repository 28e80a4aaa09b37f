"""What a checkpoint costs at scale: the real protocol over a simulated store, on virtual time.

    python -m benchmarks.scale [--ranks 1 64 1024] [--latency-ms 20 200] [--json FILE]

No byte is measured here: shards are tiny. What counts is requests, the time until everybody
knows the decision, the size of the manifest, and what throttling costs, with data spread over
64 directories and over one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline
from ckptstore.commit import committer
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.commit.catalog import latest_commit
from ckptstore.errors import ThrottledError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.manifest.codec import decode_decision
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import Commit, FileEntry, StoreRecord
from ckptstore.opening import layered
from ckptstore.save import Contents, save_checkpoint
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.testing.simulated.buckets import TokenBuckets
from ckptstore.testing.virtual_time import VirtualClock, run_virtual
from ckptstore.types import Buffer, ByteRange, ObjectInfo

T = TypeVar("T")

SETTINGS = Settings()
PAGE = 1000
RUN = "scale"
DEADLINE_S = 3600.0
PREFIX_PER_S = 3500.0  # What S3 promises for writes to one partitioned prefix.
SPREAD_S = 1.0  # Ranks do not finish their step at one instant.


@dataclass(frozen=True)
class Cost:
    ranks: int
    latency_ms: float
    fan_out: int
    throttled: bool
    requests_a_rank: float
    requests_of_coordinator: int
    refused: int
    manifest_bytes: int
    decided_s: float
    all_know_s: float
    latest_requests: int
    wall_s: float


class FarStore(AroundLayer):
    """One rank's way to the store: each request takes its time, and a hot prefix refuses some."""

    passes_through = frozenset({"list_uploads"})

    def __init__(
        self, inner: ObjectStore, latency_s: float, buckets: TokenBuckets | None, seed: int
    ) -> None:
        super().__init__(inner)
        self._latency_s = latency_s
        self._buckets = buckets
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        await self._travel(request.verb)
        if self._buckets and request.verb == "put" and self._buckets.wait_s(request.key):
            self.counts["refused"] += 1
            raise ThrottledError("503 SlowDown", verb=request.verb, key=request.key)
        return await send()

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        infos = [info async for info in self._inner.list_objects(prefix)]
        for start in range(0, max(len(infos), 1), PAGE):
            await self._travel("list_objects")
            for info in infos[start : start + PAGE]:
                yield info

    async def _travel(self, verb: str) -> None:
        self.counts[verb] += 1
        await asyncio.sleep(self._latency_s * self._rng.uniform(0.5, 1.5))


class TinyShard:
    kind = ShardKind.FILE
    size_bytes = 64

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return [bytes(byte_range.size_bytes)]


async def save(ranks: int, latency_s: float, fan_out: int, throttled: bool) -> Cost:
    """Save once on so many ranks and return what it took."""
    began_s = time.perf_counter()
    loop, clock, memory = asyncio.get_running_loop(), VirtualClock(), MemoryStore()
    buckets = TokenBuckets(per_s=PREFIX_PER_S, burst=PREFIX_PER_S) if throttled else None
    far = [FarStore(memory, latency_s, buckets, seed) for seed in range(ranks)]
    stores = [layered(store, "", SETTINGS, rng=random.Random(n)) for n, store in enumerate(far)]
    claim = await claim_incarnation(stores[0], run=RUN, parent_uid=None, facts={}, clock=clock)
    attempt = await begin_attempt(
        stores[0],
        run=RUN,
        step=1,
        incarnation=claim.number,
        attempt_number=0,
        world_size=ranks,
        deadline=Deadline.after(DEADLINE_S),
        clock=clock,
    )
    record = StoreRecord(
        store_id="", fan_out=fan_out, create_only=True, created_unix_s=0, created_by=""
    )
    rng, start_s = random.Random(1), loop.time()

    async def one(rank: int) -> Commit:
        await asyncio.sleep(rng.uniform(0, SPREAD_S))
        return await save_checkpoint(
            [TinyShard()],
            Contents(files=(FileEntry(path="x", shard=0, start=0, stop=64),)),
            attempt=attempt,
            rank=rank,
            store=stores[rank],
            record=record,
            deadline=Deadline.after(DEADLINE_S),
            settings=SETTINGS,
            clock=clock,
        )

    commit = (await asyncio.gather(*(one(rank) for rank in range(ranks))))[0]
    all_know_s = loop.time() - start_s
    total = sum((store.counts for store in far), Counter())
    coordinator = Counter(far[0].counts)
    far[0].counts.clear()
    await latest_commit(stores[0], RUN)
    refused = total.pop("refused", 0)
    coordinator.pop("refused", None)
    return Cost(
        ranks=ranks,
        latency_ms=1000 * latency_s,
        fan_out=fan_out,
        throttled=throttled,
        requests_a_rank=round(total.total() / ranks, 1),
        requests_of_coordinator=coordinator.total(),
        refused=refused,
        manifest_bytes=sum(ref.size_bytes for ref in commit.records),
        decided_s=round(commit.decided_unix_s - clock.unix_s() + loop.time() - start_s, 2),
        all_know_s=round(all_know_s, 2),
        latest_requests=far[0].counts.total(),
        wall_s=round(time.perf_counter() - began_s, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 16, 256, 4096, 16384])
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[20.0, 200.0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    gc.set_threshold(200_000, 50, 50)  # Millions of objects live here, and nearly all stay.
    # All ranks live in this one process: what each would decode for itself is decoded once.
    setattr(committer, "decode_decision", lru_cache(maxsize=4)(decode_decision))  # noqa: B010
    cases = [
        (ranks, latency_ms / 1000, fan_out, throttled)
        for ranks in arguments.ranks
        for latency_ms in arguments.latency_ms
        for fan_out, throttled in ((64, False), (64, True), (1, True))
    ]
    names = [field.name for field in fields(Cost)]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    costs = []
    for case in cases:
        costs.append(run_virtual(save(*case)))
        print(
            "| " + " | ".join(str(value) for value in asdict(costs[-1]).values()) + " |", flush=True
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
