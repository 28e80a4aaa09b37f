"""The scenarios: together they cover the protocol, and each takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.model.resuming import Job
from tests.model.retaining import Collector, Reader
from tests.model.saving import Coordinator, Rank
from tests.model.scenario import Scenario
from tests.model.settling import Resolver, Sweeper
from tests.model.state import (
    BEGIN,
    CLAIM,
    COMMIT,
    DECISION,
    RANKS,
    READY,
    THERE,
    VOTE,
    Claim,
    Key,
    Local,
    State,
    Uid,
    World,
    make_world,
)
from tests.model.steps import Actor
from tests.model.symmetry import in_order_of_ranks
from tests.model.weakenings import Weakening


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How many puts may go unanswered, and how many crashes are noticed by others."""

    losses: int
    crashes: int


def retry(
    bounds: Bounds,
    weakening: Weakening | None = None,
    *,
    tries: int = 2,
    put_if_absent: bool = True,
) -> Scenario:
    """A step is saved by two ranks, and saved again while the first try's ranks write on.

    ``resolve`` and the collector settle either attempt at any time.
    """
    uids = [Uid(1, 10, number) for number in range(1, tries + 1)]
    world = make_world(uids, weakening, put_if_absent=put_if_absent)
    actors: list[Actor] = []
    places: list[tuple[Uid, tuple[int, int]]] = []
    for uid in uids:
        after = len(actors) - 3 if actors else None
        name = f"of try {uid.attempt}"
        actors.append(
            Coordinator(world, f"coordinator {name}", len(actors), Local("begin"), uid, after)
        )
        places.append((uid, (len(actors), len(actors) + 1)))
        for rank in RANKS:
            actors.append(
                Rank(world, f"rank {rank} {name}", len(actors), Local("upload"), uid, rank)
            )
    actors.append(Resolver(world, "resolve", len(actors), Local("on")))
    actors.append(Sweeper(world, "gc", len(actors), Local("on")))
    scenario = _scenario(world, actors, bounds)
    if weakening is not None:  # Keys may be shared then, and a trace should name the true ranks.
        return scenario
    return Scenario(world, scenario.actors, scenario.start, in_order_of_ranks(world, places))


def retention(bounds: Bounds, weakening: Weakening | None = None) -> Scenario:
    """A save commits while two collectors retire and delete, and a reader reads."""
    old, new = Uid(1, 10), Uid(1, 20)
    world = make_world((old, new), weakening, pinners=1)
    actors: list[Actor] = [
        Coordinator(world, "coordinator", 0, Local("collect"), new),
        Reader(world, "reader", 1, Local("choose"), 0),
        Collector(world, "gc 1", 2, Local("look"), 1),
        Collector(world, "gc 2", 3, Local("look"), 1),
        Sweeper(world, "gc of undecided", 4, Local("on")),
    ]
    return _scenario(world, actors, bounds, uploaded=[new], committed=[old])


def restart(
    bounds: Bounds, weakening: Weakening | None = None, *, jobs: int = 1, zombie: bool = True
) -> Scenario:
    """Jobs start again while their predecessor may still commit, and a collector collects.

    The first of them may roll back instead of resuming from the latest checkpoint.
    """
    old, late = Uid(1, 10), Uid(1, 20)
    new = [Uid(number, 14 + job) for number in range(2, jobs + 2) for job in range(jobs)]
    world = make_world((old, late, *new), weakening, claims_max=jobs + 1, pinners=jobs)
    actors: list[Actor] = [Collector(world, "gc", 0, Local("look"), jobs)]
    for job in range(jobs):
        name = f"job {job + 2}"
        back = old if job == 0 else None
        actors.append(Job(world, name, len(actors), Local("look"), job, 14 + job, back))
    if zombie:
        deciding = Local("decide", verdict=COMMIT)
        actors.append(Coordinator(world, "job 1", len(actors), deciding, late))
    return _scenario(world, actors, bounds, uploaded=[late, *new], committed=[old])


def _scenario(
    world: World,
    actors: Sequence[Actor],
    bounds: Bounds,
    *,
    uploaded: Iterable[Uid] = (),
    committed: Sequence[Uid] = (),
) -> Scenario:
    locals_ = tuple(actor.start for actor in actors)
    state = State((None,) * len(world.slots), locals_, bounds.losses, bounds.crashes)
    state = world.write(state, Key(CLAIM, None, 1), Claim(1, "job 1", None))
    for uid in (*uploaded, *committed):
        state = world.write(state, Key(BEGIN, uid), THERE)
        for rank in RANKS:
            state = world.write(state, world.data_key(uid, rank), uid)
            state = world.write(state, Key(VOTE, uid, rank), READY)
    for uid in committed:
        state = world.write(state, Key(DECISION, uid), COMMIT)
    return Scenario(world, tuple(actors), state)


MakeScenario = Callable[[Weakening | None], Scenario]

SCENARIOS: Final[dict[str, MakeScenario]] = {
    "retry, an answer lost": partial(retry, Bounds(losses=1, crashes=0)),
    "retry, two crashes": partial(retry, Bounds(losses=0, crashes=2)),
    "retention": partial(retention, Bounds(losses=1, crashes=1)),
    "restart": partial(restart, Bounds(losses=1, crashes=1)),
    "two restarts": partial(restart, Bounds(losses=0, crashes=0), jobs=2),
    "two restarts, an answer lost": partial(
        restart, Bounds(losses=1, crashes=1), jobs=2, zombie=False
    ),
    "no put-if-absent": partial(retry, Bounds(losses=1, crashes=0), put_if_absent=False),
}

# Where each weakening shows, and as what. Elsewhere it may well be harmless.
SHOWS_AS: Final[dict[Weakening, tuple[str, str]]] = {
    Weakening.DATA_KEYS_BY_STEP: ("retry, an answer lost", "is committed, and not intact"),
    Weakening.VOTES_COUNTED: ("retry, an answer lost", "is committed, and not intact"),
    Weakening.VOTE_BEFORE_ANSWER: ("retry, an answer lost", "is committed, and not intact"),
    Weakening.VOTE_CHANGED: ("retry, an answer lost", "is committed, and not intact"),
    Weakening.DECISION_OVERWRITES: ("retry, an answer lost", "to be committed"),
    Weakening.NO_READ_BACK: ("retry, an answer lost", "to be aborted"),
    Weakening.DOUBT_IS_ABORT: ("retry, an answer lost", "to be aborted"),
    Weakening.FAILURE_WITHOUT_ABORT: ("retry, an answer lost", "to be aborted"),
    Weakening.ABORT_BY_CLOCK: ("retry, an answer lost", "to be aborted"),
    Weakening.COLLECTED_BY_AGE: ("retry, an answer lost", "is committed, and not intact"),
    Weakening.DECISIONS_DELETED: ("retry, an answer lost", "to be aborted"),
    Weakening.NO_CHECK_AFTER_PIN: ("retention", "relies on"),
    Weakening.PINS_BEFORE_RETIRED: ("retention", "relies on"),
    Weakening.RETIRED_UNANSWERED: ("retention", "is committed, and not intact"),
    Weakening.PINS_UNLISTED: ("retention", "relies on"),
    Weakening.PIN_EXPIRES: ("retention", "relies on"),
    Weakening.NO_FLOOR: ("retention", "is retired"),
    Weakening.LATEST_BY_STEP: ("restart", "committed late"),
    Weakening.LATEST_BY_DECISIONS: ("restart", "committed late"),
    Weakening.CLAIMS_BEFORE_DECISIONS: ("two restarts", "is retired"),
    Weakening.NOTHING_IF_UNLISTED: ("restart", "no latest one"),
    Weakening.CLAIM_OVERWRITES: ("two restarts", "believe to be incarnation"),
    Weakening.FLOOR_BY_STEP: ("restart", "is retired"),
    Weakening.UNPINNED_BEFORE_CLAIM: ("restart", "relies on"),
    Weakening.RETIRED_FOR_GOOD: ("restart", "is retired"),
    Weakening.NO_CLAIMS_AGAIN: ("restart", "is committed, and not intact"),
    Weakening.CLAIMS_BEFORE_PINS: ("restart", "is committed, and not intact"),
    Weakening.LATEST_VOIDS_MARKS: ("two restarts", "relies on"),
    Weakening.MARKS_UNNUMBERED: ("two restarts", "relies on"),
    Weakening.RESOLVED_ANYWAY: ("no put-if-absent", "to be committed"),
    Weakening.ABORTED_ANYWAY: ("no put-if-absent", "to be aborted"),
    Weakening.MIND_CHANGED: ("no put-if-absent", "to be aborted"),
}
