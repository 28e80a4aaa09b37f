"""Those who settle attempts that are not their own: ``resolve``, and one half of ``gc``.

Neither remembers anything from one step to the next. What they read before they write is
either stable (all votes READY, a standing decision: neither ever changes) or not needed (an
ABORT may be proposed at any time, for a deadline may have passed at any time), so reading and
writing in one step leaves out no outcome. Nor do they crash: not scheduled again is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tests.model.reading import voted_ready
from tests.model.state import ABORT, BEGIN, COMMIT, DECISION, RANKS, Key, State, Uid
from tests.model.steps import Actor, Kind, Put, Step
from tests.model.weakenings import Weakening


class Settler(Actor):
    """Somebody who is no part of the attempt, and needs put-if-absent to decide it."""

    crashable: ClassVar[bool] = False
    anyway: ClassVar[Weakening]

    def may_decide(self) -> bool:
        return self.world.put_if_absent or self.world.weakening is self.anyway

    def is_open(self, state: State, uid: Uid) -> bool:
        get = self.world.get
        return get(state, Key(BEGIN, uid)) is not None and get(state, Key(DECISION, uid)) is None

    def decide(self, state: State, kind: Kind, uid: Uid, verdict: str) -> Iterator[Step]:
        here = self.local(state)
        yield from self.put(state, Put(kind, Key(DECISION, uid), verdict, here, here, refused=here))


class Resolver(Settler):
    """Commits what is all READY, aborts what is past its deadline."""

    anyway = Weakening.RESOLVED_ANYWAY

    def steps(self, state: State) -> Iterator[Step]:
        for uid in self.world.uids:
            if not self.is_open(state, uid) or not self.may_decide():
                continue
            if self.world.weakening is Weakening.ABORT_BY_CLOCK:
                told = state._replace(told=state.told | {(uid, ABORT)})
                yield self.step(Kind.RESOLVE, told, self.local(state), "reports", uid, "aborted")
                continue
            if voted_ready(self.world, state, uid):
                yield from self.decide(state, Kind.RESOLVE, uid, COMMIT)
            yield from self.decide(state, Kind.RESOLVE, uid, ABORT)


class Sweeper(Settler):
    """Deletes the data of attempts that are aborted, and aborts those that nobody decided."""

    anyway = Weakening.ABORTED_ANYWAY

    def steps(self, state: State) -> Iterator[Step]:
        for uid in self.world.uids:
            decision = self.world.get(state, Key(DECISION, uid))
            by_age = self.world.weakening is Weakening.COLLECTED_BY_AGE
            if decision == ABORT or (by_age and self.is_open(state, uid)):
                yield from self._delete(state, uid)
            elif self.is_open(state, uid) and self.may_decide():
                yield from self.decide(state, Kind.COLLECTOR_ABORT, uid, ABORT)

    def _delete(self, state: State, uid: Uid) -> Iterator[Step]:
        here = self.local(state)
        keys = [self.world.data_key(uid, rank) for rank in RANKS]
        if self.world.weakening is Weakening.DECISIONS_DELETED:
            keys.append(Key(DECISION, uid))
        for key in keys:
            if self.world.get(state, key) is not None:
                gone = self.world.delete(state, key)
                yield self.step(Kind.COLLECTOR_DELETE, gone, here, "deletes", key)
