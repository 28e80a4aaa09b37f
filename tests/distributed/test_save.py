"""Several ranks, one store, no other connection between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.commit.catalog import latest_commit, list_checkpoints, list_undecided
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import (
    CheckpointAbortedError,
    CheckpointInDoubtError,
    CheckpointNotFoundError,
    DeadlineExceededError,
    IntegrityError,
    PermissionDeniedError,
    TransientStoreError,
    UnsupportedVerbError,
)
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import AtStep, ByUid, Latest
from ckptstore.manifest.codec import encode_rank_record
from ckptstore.manifest.layout import decision_key, rank_record_key
from ckptstore.manifest.model import Abort, Commit, Ready
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.restore.verify import verify_shards
from ckptstore.store import ObjectStore
from ckptstore.testing.faults import Fault, FaultLayer
from ckptstore.testing.virtual_time import run_virtual
from tests.world import (
    DATA,
    RECORD,
    RUN,
    SETTINGS,
    BrokenShard,
    BytesShard,
    EndlessShard,
    World,
    only_stored_as_it_is,
)

WORLD_SIZES = pytest.mark.parametrize("world_size", [1, 2, 4])


async def read_latest(store: ObjectStore) -> list[bytes]:
    manifest = await read_manifest(store, await find_checkpoint(store, RUN, Latest()))
    targets = [bytearray(shard.size_bytes) for shard in manifest.shards]
    wanted = [
        Wanted(shard, 0, memoryview(target))
        for shard, target in zip(manifest.shards, targets, strict=True)
    ]
    await CheckedReader(store, SETTINGS.transfer).read_wanted(wanted)
    return [bytes(target) for target in targets]


def story(tell: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a coroutine function that is to run in virtual time."""

    def test() -> None:
        async def whole() -> None:
            await tell()

        run_virtual(whole())

    test.__name__ = test.__qualname__ = getattr(tell, "__name__", "story")
    return test


@WORLD_SIZES
@pytest.mark.parametrize("size", [0, 1, 2, 4, 5, 10, 100])
def test_what_was_saved_reads_back(world_size: int, size: int) -> None:
    async def tell() -> None:
        store = MemoryStore()
        world = World(store, world_size)
        data = bytes(range(size))
        results = await world.save(await world.begin(), [BytesShard(data)] * world_size)
        assert [type(result) for result in results] == [Commit] * world_size
        assert len(set(map(repr, results))) == 1
        assert await read_latest(store) == [data] * world_size
        assert store.uploads_open == 0

    run_virtual(tell())


@WORLD_SIZES
@pytest.mark.parametrize("verb", ["multipart_create", "put_part", "multipart_complete"])
def test_one_failed_rank_aborts_all_and_leaves_nothing_open(world_size: int, verb: str) -> None:
    async def tell() -> None:
        memory = MemoryStore()
        faulty = FaultLayer(memory)
        world = World(faulty, world_size)
        attempt = await world.begin()
        faulty.script(verb, Fault(PermissionDeniedError("no")))
        results = await world.save(attempt)
        assert [type(result) for result in results] == [CheckpointAbortedError] * world_size
        assert all("no" in str(result) for result in results)
        assert await latest_commit(memory, RUN) is None
        assert memory.uploads_open == 0
        faulty.assert_all_used()

    run_virtual(tell())


@story
async def test_a_bug_on_one_rank_ends_the_save_on_all_at_once() -> None:
    store = MemoryStore()
    world = World(store, 3)
    attempt = await world.begin()
    results = await world.save(attempt, [BytesShard(), BrokenShard(), EndlessShard()])
    assert [type(result) for result in results] == [CheckpointAbortedError] * 3
    assert all("rank 1: ZeroDivisionError" in str(result) for result in results)
    assert asyncio.get_running_loop().time() < world.deadline_s / 2
    assert store.uploads_open == 0


@pytest.mark.parametrize("dead", [0, 1, 2, 3])
def test_a_dead_rank_is_named_to_all_others_by_the_deadline(dead: int) -> None:
    async def tell() -> None:
        store = MemoryStore()
        world = World(store, 4)
        attempt = await world.begin()
        alive = [rank for rank in range(4) if rank != dead]
        results = await asyncio.gather(
            *(world.save_rank(attempt, rank) for rank in alive), return_exceptions=True
        )
        assert [type(result) for result in results] == [CheckpointAbortedError] * 3
        assert all(f"rank {dead}" in str(result) for result in results)
        assert asyncio.get_running_loop().time() <= world.deadline_s + 2
        assert await latest_commit(store, RUN) is None
        again = await world.save(await world.begin())
        assert [type(result) for result in again] == [Commit] * 4

    run_virtual(tell())


@story
async def test_an_upload_that_never_ends_is_an_abort_by_the_deadline() -> None:
    store = MemoryStore()
    world = World(store, 2)
    results = await world.save(await world.begin(), [BytesShard(), EndlessShard()])
    assert [type(result) for result in results] == [CheckpointAbortedError] * 2
    assert asyncio.get_running_loop().time() <= world.deadline_s + 2
    assert store.uploads_open == 0


@only_stored_as_it_is
@story
async def test_the_error_of_a_late_upload_describes_the_queue() -> None:
    world = World(MemoryStore(), 1)
    (result,) = await world.save(await world.begin(), [EndlessShard()])
    assert isinstance(result, CheckpointAbortedError)
    assert "0 of 10 bytes; 8 of 8 bytes in flight, 1 parts waiting for room" in str(result)
    assert isinstance(result.__cause__, DeadlineExceededError)


@story
async def test_a_late_rank_of_an_old_attempt_disturbs_nothing() -> None:
    store = MemoryStore()
    world = World(store, 2)
    first = await world.begin()
    with pytest.raises(CheckpointAbortedError):
        await world.save_rank(first, 0)
    second = await world.begin()
    assert [type(result) for result in await world.save(second)] == [Commit] * 2
    with pytest.raises(CheckpointAbortedError):
        await world.save_rank(first, 1, BytesShard(b"a zombie's"))
    assert await read_latest(store) == [DATA, DATA]
    commit = await find_checkpoint(store, RUN, Latest())
    assert commit.attempt == second


@story
async def test_an_interrupted_rank_tells_the_others_at_once() -> None:
    store = MemoryStore()
    world = World(store, 2)
    attempt = await world.begin()
    interrupted = asyncio.ensure_future(world.save_rank(attempt, 0, EndlessShard()))
    other = asyncio.ensure_future(world.save_rank(attempt, 1))
    await asyncio.sleep(1)
    interrupted.cancel()
    with pytest.raises(CheckpointAbortedError, match="rank 0: interrupted"):
        await other
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    assert asyncio.get_running_loop().time() < 10
    assert store.uploads_open == 0


@story
async def test_silence_is_in_doubt_until_somebody_resolves_it() -> None:
    memory = MemoryStore()
    faulty = FaultLayer(memory)
    world = World(faulty, 2, deadline_s=10)
    attempt = await world.begin()
    silence = [Fault(TransientStoreError("reset"))] * 1000
    faulty.script("put", *silence, key=decision_key(RUN, attempt.uid))
    results = await world.save(attempt)
    assert [type(result) for result in results] == [CheckpointInDoubtError] * 2
    assert await latest_commit(memory, RUN) is None
    assert await list_undecided(memory, RUN) == [attempt]
    with pytest.raises(CheckpointNotFoundError, match="undecided; run `ckptstore resolve`"):
        await find_checkpoint(memory, RUN, AtStep(7))
    decision = await resolve_attempt(memory, attempt, create_only=True, clock=world.clock)
    assert isinstance(decision, Commit)
    assert await read_latest(memory) == [DATA, DATA]
    assert await list_undecided(memory, RUN) == []


@story
async def test_resolve_waits_for_the_deadline_and_then_aborts() -> None:
    store = MemoryStore()
    world = World(store, 2, deadline_s=50)
    attempt = await world.begin()
    assert await resolve_attempt(store, attempt, create_only=True, clock=world.clock) is None
    await asyncio.sleep(50)
    decision = await resolve_attempt(store, attempt, create_only=True, clock=world.clock)
    assert isinstance(decision, Abort)
    assert "rank 0 did not vote in time; rank 1 did not vote in time" in decision.reason
    results = await world.save(attempt)
    assert [type(result) for result in results] == [CheckpointAbortedError] * 2


@story
async def test_resolve_is_refused_where_puts_are_not_exclusive() -> None:
    world = World(MemoryStore())
    attempt = await world.begin()
    with pytest.raises(UnsupportedVerbError, match="its own coordinator only"):
        await resolve_attempt(world.store, attempt, create_only=False, clock=world.clock)


@pytest.mark.parametrize(
    ("verb", "landed"),
    [
        ("put", True),
        ("put", False),
        ("put_part", False),
        ("multipart_create", False),
        ("multipart_complete", True),
    ],
)
def test_lost_answers_are_not_failures(verb: str, landed: bool) -> None:
    async def tell() -> None:
        faulty = FaultLayer(MemoryStore())
        world = World(faulty)
        attempt = await world.begin()
        faulty.script(verb, *[Fault(TransientStoreError("reset"), landed=landed)] * 2)
        assert [type(result) for result in await world.save(attempt)] == [Commit] * 2
        faulty.assert_all_used()

    run_virtual(tell())


@story
async def test_an_unanswered_complete_that_did_not_land_is_a_failure() -> None:
    memory = MemoryStore()
    faulty = FaultLayer(memory)
    world = World(faulty, 1)
    attempt = await world.begin()
    faulty.script("multipart_complete", Fault(TransientStoreError("reset")))
    (result,) = await world.save(attempt)
    assert isinstance(result, CheckpointAbortedError)
    assert memory.uploads_open == 0
    faulty.assert_all_used()


@story
async def test_without_exclusive_puts_the_coordinator_alone_decides() -> None:
    store = MemoryStore()
    world = World(store, 2, record=msgspec.structs.replace(RECORD, create_only=False))
    assert [type(result) for result in await world.save(await world.begin())] == [Commit] * 2
    attempt = await world.begin()
    with pytest.raises(CheckpointInDoubtError, match="heard no decision"):
        await world.save_rank(attempt, 1)
    assert await list_undecided(store, RUN) == [attempt]
    failed = await world.begin()
    results = await world.save(failed, [BytesShard(), BrokenShard()])
    assert [type(result) for result in results] == [CheckpointAbortedError] * 2


@story
async def test_a_zombie_of_an_older_incarnation_never_becomes_the_latest() -> None:
    store = MemoryStore()
    world = World(store)
    old = await world.begin(step=100)
    await world.save(old)
    zombie = await world.begin(step=900, incarnation=1)
    await world.begin(step=101)  # The job was restarted from 100, and claimed an incarnation.
    await world.save(zombie)
    commit = await find_checkpoint(store, RUN, Latest())
    assert commit.attempt == old
    by_uid = await find_checkpoint(store, RUN, ByUid(zombie.uid))
    assert by_uid.attempt == zombie
    newest = await world.begin(step=101)
    await world.save(newest)
    commit = await find_checkpoint(store, RUN, Latest())
    assert commit.attempt == newest


@story
async def test_the_newest_commit_of_a_step_is_the_one_that_the_step_selects() -> None:
    store = MemoryStore()
    world = World(store)
    for data in (b"first", b"second"):
        await world.save(await world.begin(step=5), [BytesShard(data)] * 2)
    await world.save(await world.begin(step=5), [BrokenShard()] * 2)
    commit = await find_checkpoint(store, RUN, AtStep(5))
    manifest = await read_manifest(store, commit)
    assert [shard.size_bytes for shard in manifest.shards] == [6, 6]
    states = [info.state for info in await list_checkpoints(store, RUN)]
    assert states == ["aborted", "committed", "committed"]


@story
async def test_two_processes_that_believe_to_be_one_rank_do_not_commit_a_mixture() -> None:
    store = MemoryStore()
    world = World(store, 2)
    attempt = await world.begin()
    results = await asyncio.gather(
        world.save_rank(attempt, 0),
        world.save_rank(attempt, 1),
        world.save_rank(attempt, 1, BytesShard(b"another's state")),
        return_exceptions=True,
    )
    refused = [result for result in results if not isinstance(result, Commit)]
    assert len(refused) == 1
    assert "another process voted as rank 1" in str(refused[0])


@story
async def test_a_vote_of_another_world_size_aborts() -> None:
    store = MemoryStore()
    world = World(store, 2)
    attempt = await world.begin()
    stray = Ready(uid=attempt.uid, rank=1, world_size=3)
    await store.put(rank_record_key(RUN, attempt.uid, 1), encode_rank_record(stray))
    with pytest.raises(CheckpointAbortedError, match="rank 1 voted in a world of 3, not 2"):
        await world.save_rank(attempt, 0)


@story
async def test_a_damaged_vote_aborts_and_is_named() -> None:
    store = MemoryStore()
    world = World(store, 2)
    attempt = await world.begin()
    key = rank_record_key(RUN, attempt.uid, 1)
    await store.put(key, b"rubbish")
    with pytest.raises(CheckpointAbortedError, match=key):
        await world.save_rank(attempt, 0)


@pytest.mark.parametrize("at", range(10))
def test_a_flipped_bit_in_any_byte_of_a_shard_is_found_and_named(at: int) -> None:
    async def tell() -> None:
        store = MemoryStore()
        world = World(store)
        commit, _ = await world.save(await world.begin())
        assert isinstance(commit, Commit)
        manifest = await read_manifest(store, commit)
        victim = manifest.shards[1]
        rotten = bytearray(await store.get(victim.key))
        rotten[at] ^= 1
        await store.put(victim.key, bytes(rotten))
        with pytest.raises(IntegrityError, match=victim.key) as caught:
            await read_latest(store)
        (damage,) = caught.value.damage
        assert (damage.object, damage.block, damage.offset) == (victim.key, at // 2, at // 2 * 2)
        report = await verify_shards(store, manifest.shards, settings=SETTINGS.transfer)
        assert report.damaged == (damage,)
        assert report.bytes_verified == 20 - 2  # All but the block that is not right.

    run_virtual(tell())


@pytest.mark.parametrize("damage", ["missing", "truncated", "grown", "swapped"])
def test_a_shard_that_is_not_the_one_that_was_written_is_found(damage: str) -> None:
    async def tell() -> None:
        store = MemoryStore()
        world = World(store)
        other, _ = await world.save(await world.begin(step=1), [BytesShard(b"abcdefghij")] * 2)
        commit, _ = await world.save(await world.begin(step=2))
        assert isinstance(other, Commit)
        assert isinstance(commit, Commit)
        manifest = await read_manifest(store, commit)
        victim = manifest.shards[0].key
        await store.delete(victim)
        if damage != "missing":
            swapped = await store.get((await read_manifest(store, other)).shards[0].key)
            bad = {"truncated": DATA[:-1], "grown": DATA + b"x", "swapped": swapped}[damage]
            await store.put(victim, bad)
        report = await verify_shards(store, manifest.shards, settings=SETTINGS.transfer)
        assert {found.object for found in report.damaged} == {victim}
        if damage != "grown":  # What was written is still there, all of it.
            with pytest.raises(IntegrityError, match=victim):
                await read_latest(store)

    run_virtual(tell())


@story
async def test_a_block_that_reads_well_the_second_time_is_no_damage() -> None:
    class FlakyStore(MemoryStore):
        reads = 0

        async def get_into(self, key, byte_range, target) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
            await super().get_into(key, byte_range, target)
            self.reads += 1
            if self.reads == 1:
                target[0] ^= 0xFF

    store = FlakyStore()
    world = World(store, 1)
    await world.save(await world.begin())
    assert await read_latest(store) == [DATA]
    assert store.reads > 1


@story
async def test_a_swapped_or_missing_rank_record_is_found() -> None:
    store = MemoryStore()
    world = World(store)
    attempt = await world.begin()
    await world.save(attempt)
    commit = await find_checkpoint(store, RUN, Latest())
    victim = rank_record_key(RUN, attempt.uid, 0)
    await store.put(victim, await store.get(rank_record_key(RUN, attempt.uid, 1)))
    with pytest.raises(IntegrityError, match="not the record that was decided on"):
        await read_manifest(store, commit)
    await store.delete(victim)
    with pytest.raises(IntegrityError, match="missing") as caught:
        await read_manifest(store, commit)
    assert caught.value.damage[0].object == victim


@story
async def test_a_damaged_decision_is_an_error_and_never_absence() -> None:
    store = MemoryStore()
    world = World(store)
    attempt = await world.begin()
    await world.save(attempt)
    key = decision_key(RUN, attempt.uid)
    data = bytearray(await store.get(key))
    data[40] ^= 1
    await store.put(key, bytes(data))
    for selector in (Latest(), AtStep(7), ByUid(attempt.uid)):
        with pytest.raises(IntegrityError, match=key):
            await find_checkpoint(store, RUN, selector)


@pytest.mark.parametrize("verb", ["list_objects", "get"])
def test_a_latest_that_cannot_be_told_is_an_error_and_never_absence(verb: str) -> None:
    async def tell() -> None:
        faulty = FaultLayer(MemoryStore())
        world = World(faulty)
        await world.save(await world.begin())
        faulty.script(verb, Fault(PermissionDeniedError("no")))
        with pytest.raises(PermissionDeniedError):
            await find_checkpoint(faulty, RUN, Latest())
        faulty.assert_all_used()

    run_virtual(tell())
