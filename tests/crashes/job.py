"""A job of real processes, as its launcher sees it: it orders, strikes, and waits a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from ckptstore.location import StoreLocation
from ckptstore.manifest.model import Attempt
from tests.crashes.child import Child, message, wait_for
from tests.crashes.plan import WORLD_SIZE, At, Kind, TrialPlan
from tests.crashes.rank import Answer, Begin, Crash, Finish, Leftovers, Save, serve_rank

BEGIN_S_MAX: Final = 30.0
FINISH_S_MAX: Final = 10.0
HIT_S_MAX: Final = 5.0  # A signal takes effect a little later than it was sent.
AFTER_DEADLINE_S_MAX: Final = 2.0


@dataclass(frozen=True)
class Strike:
    """A signal that the launcher sends at a time; to every rank, if ``rank`` is ``None``."""

    after_s: float
    rank: int | None
    number: signal.Signals


@dataclass(frozen=True)
class Faults:
    """What is to befall a save: who is hit, by the launcher or by its own hand."""

    victims: frozenset[int] = frozenset()
    strikes: tuple[Strike, ...] = ()
    crashes: Mapping[int, Crash] = field(default_factory=dict)


NO_FAULTS: Final = Faults()


@dataclass
class Course:
    """How a save went: what each rank answered and when, and whom the fault hit before that."""

    answers: dict[int, Answer] = field(default_factory=dict)
    ended_s: dict[int, float] = field(default_factory=dict)
    hit_in_save: set[int] = field(default_factory=set)

    @property
    def slowest_s(self) -> float:
        return max(self.ended_s.values())


def faults_of(plan: TrialPlan, unfaulted: Course) -> Faults:
    """Return the faults of a trial, measured by a save that met none."""
    number = signal.SIGSTOP if plan.kind is Kind.STOP_ONE else signal.SIGKILL
    whole_job = plan.kind is Kind.KILL_JOB
    strikes: list[Strike] = []
    crashes: dict[int, Crash] = {}
    for victim in plan.victims:
        if victim.moment.at is At.TIME:
            after_s = victim.moment.fraction * unfaulted.slowest_s
            strikes.append(Strike(after_s, None if whole_job else victim.rank, number))
        else:
            requests = unfaulted.answers[victim.rank].requests
            crashes[victim.rank] = Crash(victim.moment, number, requests, whole_job, plan.suspends)
    victims = range(WORLD_SIZE) if whole_job else [victim.rank for victim in plan.victims]
    return Faults(frozenset(victims), tuple(sorted(strikes, key=lambda s: s.after_s)), crashes)


class Job:
    """``WORLD_SIZE`` ranks in a process group of their own."""

    def __init__(self, location: StoreLocation) -> None:
        self._ranks: list[Child] = []
        self._group = 0
        for rank in range(WORLD_SIZE):
            child = Child(serve_rank, rank, location, self._group)
            self._ranks.append(child)
            assert child.process.pid is not None
            os.setpgid(child.process.pid, self._group)  # Whoever comes first: parent or child.
            self._group = self._group or child.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._ranks:
            child.close()

    def begin(self, order: Begin) -> Attempt:
        coordinator = self._ranks[0]
        coordinator.pipe.send(order)
        wait_for([coordinator], BEGIN_S_MAX)
        attempt = message(coordinator)
        assert isinstance(attempt, Attempt), f"rank 0 did not begin: {attempt}"
        return attempt

    def save(self, attempt: Attempt, deadline_s: float, faults: Faults = NO_FAULTS) -> Course:
        """Let all ranks save, and strike. Return when all that live answered, or time is up."""
        course = Course()
        began_s = time.monotonic()
        until_s = began_s + deadline_s + 2 * AFTER_DEADLINE_S_MAX
        for rank, child in enumerate(self._ranks):
            child.pipe.send(Save(attempt, deadline_s, faults.crashes.get(rank)))
        strikes = list(faults.strikes)
        waiting = set(range(WORLD_SIZE))
        while waiting and time.monotonic() < until_s:
            due_s = began_s + strikes[0].after_s if strikes else until_s
            said = wait_for([self._ranks[rank] for rank in waiting], due_s - time.monotonic())
            for rank in [rank for rank in waiting if self._ranks[rank] in said]:
                self._hear(course, rank, time.monotonic() - began_s)
                waiting.discard(rank)
            while strikes and time.monotonic() >= began_s + strikes[0].after_s:
                self._strike(strikes.pop(0))
            if waiting and waiting <= faults.victims and all(map(self.stopped, waiting)):
                break
        self._strike_late(course, faults)
        return course

    def _hear(self, course: Course, rank: int, at_s: float) -> None:
        answer = message(self._ranks[rank])
        if isinstance(answer, Answer):
            course.answers[rank] = answer
            course.ended_s[rank] = at_s

    def _strike(self, strike: Strike) -> None:
        for rank, child in enumerate(self._ranks):
            if strike.rank in (None, rank) and child.process.exitcode is None:
                child.signal(strike.number)

    def _strike_late(self, course: Course, faults: Faults) -> None:
        """Note who was hit before it had answered, and hit the others now: a victim is a victim."""
        for rank in faults.victims:
            if rank not in course.answers:
                self._hear(course, rank, 0.0)  # It may have answered and been hit after that.
            if rank not in course.answers:
                course.hit_in_save.add(rank)
        numbers = {strike.number for strike in faults.strikes}
        numbers |= {crash.number for crash in faults.crashes.values()}
        for rank in faults.victims & course.answers.keys():
            self._strike(Strike(0.0, rank, *numbers))

    def hit(self, rank: int) -> bool:
        """Return whether the rank was killed, or stands still: the fault is proved."""
        until_s = time.monotonic() + HIT_S_MAX
        while not self.stopped(rank) and time.monotonic() < until_s:
            if (code := self._ranks[rank].ended(HIT_S_MAX / 100)) is not None:
                return code == -signal.SIGKILL
        return self.stopped(rank)

    def stopped(self, rank: int) -> bool:
        pid = self._ranks[rank].process.pid
        assert pid is not None
        flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, pid, flags) is not None
        except ChildProcessError:
            return False

    def resume(self, rank: int, timeout_s: float) -> Answer | None:
        """Let a stopped rank go on, and return how its save ends."""
        child = self._ranks[rank]
        child.signal(signal.SIGCONT)
        wait_for([child], timeout_s)
        answer = message(child)
        return answer if isinstance(answer, Answer) else None

    def finish(self) -> dict[int, Leftovers | None]:
        """End the ranks that live; return what each has left, ``None`` if it does not say."""
        living = {rank: child for rank, child in enumerate(self._ranks) if child.ended(0.0) is None}
        for child in living.values():
            child.pipe.send(Finish())
        leftovers: dict[int, Leftovers | None] = {}
        until_s = time.monotonic() + FINISH_S_MAX
        for rank, child in living.items():
            wait_for([child], until_s - time.monotonic())
            left = message(child)
            leftovers[rank] = left if isinstance(left, Leftovers) else None
        return leftovers
