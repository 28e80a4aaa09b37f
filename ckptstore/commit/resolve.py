"""Settle an attempt that nobody decided, from any process and at any time."""

from __future__ import annotations

from ckptstore.clock import Clock
from ckptstore.commit.committer import CommitStore, Committer
from ckptstore.commit.tally import anybody_failed, tally
from ckptstore.errors import UnsupportedVerbError
from ckptstore.manifest.model import Attempt, Commit, Decision
from ckptstore.settings import CommitSettings


async def resolve_attempt(
    store: CommitStore, attempt: Attempt, *, create_only: bool, clock: Clock
) -> Decision | None:
    """Decide the attempt if its votes or its deadline allow it, and return what stands.

    All ranks READY means commit. One that failed, or a deadline that has passed, means abort.
    ``None`` means that it is still under way. Put-if-absent makes any number of resolvers and
    a coordinator that is merely slow agree; a store without it is refused.
    """
    if not create_only:
        raise UnsupportedVerbError(
            f"attempt {attempt.uid} can be decided by its own coordinator only, because this "
            "store does not keep put-if-absent; save the step again",
            verb="put",
        )
    committer = Committer(
        store, attempt, CommitSettings(), role="resolve", create_only=create_only, clock=clock
    )
    votes = tuple((await committer.read_votes(known={})).values())
    now_unix_s = clock.unix_s()
    proposal = tally(attempt, votes, decided_by=committer.decided_by, decided_unix_s=now_unix_s)
    due = anybody_failed(votes) or now_unix_s >= attempt.deadline_unix_s
    if isinstance(proposal, Commit) or due:
        return await committer.decide(proposal)
    return None
