"""What is wrong in the source is found on the way, and none of it is committed at the target."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.cli.exit_codes import code_of
from ckptstore.commit.catalog import read_decision
from ckptstore.errors import ConflictError, IntegrityError
from ckptstore.integrity import sha256_hex
from ckptstore.manifest.codec import decode_rank_record, encode_rank_record, encode_record
from ckptstore.manifest.layout import (
    begin_key,
    decision_key,
    incarnation_key,
    rank_record_key,
)
from ckptstore.manifest.model import Abort, Commit, Ready, RecordRef
from ckptstore.store import ObjectStore
from ckptstore.sync.selection import Selection, parse_steps
from ckptstore.testing.faults import Damage, Fault, FaultLayer
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import Key
from tests.distributed.test_save import story
from tests.gc.history import History
from tests.sync.watched import BrokenError
from tests.sync.world import Pair, contents
from tests.world import DATA, RUN, BytesShard

Harm = Callable[[MemoryStore, str, list[Key]], Awaitable[None]]


async def flipped(store: MemoryStore, uid: str, data: list[Key]) -> None:
    await store.put(data[1], b"0123456780")


async def shortened(store: MemoryStore, uid: str, data: list[Key]) -> None:
    await store.put(data[1], b"01234567")


async def missing(store: MemoryStore, uid: str, data: list[Key]) -> None:
    await store.delete(data[1])


async def swapped(store: MemoryStore, uid: str, data: list[Key]) -> None:
    one, other = await store.get(data[0]), await store.get(data[1])
    await store.put(data[0], other)
    await store.put(data[1], one)


async def record_missing(store: MemoryStore, uid: str, data: list[Key]) -> None:
    await store.delete(rank_record_key(RUN, uid, 1))


async def records_swapped(store: MemoryStore, uid: str, data: list[Key]) -> None:
    keys = [rank_record_key(RUN, uid, rank) for rank in (0, 1)]
    one, other = [await store.get(key) for key in keys]
    await store.put(keys[0], other)
    await store.put(keys[1], one)


async def begin_missing(store: MemoryStore, uid: str, data: list[Key]) -> None:
    await store.delete(begin_key(RUN, uid))


async def begin_of_another(store: MemoryStore, uid: str, data: list[Key]) -> None:
    keys = [info.key async for info in store.list_objects(f"runs/{RUN}/attempts/")]
    other = next(key for key in keys if key.endswith("begin.json") and uid not in key)
    await store.put(begin_key(RUN, uid), await store.get(other))


async def decision_torn(store: MemoryStore, uid: str, data: list[Key]) -> None:
    await store.put(decision_key(RUN, uid), b'{"format_version"')


async def two_ranks(pair: Pair, step: int) -> str:
    """Save a checkpoint of two ranks whose data differ."""
    pair.history.world.world_size = 2
    attempt = await pair.history.begin(step)
    await pair.history.world.save(attempt, [BytesShard(DATA), BytesShard(DATA[::-1])])
    return attempt.uid


@pytest.mark.parametrize(
    "harm",
    [
        flipped,
        shortened,
        missing,
        swapped,
        record_missing,
        records_swapped,
        begin_missing,
        begin_of_another,
        decision_torn,
    ],
)
def test_a_damaged_checkpoint_is_not_committed_and_costs_the_others_nothing(harm: Harm) -> None:
    async def story() -> None:
        pair = Pair()
        uids = [await two_ranks(pair, step) for step in (1, 2, 3)]
        await harm(pair.history.store, uids[1], sorted(await pair.history.data_keys(uids[1])))
        report = await pair.sync()
        (failure,) = report.failed
        assert (failure.run, failure.uid) == (RUN, uids[1])
        assert code_of(failure.error) == 4
        assert [copied.commit.attempt.uid for copied in report.copied] == [uids[0], uids[2]]
        assert await pair.committed() == [uids[2], uids[0]]

    run_virtual(story())


@story
async def test_damage_on_the_way_is_read_again_and_twice_is_once_too_often() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    (key,) = await pair.history.data_keys()
    faulty = FaultLayer(pair.history.store)
    pair.source = faulty
    faulty.script("get_into", Damage(), Damage(), key=key)
    (failure,) = (await pair.sync()).failed
    assert isinstance(failure.error, IntegrityError)
    assert failure.error.damage[0].object == key
    assert await pair.committed() == []
    faulty.script("get_into", Damage(), key=key)
    assert (await pair.sync()).failed == []
    faulty.assert_all_used()
    await pair.assert_mirrored([uid])


@story
async def test_a_manifest_that_names_what_is_not_its_own_is_refused() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2)
    store = pair.history.store
    renamed = await store.get(decision_key(RUN, uids[0]))
    await store.put(decision_key(RUN, uids[1]), renamed)
    (failure,) = (await pair.sync()).failed
    assert "another attempt" in str(failure.error)
    assert await pair.committed() == [uids[0]]


@pytest.mark.parametrize("key", ["data/00/other/{uid}/000000-0000.file", "runs/x/tags/{uid}/a"])
def test_a_manifest_cannot_make_a_copy_write_elsewhere(key: str) -> None:
    async def story() -> None:
        pair = Pair()
        (uid,) = await pair.history.commits(1)
        store = pair.history.store
        (data_key,) = await pair.history.data_keys()
        foreign = Key(key.format(uid=uid))
        await store.put(foreign, await store.get(data_key))
        commit = await read_decision(store, RUN, uid)
        assert isinstance(commit, Commit)
        ref = commit.records[0]
        ready = decode_rank_record(await store.get(ref.key), ref.key)
        assert isinstance(ready, Ready)
        shard = msgspec.structs.replace(ready.shards[0], key=foreign)
        record = encode_rank_record(msgspec.structs.replace(ready, shards=(shard,)))
        await store.put(ref.key, record)
        await rewrite(store, commit, ref.key, record)
        (failure,) = (await pair.sync()).failed
        assert code_of(failure.error) == 4
        assert foreign in str(failure.error)
        assert foreign not in await contents(pair.target)

    run_virtual(story())


@story
async def test_a_decision_cannot_make_a_copy_put_records_elsewhere() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    store = pair.history.store
    commit = await read_decision(store, RUN, uid)
    assert isinstance(commit, Commit)
    record = await store.get(commit.records[0].key)
    elsewhere = Key(f"runs/{RUN}/attempts/{uid}/rank-000007.json.zst")
    await store.put(elsewhere, record)
    await rewrite(store, commit, elsewhere, record)
    (failure,) = (await pair.sync()).failed
    assert "not its own" in str(failure.error)
    assert elsewhere not in await contents(pair.target)


async def rewrite(store: MemoryStore, commit: Commit, key: Key, record: bytes) -> None:
    """Make the decision name this record as that of rank 0."""
    ref = RecordRef(key=key, sha256=sha256_hex(record), size_bytes=len(record))
    forged = msgspec.structs.replace(commit, records=(ref,))
    await store.put(decision_key(RUN, commit.attempt.uid), encode_record(forged))


@story
async def test_what_fails_at_a_store_ends_it_all_and_says_what_was_not_tried() -> None:
    pair = Pair()
    await pair.history.commits(1, 2, 3)
    faulty = FaultLayer(pair.target)
    faulty.script("multipart_create", Fault(BrokenError("broken")))
    pair.target = faulty
    report = await pair.sync()
    assert [type(failure.error) for failure in report.failed] == [BrokenError]
    assert (report.copied, report.not_tried) == ([], 2)
    faulty.assert_all_used()


@pytest.mark.parametrize("side", ["source", "target"])
def test_half_a_listing_is_no_listing(side: str) -> None:
    async def story() -> None:
        pair = Pair()
        await pair.history.commits(1, 2, 3)
        faulty = FaultLayer(pair.target if side == "target" else pair.history.store)
        faulty.script("list_objects", Fault(BrokenError("broken"), after_entries=1))
        setattr(pair, side, faulty)
        with pytest.raises(BrokenError):
            await pair.sync()
        faulty.assert_all_used()
        assert await contents(pair.target) == {}

    run_virtual(story())


# two stores that went different ways


@story
async def test_where_two_jobs_claimed_the_same_incarnation_nothing_is_copied() -> None:
    pair = Pair()
    await pair.history.commits(1, 2)
    await pair.sync(Selection(newest=1))
    await pair.history.restart()
    await pair.history.commit(3)
    other = as_history(pair.target)
    await other.restart()
    theirs = await other.commit(4)
    pair.target = other.store
    before = await contents(pair.target)
    report = await pair.sync()
    (failure,) = report.failed
    assert isinstance(failure.error, ConflictError)
    assert "SRC" in str(failure.error)
    assert "DST" in str(failure.error)
    assert await contents(pair.target) == before
    assert await pair.latest() == theirs
    # What does not clash may be copied.
    assert (await pair.sync(Selection(steps=parse_steps("1")))).failed == []
    assert await pair.latest() == theirs


def as_history(store: ObjectStore) -> History:
    """Return a history that goes on from what a store in memory holds."""
    assert isinstance(store, MemoryStore)
    history = History(incarnation=1)
    history.store._objects.update(store._objects)
    return history


@story
async def test_a_job_of_the_targets_own_that_clashes_with_nothing_keeps_the_latest() -> None:
    pair = Pair()
    uids = await pair.history.commits(1)
    await pair.sync()
    own = as_history(pair.target)
    await own.restart()
    theirs = await own.commit(2)
    pair.target = own.store
    uids.append(await pair.history.commit(3))
    assert (await pair.sync()).failed == []
    assert await pair.committed() == [theirs, *uids[::-1]]
    assert await pair.latest() == theirs


@story
async def test_a_checkpoint_that_was_decided_otherwise_at_the_target_is_a_conflict() -> None:
    pair = Pair()
    (uid,) = await pair.history.commits(1)
    attempt = (await pair.plan()).items[0].commit
    assert attempt is not None
    abort = Abort(attempt=attempt.attempt, reason="x", decided_unix_s=0.0, decided_by="x")
    await pair.target.put(decision_key(RUN, uid), encode_record(abort))
    (failure,) = (await pair.sync()).failed
    assert code_of(failure.error) == 10


@pytest.mark.parametrize("name", ["rank", "begin", "claim"])
def test_another_record_in_the_way_is_a_conflict_and_stays(name: str) -> None:
    async def story() -> None:
        pair = Pair()
        (uid,) = await pair.history.commits(1)
        key = {
            "rank": rank_record_key(RUN, uid, 0),
            "begin": begin_key(RUN, uid),
            "claim": incarnation_key(RUN, 1),
        }[name]
        other = Pair()
        await other.history.commits(1)
        keys = [
            found
            for found in await other.history.keys()
            if found.rpartition("/")[2] == key.rpartition("/")[2]
        ]
        data = await other.history.store.get(keys[0])
        await pair.target.put(key, data)
        (failure,) = (await pair.sync()).failed
        assert code_of(failure.error) == 10
        assert "DST" in str(failure.error)
        assert await pair.target.get(key) == data
        assert await pair.committed() == []

    run_virtual(story())
