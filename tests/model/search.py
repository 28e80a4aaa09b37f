"""Look at every state that can be reached, the nearest first."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.model.invariants import Judge
from tests.model.scenario import Scenario
from tests.model.state import State
from tests.model.steps import Kind


@dataclass
class Outcome:
    """What a search saw. ``trace`` is a shortest way to ``violation``, if there is one."""

    states: int = 0
    transitions: int = 0
    cpu_s: float = 0.0
    fired: Counter[Kind] = field(default_factory=Counter)
    violation: str | None = None
    trace: tuple[str, ...] = ()


def explore(scenario: Scenario) -> Outcome:
    """Search breadth-first until everything was seen, or something is wrong."""
    began_s = time.process_time()
    outcome = Outcome()
    judge = Judge(scenario)
    came_from: dict[State, State | None] = {scenario.start: None}
    queue = deque(came_from)
    outcome.violation = judge.violation(scenario.start)
    while queue and outcome.violation is None:
        before = queue.popleft()
        for step in scenario.steps(before):
            outcome.transitions += 1
            outcome.fired[step.kind] += 1
            state = scenario.canonical(step.state) if scenario.canonical else step.state
            if state in came_from:
                continue
            came_from[state] = before
            queue.append(state)
            outcome.violation = judge.violation(state)
            if outcome.violation is not None:
                outcome.trace = _trace(scenario, came_from, state)
                break
    outcome.states = len(came_from)
    outcome.cpu_s = time.process_time() - began_s
    return outcome


def _trace(
    scenario: Scenario, came_from: dict[State, State | None], last: State
) -> tuple[str, ...]:
    """Return the steps that led there; with symmetry, ranks may trade names on the way."""
    canonical = scenario.canonical or (lambda state: state)
    texts: list[str] = []
    state = last
    while (before := came_from[state]) is not None:
        steps = scenario.steps(before)
        texts.append(next(step.text for step in steps if canonical(step.state) == state))
        state = before
    return tuple(reversed(texts))
