"""Decide what a collection deletes. Pure: no I/O, no clock, no store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ckptstore.gc.policy import Metrics, RetentionPolicy
from ckptstore.manifest.layout import parse_uid
from ckptstore.manifest.model import Abort, Attempt, Commit, Decision
from ckptstore.types import ObjectInfo, UploadInfo

OVERDUE_S_MIN: Final = 600.0  # After the deadline: clocks of different machines disagree.


class Why(Enum):
    """Why something is garbage."""

    RETENTION = "no rule keeps it"
    RETIRED = "retired before"
    ABORTED = "the attempt was aborted"
    OVERDUE = "not decided by its deadline: settled first, deleted if that is an abort"
    ORPHAN = "no attempt ever began it"
    LEFT_OPEN = "only an upload that was left open: the checkpoint is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What there is to delete of one attempt. ``attempt`` is there if it is to be settled."""

    run: str
    uid: str
    why: Why
    data: tuple[ObjectInfo, ...] = ()
    records: tuple[ObjectInfo, ...] = ()
    uploads: tuple[UploadInfo, ...] = ()
    attempt: Attempt | None = None

    @property
    def step(self) -> int:
        return parse_uid(self.uid).step

    @property
    def objects(self) -> int:
        return len(self.data) + len(self.records)

    @property
    def bytes(self) -> int:
        """Bytes of the objects; what open uploads hold is not known."""
        return sum(info.size_bytes for info in (*self.data, *self.records))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A checkpoint that stays, with every reason for that."""

    run: str
    uid: str
    bytes: int
    reasons: tuple[str, ...]

    @property
    def step(self) -> int:
        return parse_uid(self.uid).step


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAlone:
    """What is no checkpoint, and may not be touched, or not yet: of an attempt, or of nobody."""

    run: str | None = None
    uid: str | None = None
    key: str | None = None
    reason: str
    objects: int = 0
    bytes: int = 0
    uploads: int = 0


Verdict: TypeAlias = Garbage | Kept | LeftAlone


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What a collection is to delete, and why everything else stays."""

    garbage: tuple[Garbage, ...] = ()
    kept: tuple[Kept, ...] = ()
    left_alone: tuple[LeftAlone, ...] = ()

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> CollectionPlan:
        return cls(
            tuple(one for one in verdicts if isinstance(one, Garbage)),
            tuple(one for one in verdicts if isinstance(one, Kept)),
            tuple(one for one in verdicts if isinstance(one, LeftAlone)),
        )

    @property
    def objects(self) -> int:
        return sum(garbage.objects for garbage in self.garbage)

    @property
    def bytes(self) -> int:
        return sum(garbage.bytes for garbage in self.garbage)

    @property
    def uploads(self) -> int:
        return sum(len(garbage.uploads) for garbage in self.garbage)


@dataclass(frozen=True, slots=True)
class Found:
    """All that lies in the store of one attempt, but its decision."""

    data: list[ObjectInfo] = field(default_factory=list)
    records: list[ObjectInfo] = field(default_factory=list)
    uploads: list[UploadInfo] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return any(info.key.endswith("/begin.json") for info in self.records)

    def changed_unix_s(self) -> float | None:
        """Return when the newest of it was written by the store's clock, if that is known."""
        times = [info.modified_unix_s for info in (*self.data, *self.records)]
        times += [upload.begun_unix_s for upload in self.uploads]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the store says of a run.

    It was read in an order that matters: what there is of attempts first, then pins, then who
    began and who was decided. ``retired`` are decided too; their decisions were not read.
    ``protected`` says why a checkpoint must stay, whatever the policy; ``pinned`` are among them.
    """

    run: str
    found: Mapping[str, Found]
    undecided: Mapping[str, Attempt]
    decisions: Mapping[str, Decision]
    retired: frozenset[str]
    protected: Mapping[str, Sequence[str]]
    pinned: frozenset[str]
    metrics: Mapping[str, Metrics | None]
    verified: frozenset[str]
    is_known: bool  # Whether there is any record of the run at all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What, beside the facts of a run, decides what may go."""

    policy: RetentionPolicy
    now_unix_s: float
    create_only: bool
    orphans_older_than_s: float


def plan_run(facts: RunFacts, rules: Rules) -> list[Verdict]:
    """Return what to do about each attempt of a run of which there is something."""
    commits = {
        uid: facts.metrics.get(uid, {})
        for uid, decision in facts.decisions.items()
        if isinstance(decision, Commit)
    }
    reasons = rules.policy.kept(commits, facts.verified)
    for uid, more in facts.protected.items():
        if uid in commits or uid in facts.retired:
            reasons.setdefault(uid, []).extend(more)
    uids = {*facts.found, *facts.undecided, *facts.decisions, *facts.retired}
    return [
        verdict
        for uid in sorted(uids, key=parse_uid, reverse=True)
        for verdict in _verdicts(facts, rules, uid, tuple(reasons.get(uid, ())))
    ]


def _verdicts(
    facts: RunFacts, rules: Rules, uid: str, reasons: tuple[str, ...]
) -> Iterator[Verdict]:
    decision = facts.decisions.get(uid)
    if uid in facts.undecided:
        yield _undecided(facts, rules, uid, facts.undecided[uid])
    elif isinstance(decision, Commit):
        if reasons:
            yield Kept(run=facts.run, uid=uid, bytes=decision.data_bytes, reasons=reasons)
            yield from _left_open(facts, uid)
        else:
            yield _garbage(facts, uid, Why.RETENTION)
    elif uid in facts.retired:
        if reasons:
            reasons = ("retired, but still needed", *reasons)
            yield Kept(run=facts.run, uid=uid, bytes=_size_bytes(facts, uid), reasons=reasons)
        elif uid in facts.found:
            yield _garbage(facts, uid, Why.RETIRED)
    elif isinstance(decision, Abort):
        if uid in facts.found:
            yield _garbage(facts, uid, Why.ABORTED)
    else:
        yield _orphan(facts, rules, uid)


def _undecided(facts: RunFacts, rules: Rules, uid: str, attempt: Attempt) -> Verdict:
    if rules.now_unix_s < attempt.deadline_unix_s + OVERDUE_S_MIN:
        return _left_alone(facts, uid, "under way")
    if not rules.create_only:
        return _left_alone(
            facts, uid, "undecided, and only its own coordinator may decide it on this store"
        )
    return _garbage(facts, uid, Why.OVERDUE, attempt)


def _orphan(facts: RunFacts, rules: Rules, uid: str) -> Verdict:
    changed_unix_s = facts.found[uid].changed_unix_s()
    if uid in facts.pinned:
        return _left_alone(facts, uid, "no attempt began it here, but somebody copies it")
    if not facts.is_known:
        return _left_alone(facts, uid, "the run has no records at all: is it still being copied?")
    if changed_unix_s is None:
        return _left_alone(facts, uid, "no attempt began it, but its age is not known")
    if rules.now_unix_s < changed_unix_s + rules.orphans_older_than_s:
        return _left_alone(facts, uid, "no attempt began it, but it is too new to be sure")
    return _garbage(facts, uid, Why.ORPHAN)


def _left_open(facts: RunFacts, uid: str) -> Iterator[Verdict]:
    """Yield the uploads that a committed checkpoint no longer needs: all its data is there."""
    uploads = tuple(facts.found[uid].uploads) if uid in facts.found else ()
    if uploads and uid not in facts.pinned:
        yield Garbage(run=facts.run, uid=uid, why=Why.LEFT_OPEN, uploads=uploads)


def _garbage(facts: RunFacts, uid: str, why: Why, attempt: Attempt | None = None) -> Garbage:
    found = facts.found.get(uid, Found())
    return Garbage(
        run=facts.run,
        uid=uid,
        why=why,
        data=tuple(found.data),
        records=tuple(found.records),
        uploads=tuple(found.uploads),
        attempt=attempt,
    )


def _left_alone(facts: RunFacts, uid: str, reason: str) -> LeftAlone:
    found = facts.found.get(uid, Found())
    return LeftAlone(
        run=facts.run,
        uid=uid,
        reason=reason,
        objects=len(found.data) + len(found.records),
        bytes=_size_bytes(facts, uid),
        uploads=len(found.uploads),
    )


def _size_bytes(facts: RunFacts, uid: str) -> int:
    found = facts.found.get(uid, Found())
    return sum(info.size_bytes for info in (*found.data, *found.records))


def unknown_key(key: str) -> LeftAlone:
    return LeftAlone(key=key, reason="not a name that ckptstore gives", objects=1)
