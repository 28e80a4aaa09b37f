"""How the nodes of one push find the same attempt, with nothing but the store between them.

All nodes are given the same job id. Rank 0 begins an attempt and puts it under a name made of
that id and the step, by put-if-absent: so a job id begins one attempt of a step, ever. The
others wait for that record, and each takes its rank's seat in the attempt, again by
put-if-absent, before it writes a byte: so two processes with one rank never mix their data,
and what an earlier, dead push of the same id left behind cannot be joined to a later one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass

from ckptstore.clock import Clock, Deadline
from ckptstore.commit.begin import BeginStore, begin_attempt, claim_incarnation
from ckptstore.commit.committer import Committer, pauses_s
from ckptstore.commit.standing import put_standing
from ckptstore.errors import (
    CheckpointAbortedError,
    ConflictError,
    ObjectNotFoundError,
    UnsupportedVerbError,
    UsageError,
)
from ckptstore.manifest.codec import decode_attempt, encode_record
from ckptstore.manifest.layout import job_key, seat_key
from ckptstore.manifest.model import Abort, Attempt, StoreRecord
from ckptstore.settings import CommitSettings
from ckptstore.types import Key

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This process's part in a push: which rank of how many, and of which job."""

    rank: int = 0
    world_size: int = 1
    job: str | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise UsageError(f"the world size must be at least 1: {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"there is no rank {self.rank} in a world of {self.world_size}; ranks count from 0"
            )
        if self.world_size > 1 and not self.job:
            raise UsageError(
                f"{self.world_size} nodes need a job id to find each other: give all of them the "
                "same --job ID, and each push a new one (such as the scheduler's job id and its "
                "count of restarts)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the nodes of a push meet."""

    store: BeginStore
    record: StoreRecord
    run: str
    step: int
    part: Part
    clock: Clock
    settings: CommitSettings

    async def attempt(self, deadline: Deadline) -> Attempt:
        """Return the attempt that this push is, the same one on all its nodes.

        Raises ``ConflictError`` if the job id or the rank was used before, and
        ``DeadlineExceededError`` if rank 0 does not come.
        """
        if self.part.world_size > 1 and not self.record.create_only:
            raise UnsupportedVerbError(
                "this store does not keep put-if-absent, without which nodes cannot meet safely; "
                "push from one node",
                verb="put",
            )
        doing = f"waiting for rank 0 of job {self.part.job!r}" if self.part.rank else "beginning"
        logger.info("run %s step %d: %s", self.run, self.step, doing)
        async with deadline.enforce(f"run {self.run} step {self.step}: {doing}"):
            if self.part.world_size == 1:
                return await self._begun(deadline)
            if self.part.rank == 0:
                return await self._opened(deadline)
            return await self._joined()

    async def _begun(self, deadline: Deadline) -> Attempt:
        facts = {"job": self.part.job} if self.part.job else {}
        claim = await claim_incarnation(
            self.store, run=self.run, parent_uid=None, facts=facts, clock=self.clock
        )
        return await begin_attempt(
            self.store,
            run=self.run,
            step=self.step,
            incarnation=claim.number,
            attempt_number=0,
            world_size=self.part.world_size,
            deadline=deadline,
            clock=self.clock,
        )

    async def _opened(self, deadline: Deadline) -> Attempt:
        earlier = await self._found()
        if earlier is None:
            attempt = await self._begun(deadline)
            standing = await put_standing(self.store, self._key, encode_record(attempt))
            earlier = decode_attempt(standing, self._key)
            if earlier == attempt:
                return attempt
            await self._abort(attempt)
        await self._abort(earlier)  # Or its nodes, if it has any, would wait for nobody.
        raise ConflictError(
            f"run {self.run} step {self.step}: job id {self.part.job!r} was used before, for "
            f"attempt {earlier.uid}; give every push, and every restart of one, a new --job"
        )

    async def _joined(self) -> Attempt:
        attempt = await self._awaited()
        if attempt.world_size != self.part.world_size:
            raise UsageError(
                f"rank 0 of job {self.part.job!r} pushes from {attempt.world_size} nodes, this "
                f"one was told {self.part.world_size}; give all of them the same --world-size"
            )
        decision = await self._committer(attempt).standing_decision()
        if isinstance(decision, Abort):
            raise CheckpointAbortedError(
                f"attempt {attempt.uid} of job {self.part.job!r} was aborted already: "
                f"{decision.reason}; push again with a new --job"
            )
        await self._take_seat(attempt)
        return attempt

    async def _awaited(self) -> Attempt:
        pauses = pauses_s(self.settings)
        while True:
            attempt = await self._found()
            if attempt is not None:
                return attempt
            await asyncio.sleep(next(pauses))

    async def _take_seat(self, attempt: Attempt) -> None:
        token = secrets.token_hex(16).encode()
        key = seat_key(self.run, attempt.uid, self.part.rank)
        if await put_standing(self.store, key, token) != token:
            raise ConflictError(
                f"another process already pushes as rank {self.part.rank} of {attempt.uid}; give "
                "every node its own --rank, and every restart a new --job"
            )

    async def _found(self) -> Attempt | None:
        try:
            return decode_attempt(await self.store.get(self._key), self._key)
        except ObjectNotFoundError:
            return None

    async def _abort(self, attempt: Attempt) -> None:
        committer = self._committer(attempt)
        await committer.decide(committer.abort(f"job id {self.part.job!r} was used twice"))

    def _committer(self, attempt: Attempt) -> Committer:
        return Committer(
            self.store,
            attempt,
            self.settings,
            role=f"push, rank {self.part.rank}",
            create_only=self.record.create_only,
            clock=self.clock,
        )

    @property
    def _key(self) -> Key:
        return job_key(self.run, self.step, self.part.job or "")
