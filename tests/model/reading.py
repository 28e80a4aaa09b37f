"""What the objects of a store mean, to whoever sees them all at one instant."""

from __future__ import annotations

from tests.model.state import (
    CLAIM,
    COMMIT,
    DECISION,
    RANKS,
    READY,
    RETIRED,
    VOTE,
    Claim,
    Key,
    State,
    Uid,
    World,
)
from tests.model.weakenings import Weakening


def voted_ready(world: World, state: State, uid: Uid) -> bool:
    """Say whether exactly the participants voted, and all of them READY."""
    votes = [world.get(state, Key(VOTE, uid, rank)) for rank in RANKS]
    if world.weakening is Weakening.VOTES_COUNTED:
        return None not in votes
    return all(vote == READY for vote in votes)


def committed(world: World, state: State) -> frozenset[Uid]:
    return frozenset(uid for uid in world.uids if world.get(state, Key(DECISION, uid)) == COMMIT)


def intact(world: World, state: State, uid: Uid) -> bool:
    """Say whether all that a commit refers to is there, and of this very attempt."""
    return all(
        world.get(state, world.data_key(uid, rank)) == uid
        and world.get(state, Key(VOTE, uid, rank)) == READY
        for rank in RANKS
    )


def newest_claim(world: World, state: State) -> Claim:
    for number in range(world.claims_max, 0, -1):
        claim = world.get(state, Key(CLAIM, None, number))
        if isinstance(claim, Claim):
            return claim
    raise AssertionError("every scenario starts with incarnation 1 claimed")


def latest_of(world: World, commits: frozenset[Uid], claim: Claim) -> Uid | None:
    """Return the newest commit of the newest incarnation, else what that one resumed from."""
    if world.weakening is Weakening.LATEST_BY_STEP:
        return max(commits, key=lambda uid: uid.step, default=None)
    if world.weakening is Weakening.LATEST_BY_DECISIONS:
        return max(commits, default=None)
    own = [uid for uid in commits if uid.incarnation == claim.number]
    return max(own, default=claim.parent)


def latest(world: World, state: State) -> Uid | None:
    return latest_of(world, committed(world, state), newest_claim(world, state))


def newest_mark(world: World, state: State, uid: Uid) -> int:
    """Return the newest incarnation that a mark ``retired`` of this checkpoint knew of, or 0."""
    for number in range(world.claims_max, 0, -1):
        if world.get(state, Key(RETIRED, uid, number)) is not None:
            return number
    return 0


def resumed_since(world: World, state: State, uid: Uid, mark: int) -> bool:
    """Say whether an incarnation that the mark did not know of resumed from this checkpoint."""
    for number in range(mark + 1, world.claims_max + 1):
        claim = world.get(state, Key(CLAIM, None, number))
        if isinstance(claim, Claim) and claim.parent == uid:
            return True
    return False


def is_retired(world: World, state: State, uid: Uid) -> bool:
    """Say whether a checkpoint has a mark that no later incarnation made void."""
    mark = newest_mark(world, state, uid)
    if world.weakening is Weakening.RETIRED_FOR_GOOD:
        return mark > 0
    if world.weakening is Weakening.LATEST_VOIDS_MARKS:
        return mark > 0 and latest(world, state) != uid
    return mark > 0 and not resumed_since(world, state, uid, mark)
