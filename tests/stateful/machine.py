"""Checkpoints as a state machine: whatever is done to them, it is as a dict remembers it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from ckptstore.clock import Deadline
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.commit.catalog import list_checkpoints, list_undecided
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import CheckpointAbortedError, CheckpointNotFoundError, IntegrityError
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import AtStep, ByUid, Latest, Selector
from ckptstore.manifest.layout import parse_uid, rank_record_key, rank_records_prefix
from ckptstore.manifest.model import Abort, Attempt, Commit, FileEntry, Manifest
from ckptstore.opening import layered
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.restore.verify import verify_shards
from ckptstore.save import Contents, save_checkpoint
from ckptstore.store import ObjectStore
from ckptstore.testing.simulated.process import KilledError, Process
from ckptstore.types import Key
from tests.world import RECORD, RUN, SETTINGS, BrokenShard, BytesShard

T = TypeVar("T")

WORLD_SIZE = 2
DEADLINE_S = 60.0

STEPS = st.integers(1, 4)
REQUESTS = st.integers(0, 40)  # A save of two ranks makes about thirty.
PLACES = st.integers(0, 1000)


@dataclass
class HandClock:
    """Time that passes only when it is told to."""

    now_s: float = 1_800_000_000.0

    def unix_s(self) -> float:
        return self.now_s


@dataclass
class Known:
    """What must be true of an attempt."""

    attempt: Attempt
    state: Literal["committed", "aborted", "undecided"]
    damaged: set[Key] = field(default_factory=set)  # Shards.
    lost: bool = False  # A rank record is damaged: nothing can be read.


def payloads(uid: str, rank: int) -> list[bytes]:
    digest = hashlib.sha256(f"{uid}/{rank}".encode()).digest()
    return [digest[:11], digest[11:14]]


class CheckpointMachine(RuleBasedStateMachine):
    """Subclass with ``opened`` (a store) and ``runner`` (of the loop that it lives in)."""

    attempts: Bundle[Known] = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.runner = self.made_runner()
        self.store = self.opened()
        self.clock = HandClock()
        self.known: dict[str, Known] = {}
        self.incarnation = 0
        self.parent: str | None = None

    def made_runner(self) -> asyncio.Runner:
        raise NotImplementedError

    def opened(self) -> ObjectStore:
        raise NotImplementedError

    def teardown(self) -> None:
        self._run(self.store.aclose())
        self.runner.close()

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)

    # What happens.

    @initialize()
    def start(self) -> None:
        self._run(self._start())

    @rule()
    def start_again(self) -> None:
        self._run(self._start())

    @rule(target=attempts, step=STEPS)
    def save(self, step: int) -> Known:
        return self._run(self._save(step))

    @rule(target=attempts, step=STEPS)
    def save_on_a_broken_rank(self, step: int) -> Known:
        return self._run(self._save(step, broken=True))

    @rule(target=attempts, step=STEPS, request=REQUESTS, after=st.booleans())
    def crash_in_a_save(self, step: int, request: int, after: bool) -> Known:
        return self._run(self._save(step, dies_at=request, dies_after_it=after))

    @rule(target=attempts, known=attempts)
    def try_that_step_again(self, known: Known) -> Known:
        return self._run(self._save(known.attempt.step))

    @rule()
    def resolve_in_time(self) -> None:
        self._run(self._resolve())

    @rule()
    def resolve_when_all_is_due(self) -> None:
        self.clock.now_s += DEADLINE_S
        self._run(self._resolve())

    @rule(known=attempts, which=PLACES, at=PLACES)
    def damage_a_shard(self, known: Known, which: int, at: int) -> None:
        if known.state == "committed" and not known.lost:
            self._run(self._damage_a_shard(known, which, at))

    @rule(known=attempts, rank=st.integers(0, WORLD_SIZE - 1), at=PLACES)
    def damage_a_rank_record(self, known: Known, rank: int, at: int) -> None:
        if known.state == "committed" and not known.lost:
            self._run(self._flip(rank_record_key(RUN, known.attempt.uid, rank), at))
            known.lost = True

    # What must be true of it.

    @rule()
    def the_latest_is_as_known(self) -> None:
        self._run(self._check(Latest(), self._latest()))

    @rule(step=STEPS)
    def a_step_is_as_known(self, step: int) -> None:
        committed = [known for known in self.known.values() if known.state == "committed"]
        of_step = [known for known in committed if known.attempt.step == step]
        newest = max(of_step, key=lambda known: parse_uid(known.attempt.uid), default=None)
        self._run(self._check(AtStep(step), newest))

    @rule(known=attempts)
    def an_attempt_is_as_known(self, known: Known) -> None:
        expected = known if known.state == "committed" else None
        self._run(self._check(ByUid(known.attempt.uid), expected))

    @rule(known=attempts)
    def verifying_finds_all_damage_and_no_other(self, known: Known) -> None:
        if known.state == "committed" and not known.lost:
            self._run(self._verify(known))

    @rule()
    def the_list_is_as_known(self) -> None:
        infos = self._run(list_checkpoints(self._layered(), RUN))
        expected = sorted(self.known, key=parse_uid, reverse=True)
        assert [info.uid for info in infos] == expected
        assert [info.state for info in infos] == [self.known[uid].state for uid in expected]

    # How.

    def _layered(self) -> ObjectStore:
        return layered(self.store, "", SETTINGS)

    def _latest(self) -> Known | None:
        own = [
            uid
            for uid, known in self.known.items()
            if known.state == "committed" and parse_uid(uid).incarnation == self.incarnation
        ]
        uid = max(own, key=parse_uid) if own else self.parent
        return self.known[uid] if uid else None

    async def _start(self) -> None:
        latest = self._latest()
        claim = await claim_incarnation(
            self._layered(), run=RUN, parent_uid=None, facts={}, clock=self.clock
        )
        assert claim.number == self.incarnation + 1
        assert claim.parent_uid == (latest.attempt.uid if latest else None)
        self.incarnation, self.parent = claim.number, claim.parent_uid

    async def _save(
        self,
        step: int,
        *,
        broken: bool = False,
        dies_at: int | None = None,
        dies_after_it: bool = False,
    ) -> Known:
        attempt = await begin_attempt(
            self._layered(),
            run=RUN,
            step=step,
            incarnation=self.incarnation,
            attempt_number=sum(known.attempt.step == step for known in self.known.values()),
            world_size=WORLD_SIZE,
            deadline=Deadline.after(DEADLINE_S),
            clock=self.clock,
        )
        job = Process(self._layered(), dies_at=dies_at, dies_after_it=dies_after_it)
        ends = await asyncio.gather(
            *(job.run(self._save_rank(job, attempt, rank, broken)) for rank in range(WORLD_SIZE)),
            return_exceptions=True,
        )
        known = Known(attempt, await self._state(attempt))
        self.known[attempt.uid] = known
        if job.dead:
            assert all(isinstance(end, KilledError | Commit) for end in ends)
            assert known.state == "committed" or not any(isinstance(end, Commit) for end in ends)
        else:
            expected = CheckpointAbortedError if broken else Commit
            assert [type(end) for end in ends] == [expected] * WORLD_SIZE
            assert known.state == ("aborted" if broken else "committed")
        return known

    async def _save_rank(self, job: Process, attempt: Attempt, rank: int, broken: bool) -> Commit:
        shard = BrokenShard if broken and rank == 1 else BytesShard
        return await save_checkpoint(
            [shard(data) for data in payloads(attempt.uid, rank)],
            Contents(files=(FileEntry(path=f"rank-{rank}", shard=0, start=0, stop=11),)),
            attempt=attempt,
            rank=rank,
            store=job,
            record=RECORD,
            deadline=Deadline.after(DEADLINE_S),
            settings=SETTINGS,
            clock=self.clock,
        )

    async def _state(self, attempt: Attempt) -> Literal["committed", "aborted", "undecided"]:
        """Ask the store how a save ended; from then on, that must never change."""
        undecided = [other.uid for other in await list_undecided(self.store, RUN)]
        if attempt.uid in undecided:
            return "undecided"
        try:
            await find_checkpoint(self.store, RUN, ByUid(attempt.uid))
        except CheckpointNotFoundError:
            return "aborted"
        return "committed"

    async def _resolve(self) -> None:
        store = self._layered()
        for known in self.known.values():
            if known.state != "undecided":
                continue
            attempt = known.attempt
            prefix = rank_records_prefix(RUN, attempt.uid)
            votes = len([info.key async for info in self.store.list_objects(prefix)])
            due = self.clock.now_s >= attempt.deadline_unix_s
            decision = await resolve_attempt(store, attempt, create_only=True, clock=self.clock)
            if votes == WORLD_SIZE:  # A rank that dies does not vote; so these are all ready.
                assert isinstance(decision, Commit)
                known.state = "committed"
            elif due:
                assert isinstance(decision, Abort)
                known.state = "aborted"
            else:
                assert decision is None

    async def _flip(self, key: Key, at: int) -> None:
        data = bytearray(await self.store.get(key))
        data[at % len(data)] ^= 1
        await self.store.put(key, bytes(data))

    async def _damage_a_shard(self, known: Known, which: int, at: int) -> None:
        manifest = await self._manifest(known)
        sound = [shard.key for shard in manifest.shards if shard.key not in known.damaged]
        if sound:
            victim = sound[which % len(sound)]
            await self._flip(victim, at)
            known.damaged.add(victim)

    async def _manifest(self, known: Known) -> Manifest:
        commit = await find_checkpoint(self.store, RUN, ByUid(known.attempt.uid))
        return await read_manifest(self.store, commit)

    async def _verify(self, known: Known) -> None:
        manifest = await self._manifest(known)
        report = await verify_shards(self._layered(), manifest.shards, settings=SETTINGS.transfer)
        assert {damage.object for damage in report.damaged} == known.damaged
        assert report.objects == 2 * WORLD_SIZE

    async def _check(self, selector: Selector, expected: Known | None) -> None:
        """Restore, and compare all bytes; what is damaged must be refused."""
        try:
            commit = await find_checkpoint(self._layered(), RUN, selector)
        except CheckpointNotFoundError:
            assert expected is None
            return
        assert expected is not None
        assert commit.attempt == expected.attempt
        found, damaged = await self._read_or_damage(commit)
        if expected.lost or expected.damaged:
            assert found is None
            assert expected.lost or damaged <= expected.damaged
        else:
            ranks = range(WORLD_SIZE)
            assert found == [data for rank in ranks for data in payloads(commit.attempt.uid, rank)]

    async def _read_or_damage(self, commit: Commit) -> tuple[list[bytes] | None, set[str]]:
        try:
            return await self._read(commit), set()
        except IntegrityError as error:
            return None, {damage.object for damage in error.damage}

    async def _read(self, commit: Commit) -> list[bytes]:
        store = self._layered()
        manifest = await read_manifest(store, commit)
        targets = [bytearray(shard.size_bytes) for shard in manifest.shards]
        wanted = [
            Wanted(shard, 0, memoryview(target))
            for shard, target in zip(manifest.shards, targets, strict=True)
        ]
        await CheckedReader(store, SETTINGS.transfer).read_wanted(wanted)
        return [bytes(target) for target in targets]
