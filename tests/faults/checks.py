"""What must hold whatever happened: checked on the disk, once all bad luck is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ckptstore.commit.catalog import list_undecided, read_decision
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import (
    CheckpointAbortedError,
    CheckpointInDoubtError,
    CheckpointNotFoundError,
    IntegrityError,
    ObjectNotFoundError,
)
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import Latest
from ckptstore.manifest.codec import decode_incarnation
from ckptstore.manifest.layout import incarnations_prefix, parse_uid
from ckptstore.manifest.model import Abort, Commit, Decision
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.store import ObjectStore
from ckptstore.testing.simulated.store import SimulatedStore
from tests.faults.job import SETTINGS, Job, Told, payloads
from tests.world import RUN


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what ckptstore logs."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collector(logging.INFO)
    logger = logging.getLogger("ckptstore")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@contextmanager
def excusing_rot(sim: SimulatedStore) -> Iterator[None]:
    """Let an ``IntegrityError`` pass that names an object that is rotten indeed."""
    try:
        yield
    except IntegrityError as error:
        if not any(key in str(error) for key in sim.disk.rotten):
            raise


async def read_back(store: ObjectStore, commit: Commit) -> list[bytes]:
    """Return all shards of a checkpoint, as a restore would."""
    manifest = await read_manifest(store, commit)
    targets = [bytearray(shard.size_bytes) for shard in manifest.shards]
    wanted = [
        Wanted(shard, 0, memoryview(target))
        for shard, target in zip(manifest.shards, targets, strict=True)
    ]
    await CheckedReader(store, SETTINGS.transfer).read_wanted(wanted)
    return [bytes(target) for target in targets]


def saved_data(commit: Commit) -> list[bytes]:
    attempt = commit.attempt
    ranks = range(attempt.world_size)
    return [data for rank in ranks for data in payloads(attempt.uid, rank)]


def check_nothing_left_running(sim: SimulatedStore) -> None:
    current = asyncio.current_task()
    left = asyncio.all_tasks() - sim.late - ({current} if current else set())
    assert not left, f"left on the loop: {left}"


def check_answers(told: Told) -> None:
    """Ranks may be in doubt, but no two of them believe different things."""
    for answer in told.answers:
        assert isinstance(answer, Commit | CheckpointAbortedError | CheckpointInDoubtError), answer
    kinds = {type(answer) for answer in told.answers} - {CheckpointInDoubtError}
    assert len(kinds) <= 1, told.answers
    commits = [answer for answer in told.answers if isinstance(answer, Commit)]
    assert all(commit == commits[0] for commit in commits)


def check_uploads(job: Job, log: list[str]) -> None:
    """No upload is left open but those that nobody could know of or abort, and that was logged."""
    for upload_id, key in job.sim.disk.uploads.items():
        uid, name = key.split("/")[-2:]
        told = job.attempts[uid]
        logged = any(key in line for line in log)
        unknown = upload_id in job.sim.unheard | told.unheard or int(name[:6]) in told.killed
        assert logged or unknown, f"{upload_id} of {key} is open"


async def check_all(job: Job) -> None:
    """Settle everything, and compare what is on the disk with what the job was told."""
    await job.sim.calm()
    await asyncio.sleep(job.deadline_s)  # Now all attempts are due.
    decisions = await _decisions(job)
    for uid, told in job.attempts.items():
        check_answers(told)
        if not any(uid in key for key in job.sim.disk.rotten if "/decisions/" in key):
            _check_stands(told, decisions.get(uid))
    rewritten = [key for key in job.sim.disk.changed if key.startswith("runs/")]
    if not job.create_only:  # A late claim overwrites a later one of the same number.
        rewritten = [key for key in rewritten if "/incarnations/" not in key]
    assert not rewritten, f"records were rewritten: {rewritten}"
    commits = [made for made in decisions.values() if isinstance(made, Commit)]
    for commit in commits:
        await _check_reads_back(job.sim, commit)
    with excusing_rot(job.sim):
        await _check_latest(job.sim, commits)


async def _decisions(job: Job) -> dict[str, Decision]:
    """Return all decisions, after somebody resolved what was undecided."""
    disk = job.sim.disk
    if job.create_only:
        with excusing_rot(job.sim):
            for attempt in await list_undecided(disk, RUN):
                await resolve_attempt(disk, attempt, create_only=True, clock=job.clock)
    decisions = {}
    for uid in job.attempts:
        try:
            with excusing_rot(job.sim):
                decisions[uid] = await read_decision(disk, RUN, uid)
        except ObjectNotFoundError:
            assert not job.create_only or any("/begin.json" in key for key in disk.rotten)
    return decisions


def _check_stands(told: Told, decision: Decision | None) -> None:
    for answer in told.answers:
        if isinstance(answer, Commit):
            assert decision == answer
        if isinstance(answer, CheckpointAbortedError):
            assert isinstance(decision, Abort)


async def _check_reads_back(sim: SimulatedStore, commit: Commit) -> None:
    with excusing_rot(sim):
        assert await read_back(sim.disk, commit) == saved_data(commit)
        assert not any(key in sim.disk.rotten for key in await _objects(sim, commit))


async def _objects(sim: SimulatedStore, commit: Commit) -> list[str]:
    manifest = await read_manifest(sim.disk, commit)
    return [*(ref.key for ref in commit.records), *(shard.key for shard in manifest.shards)]


async def _check_latest(sim: SimulatedStore, commits: list[Commit]) -> None:
    """The latest is the newest of the newest incarnation, else what that one went on from."""
    keys = [info.key async for info in sim.disk.list_objects(incarnations_prefix(RUN))]
    claims = [decode_incarnation(await sim.disk.get(key), key) for key in keys]
    newest = max(claims, key=lambda claim: claim.number)
    own = [parse_uid(commit.attempt.uid) for commit in commits]
    own = [uid for uid in own if uid.incarnation == newest.number]
    expected = str(max(own)) if own else newest.parent_uid
    try:
        found = await find_checkpoint(sim.disk, RUN, Latest())
    except CheckpointNotFoundError:
        assert expected is None
    else:
        assert found.attempt.uid == expected
