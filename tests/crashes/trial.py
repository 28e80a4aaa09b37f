"""One trial: a job saves, something befalls it, and what was promised must be true."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Final, TypeVar

from ckptstore.location import StoreLocation
from ckptstore.manifest.layout import parse_uid
from ckptstore.manifest.model import Attempt
from tests.crashes.child import in_child
from tests.crashes.inspection import (
    Expected,
    Findings,
    collect_garbage,
    inspect,
    listing,
    resolve,
    uploads_after_collection,
)
from tests.crashes.job import AFTER_DEADLINE_S_MAX, Course, Job, faults_of
from tests.crashes.plan import WORLD_SIZE, Kind, TrialPlan
from tests.crashes.rank import ABORTED, COMMITTED, IN_DOUBT, Begin

T = TypeVar("T")

FIRST_STEP, FAULTED_STEP, LAST_STEP = 10, 20, 30
UNFAULTED_S_MAX: Final = 30.0
DEADLINE_S_MIN: Final = 2.0
INSPECTION_S_MAX: Final = 60.0


@dataclass
class Report:
    """What happened in a trial, and what must not have."""

    plan: TrialPlan
    ending: str = ""
    hit_in_save: int = 0
    in_doubt: int = 0
    zombie: str = ""
    uploads_of_killed: int = 0
    deadline_s: float = 0.0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "type": "trial",
            "number": plan.number,
            "seed": plan.seed,
            "kind": plan.kind.value,
            "victims": {str(victim.rank): str(victim.moment) for victim in plan.victims},
            "restarts": plan.restarts,
            "suspends": plan.suspends,
            "hit_in_save": self.hit_in_save,
            "ending": self.ending,
            "in_doubt": self.in_doubt,
            "zombie": self.zombie,
            "uploads_of_killed": self.uploads_of_killed,
            "deadline_s": round(self.deadline_s, 2),
            "seconds": round(self.seconds, 2),
            "violations": self.violations,
        }


def run_trial(plan: TrialPlan, location: StoreLocation) -> Report:
    """Run a trial in this process, which must have no threads."""
    began_s = time.monotonic()
    descriptors = os.listdir("/proc/self/fd")
    report = Report(plan)
    _Trial(plan, location, report).tell()
    if len(os.listdir("/proc/self/fd")) != len(descriptors):
        report.violations.append("the launcher leaks descriptors")
    report.seconds = time.monotonic() - began_s
    return report


class _Trial:
    def __init__(self, plan: TrialPlan, location: StoreLocation, report: Report) -> None:
        self.plan = plan
        self.location = location
        self.report = report
        self.endings: dict[str, str | None] = {}
        self.killed: frozenset[tuple[str, int]] = frozenset()
        self.collected: frozenset[str] = frozenset()

    def tell(self) -> None:
        with Job(self.location) as job:
            first = self.begin(job, FIRST_STEP)
            unfaulted = self.save_unfaulted(job, first)
            # Others use this machine as well: what takes long takes long for everybody.
            self.report.deadline_s = max(DEADLINE_S_MIN, 3 * unfaulted.slowest_s)
            faulted = self.begin(job, FAULTED_STEP, parse_uid(first.uid).incarnation)
            course = self.save_faulted(job, faulted, unfaulted)
            self.ended(course, faulted)
            with Job(self.location) as again:
                self.go_on(job, again, faulted, course)
                self.left(again)
            self.left(job)

    def go_on(self, job: Job, again: Job, faulted: Attempt, course: Course) -> None:
        """Retry by fresh processes; then wake the zombie, if there is one, and look around."""
        incarnation = None if self.plan.restarts else parse_uid(faulted.uid).incarnation
        last = self.begin(again, FAULTED_STEP, incarnation, attempt_number=1)
        self.save_unfaulted(again, last)
        if self.plan.kind is Kind.STOP_ONE:
            self.wake(job, faulted, course)
            last = self.begin(again, LAST_STEP, parse_uid(last.uid).incarnation)
            self.save_unfaulted(again, last)
        wait([], max(faulted.deadline_unix_s - time.time(), 0.0))
        findings = self.inspected(last)
        self.report.violations += findings.violations
        self.report.uploads_of_killed = findings.uploads_of_killed
        self.report.ending = findings.endings.get(faulted.uid, "undecided")
        if findings.uploads_of_killed and self.in_child(uploads_after_collection):
            self.broken("garbage collection leaves open uploads of those who were killed")

    def begin(
        self, job: Job, step: int, incarnation: int | None = None, attempt_number: int = 0
    ) -> Attempt:
        attempt = job.begin(
            Begin(
                run=self.plan.run,
                step=step,
                incarnation=incarnation,
                attempt_number=attempt_number,
                nonce=f"{self.plan.number:06x}{step:02d}",
                deadline_s=self.report.deadline_s or UNFAULTED_S_MAX,
            )
        )
        self.endings[attempt.uid] = None
        return attempt

    def save_unfaulted(self, job: Job, attempt: Attempt) -> Course:
        course = job.save(attempt, UNFAULTED_S_MAX)
        for rank in range(WORLD_SIZE):
            answer = course.answers.get(rank)
            if answer is None or answer.ending != COMMITTED:
                self.broken(f"the unfaulted save of step {attempt.step}: rank {rank}: {answer}")
        self.endings[attempt.uid] = COMMITTED
        return course

    def save_faulted(self, job: Job, attempt: Attempt, unfaulted: Course) -> Course:
        faults = faults_of(self.plan, unfaulted)
        course = job.save(attempt, self.report.deadline_s, faults)
        for rank in sorted(faults.victims):
            if not job.hit(rank):
                self.broken(f"rank {rank} was not hit at all")
        if self.plan.kind is not Kind.STOP_ONE:
            self.killed = frozenset((attempt.uid, rank) for rank in faults.victims)
        self.report.hit_in_save = len(course.hit_in_save)
        for rank in set(range(WORLD_SIZE)) - faults.victims:
            self.survived(course, rank, faults.victims)
        return course

    def survived(self, course: Course, rank: int, victims: frozenset[int]) -> None:
        """Check what a survivor was told, and when."""
        answer = course.answers.get(rank)
        if answer is None:
            self.broken(f"rank {rank} was alive and did not answer")
            return
        if course.ended_s[rank] > self.report.deadline_s + AFTER_DEADLINE_S_MAX:
            self.broken(f"rank {rank} answered after {course.ended_s[rank]:.2f} s: {answer}")
        if answer.ending == IN_DOUBT and "not done within" in answer.text:
            self.report.in_doubt += 1  # Explained: this machine is too busy for that deadline.
        elif answer.ending not in (COMMITTED, ABORTED):
            self.broken(f"rank {rank} was told nothing, by a store that is well: {answer}")
        reason = answer.text.partition(" was aborted: ")[2]
        named = {int(number) for number in re.findall(r"\brank (\d+)", reason)}
        if answer.ending == ABORTED and not named & victims:
            self.broken(f"rank {rank} was not told of any of {sorted(victims)}: {reason}")

    def ended(self, course: Course, attempt: Attempt) -> None:
        """Note the one answer that all gave who could give one."""
        endings = {answer.ending for answer in course.answers.values()} - {IN_DOUBT}
        if len(endings) > 1:
            self.broken(f"the ranks were told different things: {course.answers}")
        if self.plan.kind is Kind.KILL_JOB:
            early = self.in_child(resolve)
            endings |= {ending for ending in early.values() if ending}
        self.endings[attempt.uid] = min(endings, default=None)

    def wake(self, job: Job, faulted: Attempt, course: Course) -> None:
        """Collect garbage and let the stopped rank go on: it ends, and changes nothing."""
        (victim,) = self.plan.victims
        self.collected = self.in_child(collect_garbage)
        before = self.in_child(listing)
        answered = course.answers.get(victim.rank)
        patience_s = self.report.deadline_s + AFTER_DEADLINE_S_MAX
        zombie = job.resume(victim.rank, 0.0 if answered else patience_s) or answered
        self.report.zombie = zombie.ending if zombie else "silent"
        if self.endings[faulted.uid] is None and self.report.zombie in (COMMITTED, ABORTED):
            self.endings[faulted.uid] = self.report.zombie  # The first to be told anything.
        if self.report.zombie not in (self.endings[faulted.uid], IN_DOUBT):
            self.broken(f"the zombie ended otherwise than the others: {zombie}")
        after = self.in_child(listing)
        self.report.violations += _changes(before, after, faulted.uid)

    def inspected(self, last: Attempt) -> Findings:
        expected = Expected(self.plan.run, self.endings, last.uid, self.killed, self.collected)
        return in_child(inspect, self.location, expected, timeout_s=INSPECTION_S_MAX)

    def in_child(self, look: Callable[[StoreLocation, str], T]) -> T:
        return in_child(look, self.location, self.plan.run, timeout_s=INSPECTION_S_MAX)

    def left(self, job: Job) -> None:
        for rank, left in job.finish().items():
            if left is None or any((left.descriptors, left.tasks, left.threads)):
                self.broken(f"rank {rank} did not end clean: {left}")

    def broken(self, what: str) -> None:
        self.report.violations.append(what)


def _changes(
    before: Mapping[str, tuple[int, str | None]],
    after: Mapping[str, tuple[int, str | None]],
    own_uid: str,
) -> list[str]:
    """Return what changed of what there was, and what is new and not of the zombie's attempt."""
    changed = [key for key, what in before.items() if after.get(key) != what]
    strange = [key for key in after.keys() - before.keys() if own_uid not in key.split("/")]
    return [f"the zombie changed {key}" for key in sorted(changed + strange)]
