"""Vote and decide by writing records, with nothing but the store between the ranks."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Iterator
from typing import Final, Protocol

from ckptstore.clock import Clock, Deadline
from ckptstore.commit.standing import put_standing
from ckptstore.commit.tally import Vote, anybody_failed
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import (
    CheckpointInDoubtError,
    ConflictError,
    IntegrityError,
    ObjectNotFoundError,
)
from ckptstore.integrity import sha256_hex
from ckptstore.manifest.codec import (
    decode_decision,
    decode_rank_record,
    encode_rank_record,
    encode_record,
)
from ckptstore.manifest.layout import decision_key, rank_record_key, rank_records_prefix
from ckptstore.manifest.model import (
    Abort,
    Attempt,
    Decision,
    Failed,
    RankRecord,
    RecordRef,
)
from ckptstore.settings import CommitSettings
from ckptstore.store import OVERWRITE, SupportsGet, SupportsList, SupportsPut
from ckptstore.types import Key

_RANK: Final = re.compile(r"rank-(\d+)\.json\.zst")


class CommitStore(SupportsGet, SupportsPut, SupportsList, Protocol):
    """All that committing needs; note that it cannot delete."""


class Committer:
    """One voter's side of the commit protocol of one attempt.

    ``create_only`` says whether the store keeps its promise of put-if-absent (the store's own
    record knows, from a probe). Without it only the coordinator may decide, and it must not
    decide twice: whoever else would, has to wait.
    """

    def __init__(
        self,
        store: CommitStore,
        attempt: Attempt,
        settings: CommitSettings,
        *,
        role: str,
        create_only: bool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._settings = settings
        self._clock = clock
        self._sent: Decision | None = None
        self.create_only = create_only
        self.decided_by = f"{role} on {socket.gethostname()}"

    async def vote(self, record: RankRecord) -> None:
        """Make this rank's vote durable. Sending it again is harmless: same key, same bytes.

        Raises ``ConflictError`` if another vote stands there: two processes believe that they
        are this rank.
        """
        key = rank_record_key(self._attempt.run, record.uid, record.rank)
        data = encode_rank_record(record)
        if not self.create_only:
            await self._store.put(key, data, mode=OVERWRITE)
        elif await put_standing(self._store, key, data) != data:
            raise ConflictError(
                f"another process voted as rank {record.rank} of {record.uid}; "
                "give every process of the job its own rank"
            )

    async def collect_votes(self, until: Deadline) -> tuple[Vote, ...]:
        """Return what there is, once everybody voted, or anybody failed, or time is up."""
        votes: dict[Key, Vote] = {}
        pauses = pauses_s(self._settings)
        while True:
            votes |= await self.read_votes(known=votes)
            everybody = len(votes) >= self._attempt.world_size
            if everybody or until.passed or anybody_failed(tuple(votes.values())):
                return tuple(votes.values())
            await asyncio.sleep(min(next(pauses), max(until.left_s, 0)))

    async def read_votes(self, *, known: dict[Key, Vote]) -> dict[Key, Vote]:
        """Return the votes that are not ``known`` yet, by key."""
        prefix = rank_records_prefix(self._attempt.run, self._attempt.uid)
        listing = [info.key async for info in self._store.list_objects(prefix)]
        fresh = [key for key in listing if key not in known]
        return dict(zip(fresh, await map_concurrently(self._read_vote, fresh), strict=True))

    async def decide(self, proposal: Decision) -> Decision:
        """Settle the attempt, once and for everybody, and return the decision that stands.

        Anyone may decide: the coordinator, a rank that waited long enough, ``resolve``, ``gc``.
        The first record to land is the decision, and it is durable and final when this
        returns. It need not be ours, and the caller obeys it either way. An error means that
        we could not find out; calling again, from anywhere, is always safe. (Without exclusive
        puts, it is the coordinator alone who may decide, and only one thing, ever.)
        """
        key = decision_key(self._attempt.run, self._attempt.uid)
        if self.create_only:
            data = await put_standing(self._store, key, encode_record(proposal))
            return _checked(decode_decision(data, key), self._attempt, key)
        standing = await self.standing_decision()
        if standing is not None:
            return standing
        if self._sent not in (None, proposal):
            raise CheckpointInDoubtError(
                f"attempt {self._attempt.uid}: another decision was sent and may land yet, "
                "and this store would let either overwrite the other"
            )
        self._sent = proposal
        await self._store.put(key, encode_record(proposal), mode=OVERWRITE)
        return proposal

    async def await_decision(self, until: Deadline) -> Decision | None:
        """Return the decision once there is one, or ``None`` when time is up."""
        pauses = pauses_s(self._settings)
        while True:
            standing = await self.standing_decision()
            if standing is not None or until.passed:
                return standing
            await asyncio.sleep(min(next(pauses), max(until.left_s, 0)))

    async def standing_decision(self) -> Decision | None:
        key = decision_key(self._attempt.run, self._attempt.uid)
        try:
            data = await self._store.get(key)
        except ObjectNotFoundError:
            return None
        return _checked(decode_decision(data, key), self._attempt, key)

    def abort(self, reason: str) -> Abort:
        """Propose the end of the attempt; nothing is decided by this alone."""
        return Abort(
            attempt=self._attempt,
            reason=reason,
            decided_unix_s=self._clock.unix_s(),
            decided_by=self.decided_by,
        )

    async def _read_vote(self, key: Key) -> Vote:
        data = await self._store.get(key)
        ref = RecordRef(key=key, sha256=sha256_hex(data), size_bytes=len(data))
        try:
            return Vote(decode_rank_record(data, key), ref)
        except IntegrityError as error:  # Records are never rewritten: this one stays damaged.
            return Vote(self._damaged(key, error), ref)

    def _damaged(self, key: Key, error: IntegrityError) -> Failed:
        match = _RANK.search(key)
        return Failed(
            uid=self._attempt.uid,
            rank=int(match.group(1)) if match else 0,
            world_size=self._attempt.world_size,
            reason=str(error),
        )


def pauses_s(settings: CommitSettings) -> Iterator[float]:
    """Yield ever longer, jittered pauses: ten thousand ranks must not ask in step."""
    pause_s = settings.poll_s_first
    while True:
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(1.5 * pause_s, settings.poll_s_max)


def _checked(decision: Decision, attempt: Attempt, key: Key) -> Decision:
    if decision.attempt != attempt:
        raise IntegrityError(f"{key} is the decision of another attempt: {decision.attempt.uid}")
    return decision
