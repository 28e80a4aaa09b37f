"""Save a checkpoint: upload, vote, decide."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from ckptstore.clock import Clock, Deadline, SystemClock
from ckptstore.commit.committer import Committer
from ckptstore.commit.tally import tally
from ckptstore.errors import (
    CheckpointAbortedError,
    CheckpointInDoubtError,
    CkptStoreError,
)
from ckptstore.manifest.dtypes import FLOAT_WIDTHS
from ckptstore.manifest.layout import data_key
from ckptstore.manifest.model import (
    Abort,
    Attempt,
    Commit,
    Decision,
    Failed,
    FileEntry,
    ItemEntry,
    RankRecord,
    Ready,
    ShardEntry,
    StoreRecord,
    TensorEntry,
)
from ckptstore.packing import Numbers
from ckptstore.progress import Progress
from ckptstore.restore.verify import check_arrived
from ckptstore.settings import CommitSettings, Settings
from ckptstore.store import ObjectStore
from ckptstore.types import Key
from ckptstore.upload.source import ShardSource, stored_kind
from ckptstore.upload.uploader import Uploader

logger = logging.getLogger(__name__)

COORDINATOR_RANK: Final = 0
GIVE_UP_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What lies where in a rank's shards; entries name a shard by its place among the sources.

    ``metrics`` is what the training says of the step, on rank 0; what is not finite is left out.
    """

    tensors: tuple[TensorEntry, ...] = ()
    items: tuple[ItemEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    paths: dict[str, tuple[str | int, ...]] | None = None
    versions: dict[str, str] | None = None
    metrics: dict[str, float] | None = None

    def numbers(self, shards: int) -> list[list[Numbers]]:
        """Return where floating-point numbers lie in each of the shards."""
        found: list[list[Numbers]] = [[] for _ in range(shards)]
        for entry in self.tensors:
            if (width := FLOAT_WIDTHS.get(entry.dtype, 1)) > 1:
                found[entry.shard].append(Numbers(entry.start, entry.stop, width))
        return found


async def save_checkpoint(
    sources: Sequence[ShardSource],
    contents: Contents,
    *,
    attempt: Attempt,
    rank: int,
    store: ObjectStore,
    record: StoreRecord,
    deadline: Deadline,
    settings: Settings,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Commit:
    """Write this rank's shards and return once the whole checkpoint is committed.

    Every rank calls this with the same attempt, and no two ranks ever hear different answers.
    It returns, and the checkpoint is readable. Or it raises ``CheckpointAbortedError``, and no
    reader will ever see anything of this attempt, because readers follow the decision and
    that says abort. Or it raises ``CheckpointInDoubtError``, because the store fell silent
    before this rank could hear. It ends by the deadline, whatever the other ranks do.
    """
    save = _RankSave(attempt, rank, store, record, deadline, settings, clock or SystemClock())
    vote, failure = await save.upload(sources, contents, progress or Progress())
    voted = False
    try:
        async with deadline.enforce(f"{save}: waiting for the decision"):
            await save.committer.vote(vote)
            voted = True
            decision = await save.settle(vote)
    except asyncio.CancelledError:
        if rank == COORDINATOR_RANK:  # Nobody else would decide before the deadline.
            await save.give_up("interrupted while it waited for the others", voted=True)
        elif record.create_only and not voted:  # Or they might wait for this vote until then.
            await save.give_up("interrupted while it voted", voted=False)
        raise
    except CkptStoreError as error:
        raise CheckpointInDoubtError(
            f"{save}: the store did not say what was decided: {error}; own vote: "
            f"{vote.reason if isinstance(vote, Failed) else 'ready'}; run `ckptstore resolve`"
        ) from error
    match decision:
        case Commit():
            return decision
        case Abort():
            raise CheckpointAbortedError(f"{save} was aborted: {decision.reason}") from failure
        case _:
            assert_never(decision)


def votes_until(deadline: Deadline, settings: CommitSettings) -> Deadline:
    """Return until when a rank may work and vote; the time that is left is to decide in."""
    reserve_s = min(settings.decision_s_reserve, 0.2 * deadline.budget_s)
    return Deadline(deadline.at_s - reserve_s, deadline.budget_s - reserve_s)


class _RankSave:
    """One rank's part in one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        rank: int,
        store: ObjectStore,
        record: StoreRecord,
        deadline: Deadline,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self.attempt = attempt
        self.rank = rank
        self.store = store
        self.fan_out = record.fan_out
        self.reads_back = record.checksums is False
        self.settings = settings
        self.clock = clock
        self.reached = "nothing"
        self.committer = Committer(
            store,
            attempt,
            settings.commit,
            role="coordinator" if rank == COORDINATOR_RANK else f"rank {rank}",
            create_only=record.create_only,
            clock=clock,
        )
        self.votes_until = votes_until(deadline, settings.commit)
        self.decision_until = Deadline(  # Half of what is kept back, for those who only wait.
            (self.votes_until.at_s + deadline.at_s) / 2,
            (self.votes_until.budget_s + deadline.budget_s) / 2,
        )

    def __str__(self) -> str:
        return (
            f"run {self.attempt.run} step {self.attempt.step} rank {self.rank} "
            f"(attempt {self.attempt.uid})"
        )

    async def upload(
        self, sources: Sequence[ShardSource], contents: Contents, progress: Progress
    ) -> tuple[RankRecord, Exception | None]:
        """Write the shards and return this rank's vote, and what kept it from being READY."""
        uploader = Uploader(self.store, self.settings.transfer, progress=progress)
        try:
            async with self.votes_until.enforce(f"{self}: upload"):
                return await self._write(uploader, sources, contents), None
        except asyncio.CancelledError:
            await self.give_up(f"interrupted after {self.reached}", voted=False)
            raise
        except Exception as error:  # Even a bug is a vote: the others are waiting to hear it.
            return self._failed(f"{type(error).__name__}: {error} (after {self.reached})"), error

    async def settle(self, vote: RankRecord) -> Decision:
        """Take this rank's part in the decision, and return it."""
        if isinstance(vote, Failed) and self.committer.create_only:
            return await self.committer.decide(
                self.committer.abort(f"rank {self.rank}: {vote.reason}")
            )
        if self.rank == COORDINATOR_RANK:
            votes = await self.committer.collect_votes(self.votes_until)
            proposal = tally(
                self.attempt,
                votes,
                decided_by=self.committer.decided_by,
                decided_unix_s=self.clock.unix_s(),
            )
            return await self.committer.decide(proposal)
        decision = await self.committer.await_decision(self.decision_until)
        if decision is not None:
            return decision
        silence = f"rank {self.rank} heard no decision from rank {COORDINATOR_RANK} in time"
        if not self.committer.create_only:
            raise CheckpointInDoubtError(silence)
        # The coordinator is gone. Anyone may decide, so nobody hangs on it.
        return await self.committer.decide(self.committer.abort(silence))

    async def _write(
        self, uploader: Uploader, sources: Sequence[ShardSource], contents: Contents
    ) -> RankRecord:
        """Upload, unless the attempt is decided meanwhile: then there is nothing to write for."""
        uploading = asyncio.ensure_future(self._durable(uploader, sources, contents))
        watching = asyncio.ensure_future(self._decided_meanwhile())
        try:
            await asyncio.wait({uploading, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not uploading.done():
                decision = watching.result()
                return self._failed(
                    f"stopped, for the attempt was decided by {decision.decided_by}"
                )
            shards = uploading.result()
        finally:
            self.reached = str(uploader)  # Before the clean-up empties the queue.
            await _ended(uploading, watching)
        return Ready(
            uid=self.attempt.uid,
            rank=self.rank,
            world_size=self.attempt.world_size,
            shards=shards,
            tensors=contents.tensors,
            items=contents.items,
            files=contents.files,
            paths=contents.paths,
            versions=contents.versions or {},
            metrics=_finite(contents.metrics or {}),
        )

    async def _durable(
        self, uploader: Uploader, sources: Sequence[ShardSource], contents: Contents
    ) -> tuple[ShardEntry, ...]:
        """Upload; where nobody looked at what arrived, see that it did."""
        keyed = self._keyed(sources)
        numbers = {}
        if self.settings.transfer.compression is not None:
            found = contents.numbers(len(keyed))
            numbers = dict(zip((key for key, _ in keyed), found, strict=True))
        shards = await uploader.upload(keyed, numbers=numbers)
        if self.reads_back:
            await check_arrived(self.store, shards, settings=self.settings.transfer)
        return shards

    async def _decided_meanwhile(self) -> Decision:
        """Return once the attempt is decided, looking now and then; it costs a request each."""
        while True:
            await asyncio.sleep(self.settings.commit.watch_s * random.uniform(0.5, 1.0))
            try:
                decision = await self.committer.standing_decision()
            except CkptStoreError as error:
                logger.info("%s: could not look whether it was decided: %s", self, error)
                continue
            if decision is not None:
                return decision

    def _keyed(self, sources: Sequence[ShardSource]) -> list[tuple[Key, ShardSource]]:
        return [
            (
                data_key(
                    self.attempt.run,
                    self.attempt.uid,
                    self.rank,
                    index,
                    stored_kind(source, self.settings.transfer),
                    fan_out=self.fan_out,
                ),
                source,
            )
            for index, source in enumerate(sources)
        ]

    def _failed(self, reason: str) -> Failed:
        return Failed(
            uid=self.attempt.uid,
            rank=self.rank,
            world_size=self.attempt.world_size,
            reason=reason,
        )

    async def give_up(self, reason: str, *, voted: bool) -> None:
        """Tell the others, in the little time that an interrupt leaves. A vote stays as it is."""
        vote = self._failed(reason)

        async def tell() -> None:
            async with asyncio.timeout(GIVE_UP_S_MAX):
                if voted:
                    await self.committer.decide(self.committer.abort(f"rank {self.rank}: {reason}"))
                else:
                    await self.committer.vote(vote)
                    await self.settle(vote)

        try:
            await asyncio.shield(asyncio.ensure_future(tell()))
        except (CkptStoreError, TimeoutError):
            logger.warning("%s: %s, and the other ranks could not be told", self, reason)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out what is no number: a loss of NaN must not cost the checkpoint that shows it."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and return when nothing does."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
