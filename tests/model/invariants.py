"""What must hold at every moment. The first thing that does not ends the search."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.reading import committed, intact, is_retired, latest
from tests.model.scenario import Scenario
from tests.model.state import ABORT, COMMIT, DECISION, Key, State, World


class Judge:
    """Says what is wrong with a state. What only the store decides, it looks at once."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._of_stores: dict[object, str | None] = {}

    def violation(self, state: State) -> str | None:
        store = (state.objects, state.told, state.late)
        if store not in self._of_stores:
            self._of_stores[store] = next(_wrong_in_store(self._scenario.world, state), None)
        return self._of_stores[store] or next(_wrong_with_actors(self._scenario, state), None)


def _wrong_in_store(world: World, state: State) -> Iterator[str]:
    yield from _not_intact(world, state)
    yield from _told_wrongly(world, state)
    yield from _latest_is_wrong(world, state)


def _not_intact(world: World, state: State) -> Iterator[str]:
    """A committed checkpoint that is not retired is all there, and all of one attempt."""
    for uid in committed(world, state):
        if not intact(world, state, uid) and not is_retired(world, state, uid):
            yield f"{uid} is committed, and not intact"


def _told_wrongly(world: World, state: State) -> Iterator[str]:
    """Once told COMMITTED, for ever committed; once told ABORTED, never committed."""
    for uid, verdict in state.told:
        standing = world.get(state, Key(DECISION, uid))
        if verdict == COMMIT and standing != COMMIT:
            yield f"{uid} was told to be committed, and its decision is {standing}"
        if verdict == ABORT and standing == COMMIT:
            yield f"{uid} was told to be aborted, and is committed"


def _latest_is_wrong(world: World, state: State) -> Iterator[str]:
    """Once there is a checkpoint, there is a latest one, which readers accept.

    It is never one that an older incarnation committed after a newer one was claimed.
    """
    commits = committed(world, state)
    if not commits:
        return
    newest = latest(world, state)
    if newest in state.late:
        yield f"latest is {newest}, which an older incarnation committed late"
    if newest is None:
        yield "there are checkpoints, and no latest one"
    elif newest not in commits or not intact(world, state, newest):
        yield f"latest is {newest}, which is not intact"
    elif is_retired(world, state, newest):
        yield f"latest is {newest}, which is retired: every reader refuses it"


def _wrong_with_actors(scenario: Scenario, state: State) -> Iterator[str]:
    """Nobody loses what it pinned, resumes from a late commit, or shares its incarnation."""
    owned = set()
    for actor in scenario.actors:
        local = actor.local(state)
        uid = actor.relies_on(local)
        if uid is not None and not intact(scenario.world, state, uid):
            yield f"{actor.name} relies on {uid}, which is not intact"
        if uid is not None and uid in state.late:
            yield f"{actor.name} resumes from {uid}, which was committed late"
        number = actor.owns_incarnation(local)
        if number is not None and number in owned:
            yield f"{actor.name} and another job believe to be incarnation {number}"
        owned.add(number)
