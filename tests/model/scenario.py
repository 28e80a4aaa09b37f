"""A scenario: who takes part, how the world is when they start, and what may happen to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.model.state import Local, State, World
from tests.model.steps import CRASHED, ENDED, Actor, Kind, Step, is_zombie


@dataclass(frozen=True)
class Scenario:
    """``canonical`` returns one and the same state for all those that differ in names only."""

    world: World
    actors: tuple[Actor, ...]
    start: State
    canonical: Callable[[State], State] | None = None

    def steps(self, state: State) -> Iterator[Step]:
        """Yield everything that may happen next."""
        for actor in self.actors:
            at = state.locals[actor.place].at
            if at == CRASHED:
                yield from actor.steps_after_crash(state)
            elif at != ENDED:
                yield from actor.steps(state)
        if state.crashes_left:
            yield from self._crashes(state)
        yield from self._landings(state)

    def _crashes(self, state: State) -> Iterator[Step]:
        """Yield every crash.

        A process that is never scheduled again has crashed as well, at whatever step, and
        every search holds all those runs: bounded are only the crashes that others notice.
        """
        for actor in self.actors:
            if actor.crashable and actor.local(state).at not in (ENDED, CRASHED):
                crashed = state._replace(crashes_left=state.crashes_left - 1)
                yield actor.step(Kind.CRASH, crashed, Local(CRASHED), "crashes")

    def _landings(self, state: State) -> Iterator[Step]:
        """Yield every way in which a put that was given up lands after all."""
        for flight in state.flights:
            zombie = is_zombie(self.world, state, flight.key)
            kind = Kind.ZOMBIE_WRITE if zombie else Kind.LATE_LANDING
            landed = self.world.land(state, flight)
            landed = landed._replace(flights=state.flights - {flight})
            yield Step(kind, ("the store gets, late,", flight.key, "=", flight.value), landed)
