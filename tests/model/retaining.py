"""A reader, and the half of ``gc`` that retires: whoever comes second must see the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.model.finding import Finder, Pinner, Seen
from tests.model.reading import committed, latest_of
from tests.model.state import PIN, RANKS, RETIRED, THERE, Key, Local, State, Uid
from tests.model.steps import ENDED, Kind, Put, Step
from tests.model.weakenings import Weakening

# Pins before claims: whoever resumes has a pin until its claim stands, and never neither.
SAFE_ORDER: Final = ("retire", "list pins", "list claims", "delete")
WEAK_ORDERS: Final = {
    Weakening.PINS_BEFORE_RETIRED: ("list pins", "retire", "list claims", "delete"),
    Weakening.NO_CLAIMS_AGAIN: ("retire", "list pins", "delete"),
    Weakening.CLAIMS_BEFORE_PINS: ("retire", "list claims", "list pins", "delete"),
}


@dataclass(frozen=True)
class Reader(Pinner):
    """Reads any committed checkpoint, by uid, while it holds a pin on it."""

    def steps(self, state: State) -> Iterator[Step]:
        here = self.local(state)
        if here.uid is None:
            for uid in sorted(committed(self.world, state)):
                yield self.step(Kind.LIST, state, Local("pin", uid), "wants", uid)
        elif here.at == "read":
            yield from self._read(state, here.uid)
        elif here.at == "unpin":
            yield from self.unpin(state, here.uid, Local(ENDED))
        else:
            safe, refused = Local("read", here.uid), Local("unpin", here.uid)
            yield from self.pin(state, safe=safe, refused=refused)

    def relies_on(self, local: Local) -> Uid | None:
        return local.uid if local.at == "read" else None

    def _read(self, state: State, uid: Uid) -> Iterator[Step]:
        yield self.step(Kind.READ, state, Local("unpin", uid), "has read all of", uid)
        if self.world.weakening is Weakening.PIN_EXPIRES:
            yield from self.expiries(state)


@dataclass(frozen=True)
class Collector(Finder):
    """Retires one checkpoint at a time, any but ``latest``, and deletes its data.

    Pass after pass, without end. How many more a policy would keep does not matter: a
    collector that may retire any of them does all that a choosier one can do.
    """

    pinners: int

    def steps(self, state: State) -> Iterator[Step]:
        here = self.local(state)
        match here.at, here.uid:
            case "look", _:
                yield from self.look(state, lambda seen: self._candidates(state, seen))
            case "retire", Uid() as uid:
                yield from self._retire(state, here, uid)
            case "list pins", Uid() as uid:
                yield from self._list_pins(state, here, uid)
            case "list claims", _:
                valid = self._next(here)
                yield from self.void_or_not(state, here.mark, void=self.start, valid=valid)
            case "delete", Uid() as uid:
                yield from self._delete(state, here, uid)

    @property
    def _order(self) -> tuple[str, ...]:
        weakening = self.world.weakening
        return SAFE_ORDER if weakening is None else WEAK_ORDERS.get(weakening, SAFE_ORDER)

    def _next(self, here: Local) -> Local:
        place = self._order.index(here.at)
        return Local(self._order[place + 1], here.uid, mark=here.mark)

    def _candidates(self, state: State, seen: Seen) -> list[Local]:
        commits, claim = seen
        kept = latest_of(self.world, commits, claim)
        if self.world.weakening is Weakening.FLOOR_BY_STEP:
            kept = max(commits, key=lambda uid: uid.step)
        elif self.world.weakening is Weakening.NO_FLOOR:
            kept = min(commits)
        if kept is None:
            return []
        return [
            Local(self._order[0], uid, mark=claim.number)
            for uid in sorted(commits - {kept})
            if self._data_left(state, uid)
        ]

    def _data_left(self, state: State, uid: Uid) -> list[Key]:
        keys = [self.world.data_key(uid, rank) for rank in RANKS]
        return [key for key in keys if self.world.get(state, key) is not None]

    def _retire(self, state: State, here: Local, uid: Uid) -> Iterator[Step]:
        done = self._next(here)
        silent = done if self.world.weakening is Weakening.RETIRED_UNANSWERED else here
        key = Key(RETIRED, uid, here.mark)
        yield from self.put(state, Put(Kind.RETIRE, key, THERE, done, silent))

    def _list_pins(self, state: State, here: Local, uid: Uid) -> Iterator[Step]:
        keys = [Key(PIN, uid, pinner) for pinner in range(self.pinners)]
        pinned = any(self.world.get(state, key) is not None for key in keys)
        found = "some" if pinned else "none"
        local = self.start if pinned else self._next(here)
        yield self.step(Kind.LIST, state, local, "lists pins on", uid, "and finds", found)
        blind = self.world.weakening is Weakening.PINS_UNLISTED
        local = self._next(here) if blind else self.start
        yield self.step(Kind.FAILED_LIST, state, local, "cannot list pins on", uid)

    def _delete(self, state: State, here: Local, uid: Uid) -> Iterator[Step]:
        left = self._data_left(state, uid)
        for key in left:
            gone = self.world.delete(state, key)
            yield self.step(Kind.COLLECTOR_DELETE, gone, here, "deletes", key)
        if not left:
            yield self.step(Kind.LIST, state, self.start, "finds nothing left of", uid)
