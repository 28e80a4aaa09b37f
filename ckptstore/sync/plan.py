"""Decide what a sync of a run copies and deletes. Pure: no I/O, no clock, no store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ckptstore.errors import CkptStoreError, ConflictError, IntegrityError
from ckptstore.manifest.layout import parse_uid
from ckptstore.manifest.model import Commit, Decision, Incarnation
from ckptstore.sync.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one of the two stores says of a run; ``name`` is what to call it.

    ``retired`` are decided too; their decisions were not read. A decision that cannot be
    believed is the error that says so.
    """

    name: str
    decisions: Mapping[str, Decision | IntegrityError]
    retired: frozenset[str]
    claims: Mapping[int, Incarnation]

    def commits(self) -> dict[str, Commit]:
        """Return the checkpoints that may be read, by uid."""
        return {uid: one for uid, one in self.decisions.items() if isinstance(one, Commit)}


class Action(Enum):
    """What becomes of a checkpoint that was asked for."""

    COPY = "copy"
    THERE = "already there"
    LET_GO = "let go of there"
    BROKEN = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A checkpoint that was asked for. What is to be copied has its ``commit``."""

    uid: str
    action: Action
    commit: Commit | None = None
    trouble: IntegrityError | None = None

    @property
    def step(self) -> int:
        return parse_uid(self.uid).step

    @property
    def bytes(self) -> int:
        return self.commit.data_bytes if self.commit else 0

    @property
    def objects(self) -> int:
        return self.commit.objects if self.commit else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to do about a run: items the newest first, and checkpoints that are gone at the source.

    With ``trouble``, nothing of the run may be touched.
    """

    run: str
    items: tuple[Item, ...] = ()
    gone: tuple[Commit, ...] = ()
    claims: Mapping[int, Incarnation]
    target_claims: frozenset[int] = frozenset()
    target_commits: frozenset[str] = frozenset()
    target_retired: frozenset[str] = frozenset()
    trouble: CkptStoreError | None = None

    def troubles(self) -> list[CkptStoreError]:
        """Return what keeps the run, or checkpoints of it, from being copied."""
        if self.trouble:
            return [self.trouble]
        return [item.trouble for item in self.items if item.trouble]

    def of(self, action: Action) -> list[Item]:
        return [item for item in self.items if item.action is action]


def plan_sync(run: str, source: Side, target: Side, selection: Selection) -> RunPlan:
    """Return what makes the target hold what is asked for of the source's run."""
    known = [*source.commits(), *_broken(source)]
    items = tuple(_item(uid, source, target) for uid in selection.chosen(known))
    return RunPlan(
        run=run,
        items=items,
        gone=tuple(_gone(source, target)),
        claims=source.claims,
        target_claims=frozenset(target.claims),
        target_commits=frozenset(target.commits()),
        target_retired=target.retired,
        trouble=next(_clashes(run, items, source, target), None),
    )


def due_claims(
    claims: Mapping[int, Incarnation], there: Collection[int], commits: Collection[str]
) -> list[int]:
    """Return which claims the target lacks and may have, the oldest first.

    ``commits`` are the target's by now. A claim is what makes the latest: the newest commit of
    the newest claimed incarnation, else what that incarnation went on from. So it may be there
    once either of these is; before, a reader would be told that the latest is missing.
    """
    newest = max((parse_uid(uid).incarnation for uid in commits), default=0)
    return [
        number
        for number, claim in sorted(claims.items())
        if number not in there
        and (
            number <= newest
            or claim.parent_uid in commits
            or (newest, claim.parent_uid) == (0, None)
        )
    ]


def same_checkpoint(one: Decision | IntegrityError | None, other: Commit) -> bool:
    """Tell whether a decision commits to the same bytes, whoever wrote it and when.

    ``resolve`` at the target may have found a copy that lacked nothing but its decision.
    """
    return isinstance(one, Commit) and (one.attempt, one.records) == (other.attempt, other.records)


def _broken(source: Side) -> list[str]:
    return [uid for uid, one in source.decisions.items() if isinstance(one, IntegrityError)]


def _item(uid: str, source: Side, target: Side) -> Item:
    commit = source.decisions[uid]
    if not isinstance(commit, Commit):
        assert isinstance(commit, IntegrityError)
        return Item(uid=uid, action=Action.BROKEN, trouble=commit)
    if uid in target.retired:
        return Item(uid=uid, action=Action.LET_GO, commit=commit)
    if same_checkpoint(target.decisions.get(uid), commit):
        return Item(uid=uid, action=Action.THERE, commit=commit)
    return Item(uid=uid, action=Action.COPY, commit=commit)


def _clashes(
    run: str, items: Sequence[Item], source: Side, target: Side
) -> Iterator[CkptStoreError]:
    for item in items:
        if item.action is not Action.COPY:
            continue
        number = parse_uid(item.uid).incarnation
        claims = source.claims.get(number), target.claims.get(number)
        if all(claims) and claims[0] != claims[1]:
            yield ConflictError(
                f"run {run}: incarnation {number} was claimed by one job in {source.name} and by "
                f"another in {target.name}; the two went different ways, so nothing of the run "
                "was copied: sync into another store"
            )
        standing = target.decisions.get(item.uid)
        if isinstance(standing, IntegrityError):
            yield standing
        elif standing is not None:
            yield ConflictError(
                f"run {run}: checkpoint {item.uid} was decided in another way in {target.name} "
                f"than in {source.name}; nothing of the run was copied: sync into another store"
            )


def _gone(source: Side, target: Side) -> Iterator[Commit]:
    """Yield what the target has and the source had.

    The source had what it retired, and what is of one of its own jobs: the claim is the same.
    What some other job wrote into the target is not the source's to delete.
    """
    if not source.commits():
        return
    for uid, commit in target.commits().items():
        number = parse_uid(uid).incarnation
        claim = source.claims.get(number)
        own = uid in source.retired or (claim is not None and target.claims.get(number) == claim)
        if own and uid not in source.decisions:
            yield commit
