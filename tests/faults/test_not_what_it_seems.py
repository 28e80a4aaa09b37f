"""Records that are whole and in their place, but not what they should be; and rot in any byte."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ckptstore.commit.catalog import latest_commit
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import CheckpointAbortedError, CheckpointInDoubtError, IntegrityError
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import AtStep, ByUid, Latest
from ckptstore.manifest.codec import encode_rank_record
from ckptstore.manifest.layout import ShardKind, data_key, decision_key, rank_record_key
from ckptstore.manifest.model import Abort, Commit, Ready
from ckptstore.restore.verify import verify_shards
from ckptstore.testing.simulated.fates import Fate, Nth
from ckptstore.testing.simulated.process import Process
from ckptstore.testing.simulated.seeds import run_seed
from ckptstore.testing.simulated.store import SimulatedStore
from tests.faults.checks import check_all, read_back, saved_data
from tests.faults.job import SETTINGS, Job
from tests.faults.sweeping import SEED, saved
from tests.world import RUN


def story(tell: Callable[[Job], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of what is told of a job that has saved step 1."""

    def test() -> None:
        async def scenario(rng: random.Random) -> None:
            job = Job(SimulatedStore(rng), rng, deadline_s=60.0)
            await job.start()
            await saved(job, step=1)
            await tell(job)

        run_seed(scenario, SEED)

    test.__name__ = test.__qualname__ = getattr(tell, "__name__", "story")
    return test


async def restore_latest(job: Job) -> list[bytes]:
    disk = job.sim.disk
    return await read_back(disk, await find_checkpoint(disk, RUN, Latest()))


@story
async def test_enough_votes_of_the_wrong_ranks_are_not_enough(job: Job) -> None:
    attempt = await job.begin(step=2)
    stranger = Ready(uid=attempt.uid, rank=2, world_size=2)
    await job.sim.disk.put(rank_record_key(RUN, attempt.uid, 2), encode_rank_record(stranger))
    await job.save_rank(attempt, 0, Process(job.store()))
    (answer,) = job.attempts[attempt.uid].answers
    assert isinstance(answer, CheckpointAbortedError)
    assert "rank 1 did not vote in time" in str(answer)
    assert "rank-000002.json.zst is no vote of this attempt" in str(answer)
    await check_all(job)


@story
async def test_a_vote_from_another_attempt_is_not_enough(job: Job) -> None:
    (earlier,) = job.attempts
    attempt = await job.begin(step=2)
    stray = await job.sim.disk.get(rank_record_key(RUN, earlier, 1))
    await job.sim.disk.put(rank_record_key(RUN, attempt.uid, 1), stray)
    await job.save_rank(attempt, 0, Process(job.store()))
    (answer,) = job.attempts[attempt.uid].answers
    assert isinstance(answer, CheckpointAbortedError)
    assert f"holds the vote of rank 1 of {earlier}" in str(answer)
    await check_all(job)


@story
async def test_a_decision_of_another_attempt_is_not_believed(job: Job) -> None:
    (earlier,) = job.attempts
    attempt = await job.begin(step=2)
    disk = job.sim.disk
    stray = await disk.get(decision_key(RUN, earlier))
    await disk.put(decision_key(RUN, attempt.uid), stray)
    told = await job.save(attempt)
    assert [type(answer) for answer in told.answers] == [CheckpointInDoubtError] * 2
    assert all(f"another attempt: {earlier}" in str(answer) for answer in told.answers)
    for selector in (Latest(), AtStep(2), ByUid(attempt.uid)):
        with pytest.raises(IntegrityError, match="another attempt"):
            await find_checkpoint(disk, RUN, selector)
    with pytest.raises(IntegrityError, match="another attempt"):
        await resolve_attempt(disk, attempt, create_only=True, clock=job.clock)


@story
async def test_a_rotten_bit_in_any_byte_of_any_record_is_found_and_named(job: Job) -> None:
    (told,) = job.attempts.values()
    disk = job.sim.disk
    commit = told.answers[0]
    assert isinstance(commit, Commit)
    for key in (decision_key(RUN, commit.attempt.uid), *(ref.key for ref in commit.records)):
        sound = await disk.get(key)
        for at in range(len(sound)):
            disk.rot(key, at)
            with pytest.raises(IntegrityError, match=key):
                await restore_latest(job)
            await disk.put(key, sound)
    assert await read_back(disk, commit) == saved_data(commit)


@story
async def test_a_rotten_bit_in_any_byte_of_any_shard_is_found_and_named(job: Job) -> None:
    (told,) = job.attempts.values()
    disk = job.sim.disk
    commit = told.answers[0]
    assert isinstance(commit, Commit)
    manifest = await read_manifest(disk, commit)
    for shard in manifest.shards:
        sound = await disk.get(shard.key)
        for at in range(len(sound)):
            disk.rot(shard.key, at)
            with pytest.raises(IntegrityError, match=shard.key) as caught:
                await read_back(disk, commit)
            assert [damage.block for damage in caught.value.damage] == [at // 8]
            report = await verify_shards(disk, manifest.shards, settings=SETTINGS.transfer)
            assert report.damaged == caught.value.damage
            await disk.put(shard.key, sound)


@story
async def test_a_rank_that_still_uploads_stops_soon_after_the_attempt_is_decided(job: Job) -> None:
    attempt = await job.begin(step=2)
    key = data_key(RUN, attempt.uid, 1, 0, ShardKind.FILE, fan_out=4)
    slow = Nth(0, Fate.SILENT, verb="put_part", key=key)
    broken = Nth(0, Fate.DENIED, key=f"{attempt.uid}/000000-")
    job.sim.luck = lambda request: slow(request) or broken(request)
    began_s = asyncio.get_running_loop().time()
    told = await job.save(attempt)
    assert slow.struck
    assert broken.struck
    assert [type(answer) for answer in told.answers] == [CheckpointAbortedError] * 2
    lasted_s = asyncio.get_running_loop().time() - began_s
    assert lasted_s <= 2 * SETTINGS.commit.watch_s < job.deadline_s
    await check_all(job)


@story
async def test_what_is_under_way_is_left_to_its_coordinator(job: Job) -> None:
    attempt = await job.begin(step=2)
    for _ in range(3):
        made = await resolve_attempt(job.store(), attempt, create_only=True, clock=job.clock)
        assert made is None
    told = await job.save(attempt)
    assert [type(answer) for answer in told.answers] == [Commit] * 2
    overdue = await job.begin(step=3)
    await asyncio.sleep(job.deadline_s)
    made = await resolve_attempt(job.store(), overdue, create_only=True, clock=job.clock)
    assert isinstance(made, Abort)
    assert await latest_commit(job.sim.disk, RUN) == told.answers[0]
