"""Looking for ``latest``, which takes two listings, and pinning what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.model.reading import committed, latest_of, newest_claim, newest_mark, resumed_since
from tests.model.state import PIN, RETIRED, THERE, Claim, Key, Local, State, Uid
from tests.model.steps import Actor, Kind, Put, Step
from tests.model.weakenings import Weakening

Seen: TypeAlias = tuple[frozenset[Uid], Claim]  # The commits, and the newest claim.


@dataclass(frozen=True)
class Finder(Actor):
    """Somebody who lists decisions and then incarnations, at two different moments.

    In this order the answer was true at some moment in between. In the other one it may be
    a commit that landed after the next incarnation was claimed: never true at all.
    """

    def look(self, state: State, then: Callable[[Seen], Sequence[Local]]) -> Iterator[Step]:
        """Yield the next listing; the second one leads to each local of ``then``."""
        here = self.local(state)
        commits, claim = here.commits, here.claim
        claims_first = self.world.weakening is Weakening.CLAIMS_BEFORE_DECISIONS
        if commits is None and (claim is not None or not claims_first):
            commits = committed(self.world, state)
            words: tuple[object, ...] = ("lists commits:", *sorted(commits))
        else:
            claim = newest_claim(self.world, state)
            words = ("lists incarnations, the newest is", claim.number, "of", claim)
        if commits is None or claim is None:
            half = here._replace(commits=commits, claim=claim)
            yield self.step(Kind.LIST, state, half, *words)
            return
        for local in then((commits, claim)):
            yield self.step(Kind.LIST, state, local, *words)

    def void_or_not(self, state: State, mark: int, *, void: Local, valid: Local) -> Iterator[Step]:
        """Yield the listing that tells whether a mark ``retired`` is void."""
        uid = self.local(state).uid
        assert uid is not None
        if self.world.weakening is Weakening.LATEST_VOIDS_MARKS:
            yield from self.look(
                state, lambda seen: [void if latest_of(self.world, *seen) == uid else valid]
            )
            return
        since = resumed_since(self.world, state, uid, mark)
        words = ("lists incarnations,", "one" if since else "none", "resumed from", uid, "since")
        yield self.step(Kind.LIST, state, void if since else valid, *words, mark)


@dataclass(frozen=True)
class Pinner(Finder):
    """Somebody who pins a checkpoint, then checks that it was not retired meanwhile.

    A mark is void if an incarnation that its writer did not know of resumed from the
    checkpoint. Then that job had pinned it before it was marked, so no collector will ever
    follow this mark; to collect it takes a new mark, which a new pin can meet.
    """

    number: int

    def pin_key(self, uid: Uid) -> Key:
        return Key(PIN, uid, self.number)

    def pin(self, state: State, *, safe: Local, refused: Local) -> Iterator[Step]:
        """Yield what leads from "pin" by way of "check" and "void?" to one of the two."""
        here = self.local(state)
        uid = here.uid
        assert uid is not None
        if here.at == "pin":
            unchecked = self.world.weakening is Weakening.NO_CHECK_AFTER_PIN
            acked = safe if unchecked else here._replace(at="check")
            yield from self.put(state, Put(Kind.PIN, self.pin_key(uid), THERE, acked, here))
        elif here.at == "check":
            mark = newest_mark(self.world, state, uid)
            final = self.world.weakening is Weakening.RETIRED_FOR_GOOD
            marked = refused if final else here._replace(at="void?", mark=mark)
            words = ("finds", Key(RETIRED, uid, mark)) if mark else ("finds", uid, "not retired")
            yield self.step(Kind.CHECK, state, marked if mark else safe, *words)
        else:
            any_claim = self.world.weakening is Weakening.MARKS_UNNUMBERED
            mark = 0 if any_claim else here.mark
            yield from self.void_or_not(state, mark, void=safe, valid=refused)

    def unpin(self, state: State, uid: Uid, then: Local) -> Iterator[Step]:
        gone = self.world.delete(state, self.pin_key(uid))
        yield self.step(Kind.UNPIN, gone, then, "lets go of", uid)

    def expiries(self, state: State) -> Iterator[Step]:
        """Yield the end of each of this process's pins, which it renews while it lives.

        A pin outlives whatever its owner ever asked of the store, by hours.
        """
        if any(self._claimed(flight.value) for flight in state.flights):
            return
        for uid in self.world.uids:
            if self.world.get(state, self.pin_key(uid)) is not None:
                gone = self.world.delete(state, self.pin_key(uid))
                yield Step(Kind.EXPIRY, ("the pin of", self.name, "expires, on", uid), gone)

    def steps_after_crash(self, state: State) -> Iterator[Step]:
        yield from self.expiries(state)

    def _claimed(self, value: object) -> bool:
        return isinstance(value, Claim) and value.owner == self.name
