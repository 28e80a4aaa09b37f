"""The commit protocol, exhaustively: right as it is, and wrong with any part of it left out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from tests.model.scenario import Scenario
from tests.model.scenarios import SCENARIOS, SHOWS_AS, Bounds, retry
from tests.model.search import Outcome, explore
from tests.model.state import State
from tests.model.steps import Kind
from tests.model.weakenings import Weakening

# How many states and transitions each scenario has at least, or it has quietly become trivial.
# Transitions too: a write that comes late may lead where the same write led in time.
SIZES_MIN: Final = {
    "retry, an answer lost": (87_000, 518_000),
    "retry, two crashes": (30_000, 201_000),
    "retention": (35_000, 185_000),
    "restart": (18_000, 57_000),
    "two restarts": (104_000, 196_000),
    "two restarts, an answer lost": (40_000, 126_000),
    "no put-if-absent": (33_000, 166_000),
}
SAVING: Final = {
    *(Kind.PUT, Kind.GIVE_UP, Kind.READ, Kind.DECIDE, Kind.READ_BACK),
    *(Kind.ZOMBIE_WRITE, Kind.COLLECTOR_DELETE),
}
SETTLING: Final = {Kind.REFUSED, Kind.RESOLVE, Kind.COLLECTOR_ABORT}
UNANSWERED: Final = {Kind.LOST_ANSWER, Kind.LATE_LANDING}
SENT_AGAIN: Final = {Kind.OWN_SUCCESS_REFUSED, Kind.READ_BACK}
CRASHING: Final = {Kind.CRASH}
COLLECTING: Final = {
    *(Kind.LIST, Kind.FAILED_LIST, Kind.RETIRE, Kind.COLLECTOR_DELETE),
    *(Kind.PIN, Kind.CHECK, Kind.UNPIN, Kind.DECIDE),
}
CLAIMING: Final = {Kind.CLAIM, Kind.REFUSED, Kind.READ_BACK}
KINDS: Final[dict[str, set[Kind]]] = {
    "retry, an answer lost": SAVING | SETTLING | UNANSWERED | SENT_AGAIN,
    "retry, two crashes": SAVING | SETTLING | CRASHING,
    "retention": COLLECTING
    | {Kind.READ, Kind.COLLECTOR_ABORT, Kind.EXPIRY}
    | CRASHING
    | UNANSWERED
    | SENT_AGAIN,
    "restart": COLLECTING | {Kind.CLAIM, Kind.EXPIRY} | CRASHING | UNANSWERED | SENT_AGAIN,
    "two restarts": COLLECTING | CLAIMING,
    "two restarts, an answer lost": COLLECTING
    | CLAIMING
    | {Kind.EXPIRY}
    | CRASHING
    | UNANSWERED
    | SENT_AGAIN,
    "no put-if-absent": SAVING | UNANSWERED,
}


@cache
def outcome_of(name: str) -> Outcome:
    return explore(SCENARIOS[name](None))


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_breaks_the_protocol(name: str) -> None:
    outcome = outcome_of(name)
    assert outcome.violation is None, "\n".join(outcome.trace)
    states_min, transitions_min = SIZES_MIN[name]
    assert outcome.states >= states_min
    assert outcome.transitions >= transitions_min
    assert KINDS[name] <= set(outcome.fired)


def test_everything_that_can_happen_happens_somewhere() -> None:
    assert set(Kind) == set().union(*KINDS.values())


@pytest.mark.parametrize("weakening", Weakening, ids=lambda weakening: weakening.name)
def test_every_weakening_breaks_the_protocol(weakening: Weakening) -> None:
    name, says = SHOWS_AS[weakening]
    outcome = explore(SCENARIOS[name](weakening))
    print(f"{weakening.value}: {outcome.violation} after {len(outcome.trace)} steps")
    assert outcome.violation is not None
    assert says in outcome.violation
    assert outcome.trace


def test_without_put_if_absent_nobody_settles_what_is_not_his() -> None:
    fired = outcome_of("no put-if-absent").fired
    assert not {Kind.RESOLVE, Kind.COLLECTOR_ABORT, Kind.REFUSED} & set(fired)


def test_a_trace_can_be_walked() -> None:
    scenario = SCENARIOS["retry, an answer lost"](Weakening.DOUBT_IS_ABORT)
    outcome = explore(scenario)
    state = scenario.start
    for text in outcome.trace:
        state = next(step.state for step in scenario.steps(state) if step.text == text)
    assert outcome.violation == "i1-s10-a1 was told to be aborted, and is committed"


@pytest.mark.parametrize(
    "reduced",
    [retry(Bounds(losses=0, crashes=0)), retry(Bounds(losses=2, crashes=1), tries=1)],
    ids=["two tries", "answers lost"],
)
def test_exchanging_ranks_leaves_nothing_out(reduced: Scenario) -> None:
    assert reduced.canonical is not None
    canonical = reduced.canonical
    images = {reduced.start}

    def noted(state: State) -> State:
        images.add(canonical(state))
        return state

    every = explore(replace(reduced, canonical=noted))
    assert every.violation is None
    assert explore(reduced).states == len(images) < every.states
