"""Run a scenario over many seeds, and say which one failed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias
from unittest import mock

from ckptstore.testing.virtual_time import run_virtual

SEEDS_VARIABLE: Final = "CKPTSTORE_SOAK_SEEDS"

Scenario: TypeAlias = Callable[[random.Random], Coroutine[Any, Any, None]]


def with_seeds(seeds_default: int) -> Callable[[Scenario], Callable[[], None]]:
    """Make a test of a scenario: run it in virtual time, once for every seed.

    ``CKPTSTORE_SOAK_SEEDS`` says how many seeds, or which: ``1000``, or ``17..17`` to repeat a
    failure. The seed that failed is a note on the error. The jitter and the nonces of the code
    under test are seeded as well.
    """

    def decorate(scenario: Scenario) -> Callable[[], None]:
        def test() -> None:
            for seed in seeds(seeds_default):
                run_seed(scenario, seed)

        test.__name__ = test.__qualname__ = _name(scenario)
        return test

    return decorate


def seeds(seeds_default: int) -> range:
    """Return the seeds to run, as the environment or else the test says."""
    first, dots, last = os.environ.get(SEEDS_VARIABLE, str(seeds_default)).partition("..")
    return range(int(first), int(last) + 1) if dots else range(int(first))


def run_seed(scenario: Scenario, seed: int) -> None:
    """Run the scenario once. The same seed gives the same run."""
    state = random.getstate()
    random.seed(seed)
    try:
        with mock.patch("secrets.token_hex", _token_hex):
            run_virtual(scenario(random.Random(seed)))
    except BaseException as error:
        again = f"{SEEDS_VARIABLE}={seed}..{seed} pytest -k {_name(scenario)}"
        error.add_note(f"seed {seed}; again: {again}")
        raise
    finally:
        random.setstate(state)


def _token_hex(size_bytes: int = 16) -> str:
    return random.randbytes(size_bytes).hex()


def _name(scenario: Scenario) -> str:
    return str(getattr(scenario, "__name__", "scenario"))
