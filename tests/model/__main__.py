"""``python -m tests.model`` prints what was searched; with a weakening's name, how it fails."""

from __future__ import annotations

import sys

from tests.model.scenarios import SCENARIOS, SHOWS_AS
from tests.model.search import explore
from tests.model.weakenings import Weakening


def print_scenarios() -> None:
    print(f"{'scenario':30} {'states':>8} {'transitions':>12} {'CPU s':>6}")
    for name, make in SCENARIOS.items():
        outcome = explore(make(None))
        numbers = f"{outcome.states:8} {outcome.transitions:12} {outcome.cpu_s:6.1f}"
        print(f"{name:30} {numbers}  {outcome.violation or 'no violation'}", flush=True)


def print_weakenings() -> None:
    print(f"\n{'weakening':24} {'scenario':30} {'steps':>5}  first violation")
    for weakening, (name, _) in SHOWS_AS.items():
        outcome = explore(SCENARIOS[name](weakening))
        print(
            f"{weakening.name:24} {name:30} {len(outcome.trace):5}  {outcome.violation}", flush=True
        )


def print_trace(weakening: Weakening) -> None:
    outcome = explore(SCENARIOS[SHOWS_AS[weakening][0]](weakening))
    print(f"{weakening.name}: {weakening.value}")
    for number, text in enumerate(outcome.trace, 1):
        print(f"{number:3}. {text}")
    print(f"  => {outcome.violation}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for word in sys.argv[1:]:
            print_trace(Weakening[word])
    else:
        print_scenarios()
        print_weakenings()
