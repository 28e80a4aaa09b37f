"""A start of the job: it resumes from a checkpoint, claims an incarnation, saves once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.model.finding import Pinner
from tests.model.reading import latest_of, newest_claim
from tests.model.state import CLAIM, COMMIT, DECISION, Claim, Key, Local, State, Uid
from tests.model.steps import ENDED, Kind, Put, Step
from tests.model.weakenings import Weakening

RELYING: Final = frozenset({"unpin early", "number", "claim", "whose claim"})
OWNING: Final = frozenset({"unpin", "decide", "read back"})


@dataclass(frozen=True)
class Job(Pinner):
    """Resumes from ``latest``, or rolls back to a checkpoint that its user named.

    It holds a pin on its parent until its claim stands: from then on the claim protects the
    parent. Its ranks have written their part before the search begins: nobody looks at it
    until it is committed, and how it is written is the matter of another scenario.
    """

    step_saved: int
    rollback_to: Uid | None = None

    def steps(self, state: State) -> Iterator[Step]:
        here = self.local(state)
        if here.claim is None or here.commits is not None:
            yield from self._resume(state, here)
        else:
            yield from self._go_on(state, here, here.claim)

    def _resume(self, state: State, here: Local) -> Iterator[Step]:
        match here.at, here.uid:
            case "look", _:
                yield from self._look(state, here)
            case "number", uid:
                yield self._number(state, uid)
            case "refused", Uid() as uid:
                yield from self.unpin(state, uid, self.start)
            case "unpin early", Uid() as uid:
                yield from self.unpin(state, uid, Local("number", uid))
            case _, uid:
                early = self.world.weakening is Weakening.UNPINNED_BEFORE_CLAIM
                safe = Local("unpin early" if early else "number", uid)
                yield from self.pin(state, safe=safe, refused=Local("refused", uid))

    def _go_on(self, state: State, here: Local, claim: Claim) -> Iterator[Step]:
        match here.at, here.uid:
            case "claim", _:
                yield from self._claim(state, here, claim)
            case "whose claim", _:
                yield from self._read_claim(state, here, claim)
            case "unpin", Uid() as uid:
                yield from self.unpin(state, uid, here._replace(at="decide", uid=None))
            case "decide", _:
                yield from self._decide(state, here, claim)
            case "read back", _:
                yield self._read_back(state, here, claim)

    def relies_on(self, local: Local) -> Uid | None:
        return local.uid if local.at in RELYING else None

    def owns_incarnation(self, local: Local) -> int | None:
        return local.claim.number if local.claim and local.at in OWNING else None

    def _look(self, state: State, here: Local) -> Iterator[Step]:
        yield from self.look(state, lambda seen: [_from(latest_of(self.world, *seen))])
        if here != self.start:
            return
        blind = self.world.weakening is Weakening.NOTHING_IF_UNLISTED
        yield self.step(Kind.FAILED_LIST, state, _from(None) if blind else here, "cannot list")
        if self.rollback_to is not None:
            back = _from(self.rollback_to)
            yield self.step(Kind.LIST, state, back, "rolls back to", self.rollback_to)

    def _number(self, state: State, uid: Uid | None) -> Step:
        newest = newest_claim(self.world, state).number
        if newest == self.world.claims_max:  # Only if claims do not exclude each other.
            return self.step(Kind.GIVE_UP, state, Local(ENDED), "finds no number left")
        local = Local("claim", uid, claim=Claim(newest + 1, self.name, uid))
        return self.step(Kind.LIST, state, local, "finds incarnation", newest + 1, "free")

    def _claim(self, state: State, here: Local, claim: Claim) -> Iterator[Step]:
        unsure = here._replace(at="whose claim")
        key = Key(CLAIM, None, claim.number)
        yield from self.put(
            state, Put(Kind.CLAIM, key, claim, _claimed(here), unsure, refused=unsure)
        )

    def _read_claim(self, state: State, here: Local, claim: Claim) -> Iterator[Step]:
        standing = self.world.get(state, Key(CLAIM, None, claim.number))
        if standing is None:
            local = here._replace(at="claim")
        else:
            local = _claimed(here) if standing == claim else Local("number", here.uid)
        yield self.step(Kind.READ_BACK, state, local, "reads back", standing)

    def _decide(self, state: State, here: Local, claim: Claim) -> Iterator[Step]:
        unsure = here._replace(at="read back")
        key = Key(DECISION, Uid(claim.number, self.step_saved))
        put = Put(Kind.DECIDE, key, COMMIT, Local(ENDED), unsure, refused=unsure)
        yield from self.put(state, put)

    def _read_back(self, state: State, here: Local, claim: Claim) -> Step:
        standing = self.world.get(state, Key(DECISION, Uid(claim.number, self.step_saved)))
        local = Local(ENDED) if standing == COMMIT else here._replace(at="decide")
        return self.step(Kind.READ_BACK, state, local, "reads back", standing)


def _from(parent: Uid | None) -> Local:
    return Local("number" if parent is None else "pin", parent)


def _claimed(here: Local) -> Local:
    return here._replace(at="decide" if here.uid is None else "unpin")
