"""What befalls a trial, drawn from a seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

WORLD_SIZE: Final = 4


class Kind(Enum):
    """What is done to a job that saves, and to whom."""

    KILL_ONE = "kill one"  # SIGKILL of a rank.
    KILL_TWO = "kill two"
    STOP_ONE = "stop one"  # SIGSTOP; SIGCONT when a retry is committed and garbage collected.
    KILL_JOB = "kill job"  # SIGKILL of all ranks at one moment.


DECK: Final = (Kind.KILL_ONE, Kind.KILL_TWO, Kind.STOP_ONE, Kind.STOP_ONE, Kind.KILL_JOB)


class At(Enum):
    """What the moment of a fault is measured by.

    By requests it is exact, and the same each time; by time it may also be in the middle of one.
    """

    TIME = "time"
    REQUEST = "request"
    VOTE = "vote"
    DECISION = "decision"


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fault happens: ``fraction`` of the way through the save, by time or by requests.

    At a request, vote or decision it happens just before it is sent, or, if ``landed``, just
    after it was answered.
    """

    at: At
    fraction: float
    landed: bool

    def __str__(self) -> str:
        if self.at is At.TIME:
            return f"{self.fraction:.2f} of the time"
        share = f"{self.fraction:.2f} of the requests" if self.at is At.REQUEST else self.at.value
        return f"{'after' if self.landed else 'before'} {share}"


@dataclass(frozen=True, slots=True)
class Victim:
    rank: int
    moment: Moment


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One trial. ``restarts`` says whether the retry is a new start of the job.

    ``suspends`` stops a rank together with its clock, as if its machine was suspended: to it,
    no time has passed when it goes on, and it does all that it was about to do.
    """

    seed: int
    number: int
    kind: Kind
    victims: tuple[Victim, ...]
    restarts: bool
    suspends: bool

    @property
    def run(self) -> str:
        return f"trial-{self.seed}-{self.number}"


def plan_trial(seed: int, number: int) -> TrialPlan:
    """Return trial ``number`` of a seed. Every ``len(DECK)`` trials have each kind among them."""
    deck = list(DECK)
    round_number, place = divmod(number, len(deck))
    random.Random(f"{seed}/{round_number}").shuffle(deck)
    rng = random.Random(f"{seed}/{round_number}/{place}")
    kind = deck[place]
    ranks = rng.sample(range(WORLD_SIZE), 2 if kind is Kind.KILL_TWO else 1)
    return TrialPlan(
        seed=seed,
        number=number,
        kind=kind,
        victims=tuple(Victim(rank, _moment(rng, rank)) for rank in ranks),
        restarts=rng.random() < 0.5,
        suspends=rng.random() < 0.6,
    )


def _moment(rng: random.Random, rank: int) -> Moment:
    deciding = (At.DECISION,) * 2 if rank == 0 else (At.VOTE,)
    at = rng.choice((At.TIME, At.TIME, At.REQUEST, At.REQUEST, At.VOTE, *deciding))
    return Moment(at, fraction=0.9 * rng.random(), landed=rng.random() < 0.5)
