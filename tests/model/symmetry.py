"""Ranks differ in nothing but their number, so one order of them stands for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.model.state import DATA, VOTE, Key, State, Uid, World


@dataclass(frozen=True)
class RankPair:
    """The two ranks of one attempt: where their local states and their objects lie.

    Exchanging them is sound because nothing tells them apart: every process and invariant
    asks for all ranks at once, and in the unweakened model their keys are of this attempt
    alone, so each attempt's pair may be exchanged by itself.
    """

    uid: Uid
    places: tuple[int, int]
    slots: tuple[tuple[int, ...], tuple[int, ...]]

    def ordered(self, state: State) -> State:
        first, second = self._column(state, 0), self._column(state, 1)
        if first == second and state.flights:
            first, second = self._flying(state, 0), self._flying(state, 1)
        return self._exchanged(state) if second < first else state

    def _column(self, state: State, rank: int) -> tuple[object, ...]:
        local = state.locals[self.places[rank]]
        data, vote = self.slots[rank]
        return local.at, local.verdict, state.objects[data] is None, state.objects[vote] or ""

    def _flying(self, state: State, rank: int) -> tuple[object, ...]:
        mine = (flight for flight in state.flights if self._is_of_rank(flight.key))
        return tuple(sorted(flight.key.kind for flight in mine if flight.key.number == rank))

    def _exchanged(self, state: State) -> State:
        places, objects = list(state.locals), list(state.objects)
        one, other = self.places
        places[one], places[other] = places[other], places[one]
        for one, other in zip(*self.slots, strict=True):
            objects[one], objects[other] = objects[other], objects[one]
        flights = frozenset(
            flight._replace(key=flight.key._replace(number=1 - flight.key.number))
            if self._is_of_rank(flight.key)
            else flight
            for flight in state.flights
        )
        return state._replace(locals=tuple(places), objects=tuple(objects), flights=flights)

    def _is_of_rank(self, key: Key) -> bool:
        return key.uid == self.uid and key.kind in (DATA, VOTE)


def in_order_of_ranks(
    world: World, places: Iterable[tuple[Uid, tuple[int, int]]]
) -> Callable[[State], State]:
    """Return what turns each state into the one that stands for it."""

    def slots(uid: Uid, rank: int) -> tuple[int, ...]:
        return tuple(world.slots[key] for key in (world.data_key(uid, rank), Key(VOTE, uid, rank)))

    pairs = [RankPair(uid, pair, (slots(uid, 0), slots(uid, 1))) for uid, pair in places]

    def canonical(state: State) -> State:
        for pair in pairs:
            state = pair.ordered(state)
        return state

    return canonical
