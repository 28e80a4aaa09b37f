"""Turn votes into a decision. Pure: no I/O, no clock, no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptstore.manifest.layout import rank_record_key
from ckptstore.manifest.model import (
    Abort,
    Attempt,
    Commit,
    Decision,
    Failed,
    RankRecord,
    Ready,
    RecordRef,
)


@dataclass(frozen=True, slots=True)
class Vote:
    """A rank record as it was read: what it says, where it was, and which bytes said it."""

    record: RankRecord
    ref: RecordRef


def tally(
    attempt: Attempt, votes: Sequence[Vote], *, decided_by: str, decided_unix_s: float
) -> Decision:
    """Commit if exactly the ranks of this attempt voted, and all of them are ready.

    Ranks are matched by name, never counted: enough votes from the wrong voters look just
    like enough votes.
    """
    due = {
        rank_record_key(attempt.run, attempt.uid, rank): rank for rank in range(attempt.world_size)
    }
    cast = {vote.ref.key: vote for vote in votes}
    troubles = [f"{key} is no vote of this attempt" for key in sorted(cast.keys() - due.keys())]
    for key, rank in due.items():
        troubles += _troubles(attempt, rank, cast.get(key))
    if troubles:
        return Abort(
            attempt=attempt,
            reason="; ".join(troubles),
            decided_unix_s=decided_unix_s,
            decided_by=decided_by,
        )
    ready = [vote.record for vote in map(cast.__getitem__, due) if isinstance(vote.record, Ready)]
    shards = [shard for record in ready for shard in record.shards]
    return Commit(
        attempt=attempt,
        records=tuple(cast[key].ref for key in due),
        data_bytes=sum(shard.size_bytes for shard in shards),
        objects=len(shards),
        decided_unix_s=decided_unix_s,
        decided_by=decided_by,
    )


def anybody_failed(votes: Sequence[Vote]) -> bool:
    return any(isinstance(vote.record, Failed) for vote in votes)


def _troubles(attempt: Attempt, rank: int, vote: Vote | None) -> list[str]:
    if vote is None:
        return [f"rank {rank} did not vote in time"]
    record = vote.record
    if (record.uid, record.rank) != (attempt.uid, rank):
        return [f"{vote.ref.key} holds the vote of rank {record.rank} of {record.uid}"]
    if record.world_size != attempt.world_size:
        return [f"rank {rank} voted in a world of {record.world_size}, not {attempt.world_size}"]
    return [f"rank {rank}: {record.reason}"] if isinstance(record, Failed) else []
