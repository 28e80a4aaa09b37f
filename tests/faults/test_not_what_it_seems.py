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
from ckptstore.manifest.layout import decision_key, rank_record_key
from ckptstore.manifest.model import Abort, Commit, Manifest, Ready
from ckptstore.restore.verify import VerifyReport, verify_shards, verify_sizes
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
            report = await verified(job, manifest)
            assert report.damaged == caught.value.damage
            await disk.put(shard.key, sound)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x"])
def test_a_shard_of_another_size_is_found(change: Callable[[bytes], bytes]) -> None:
    async def tell(job: Job) -> None:
        (told,) = job.attempts.values()
        commit = told.answers[0]
        assert isinstance(commit, Commit)
        manifest = await read_manifest(job.sim.disk, commit)
        for shard in manifest.shards:
            sound = await job.sim.disk.get(shard.key)
            await job.sim.disk.put(shard.key, change(sound))
            for verify in (verify_sizes(job.sim.disk, manifest.shards), verified(job, manifest)):
                assert [damage.object for damage in (await verify).damaged] == [shard.key]
            await job.sim.disk.put(shard.key, sound)

    story(tell)()


async def verified(job: Job, manifest: Manifest) -> VerifyReport:
    return await verify_shards(job.sim.disk, manifest.shards, settings=SETTINGS.transfer)


@pytest.mark.parametrize("broken_rank", [0, 1])
@pytest.mark.parametrize("other", ["uploads", "is dead"])
def test_a_rank_that_fails_ends_the_save_for_all(broken_rank: int, other: str) -> None:
    """For those that wait, and for those that still upload; even if one will never vote."""

    async def tell(job: Job) -> None:
        job.world_size = 3
        attempt = await job.begin(step=2)
        broken = Nth(0, Fate.DENIED, key=f"{attempt.uid}/{broken_rank:06d}-")
        slow = Nth(0, Fate.SILENT, verb="put_part", key=f"{attempt.uid}/000002-")
        job.sim.luck = lambda request: slow(request) or broken(request)
        ranks = range(3 if other == "uploads" else 2)
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(job.save_rank(attempt, r, Process(job.store())) for r in ranks))
        lasted_s = asyncio.get_running_loop().time() - began_s
        assert lasted_s <= 2 * SETTINGS.commit.watch_s < job.deadline_s
        assert broken.struck
        answers = job.attempts[attempt.uid].answers
        assert [type(answer) for answer in answers] == [CheckpointAbortedError] * len(ranks)
        await check_all(job)

    story(tell)()


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
