"""Which checkpoints are asked for, which claims may follow them, and what is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.manifest.model import Attempt, Commit, Incarnation, RecordRef
from ckptstore.sync.plan import Side, due_claims, plan_sync
from ckptstore.sync.selection import Selection, StepRange, parse_steps
from tests.world import RUN


def uid_of(step: int, incarnation: int = 1, nonce: str = "0000abcd") -> str:
    return f"i{incarnation:06d}-s{step:012d}-a00-{nonce}"


def commit_of(uid: str) -> Commit:
    step = int(uid[9:21])
    attempt = Attempt(
        uid=uid, run=RUN, step=step, world_size=1, begun_unix_s=0.0, deadline_unix_s=1.0
    )
    ref = RecordRef(key=f"runs/{uid}", sha256="0" * 64, size_bytes=1)  # type: ignore[arg-type]
    return Commit(
        attempt=attempt,
        records=(ref,),
        data_bytes=7,
        objects=1,
        decided_unix_s=0.0,
        decided_by="x",
    )


def claim_of(number: int, parent_uid: str | None = None, nonce: str = "n") -> Incarnation:
    return Incarnation(
        run=RUN, number=number, nonce=nonce, parent_uid=parent_uid, claimed_unix_s=0.0
    )


def side_of(*uids: str, claims: tuple[Incarnation, ...] = (claim_of(1),)) -> Side:
    return Side(
        name="S",
        decisions={uid: commit_of(uid) for uid in uids},
        retired=frozenset(),
        claims={claim.number: claim for claim in claims},
    )


# what is asked for


@pytest.mark.parametrize(
    ("selection", "steps"),
    [
        (Selection(), [5, 4, 3, 2, 1]),
        (Selection(newest=2), [5, 4]),
        (Selection(newest=9), [5, 4, 3, 2, 1]),
        (Selection(every=2), [4, 2]),
        (Selection(every=2, newest=1), [4]),
        (Selection(steps=parse_steps("1,3")), [3, 1]),
        (Selection(steps=parse_steps("3:")), [5, 4, 3]),
        (Selection(steps=parse_steps(":2")), [2, 1]),
        (Selection(steps=parse_steps("2:4"), every=2), [4, 2]),
        (Selection(steps=parse_steps("2:3, 5"), newest=2), [5, 3]),
        (Selection(steps=parse_steps("9")), []),
    ],
)
def test_steps_and_every_choose_and_newest_is_how_many(
    selection: Selection, steps: list[int]
) -> None:
    uids = [uid_of(step) for step in (3, 1, 5, 2, 4)]
    assert selection.chosen(uids) == [uid_of(step) for step in steps]


def test_newest_is_by_incarnation_first() -> None:
    uids = [uid_of(900, 1), uid_of(5, 2)]
    assert Selection(newest=1).chosen(uids) == [uid_of(5, 2)]


@pytest.mark.parametrize("text", ["", "x", "1,,2", ":", "3:1", "-1", "1:2:3", "1;2"])
def test_what_names_no_steps_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_steps(text)


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_a_range_of_steps_has_both_its_ends(one: int, other: int) -> None:
    first, last = sorted((one, other))
    (steps,) = parse_steps(f"{first}:{last}")
    assert steps == StepRange(first, last)
    assert first in steps
    assert last in steps


@pytest.mark.parametrize("options", [{"newest": 0}, {"every": 0}])
def test_a_selection_of_nothing_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Selection(**options)  # type: ignore[arg-type]


# claims


def test_a_claim_follows_a_commit_of_its_incarnation_or_a_later_one() -> None:
    claims = {1: claim_of(1, uid_of(9)), 2: claim_of(2, uid_of(8)), 3: claim_of(3, uid_of(7))}
    assert due_claims(claims, [], [uid_of(5, 2)]) == [1, 2]
    assert due_claims(claims, [1], [uid_of(5, 2)]) == [2]
    assert due_claims(claims, [], []) == []


def test_a_claim_may_follow_its_parent_alone() -> None:
    claims = {2: claim_of(2, uid_of(1)), 3: claim_of(3, uid_of(2))}
    assert due_claims(claims, [], [uid_of(1)]) == [2]


def test_a_claim_without_a_parent_may_be_first_but_hides_nothing() -> None:
    assert due_claims({1: claim_of(1)}, [], []) == [1]
    assert due_claims({2: claim_of(2)}, [], [uid_of(1)]) == []


# what is gone


def test_what_the_source_had_and_has_no_more_is_gone() -> None:
    plan = plan_sync(RUN, side_of(uid_of(2)), side_of(uid_of(1), uid_of(2)), Selection(newest=1))
    assert [commit.attempt.uid for commit in plan.gone] == [uid_of(1)]


def test_what_the_source_retired_is_gone_whoever_claimed_what() -> None:
    source = replace(side_of(uid_of(2), claims=()), retired=frozenset([uid_of(1)]))
    plan = plan_sync(RUN, source, side_of(uid_of(1), uid_of(2)), Selection())
    assert [commit.attempt.uid for commit in plan.gone] == [uid_of(1)]


def test_what_was_only_not_asked_for_is_not_gone() -> None:
    both = side_of(uid_of(1), uid_of(2))
    assert plan_sync(RUN, both, both, Selection(newest=1)).gone == ()


def test_what_a_job_of_the_targets_own_saved_is_not_gone() -> None:
    own = uid_of(9, 2)
    claims = (claim_of(1), claim_of(2, nonce="own"))
    target = side_of(uid_of(1), own, claims=claims)
    assert plan_sync(RUN, side_of(uid_of(1)), target, Selection()).gone == ()
    theirs = side_of(uid_of(1), claims=(claim_of(1), claim_of(2, nonce="theirs")))
    assert plan_sync(RUN, theirs, target, Selection()).gone == ()


def test_a_source_that_has_nothing_makes_nothing_gone() -> None:
    assert plan_sync(RUN, side_of(), side_of(uid_of(1)), Selection()).gone == ()
    retired = replace(side_of(), retired=frozenset([uid_of(1)]))
    assert plan_sync(RUN, retired, side_of(uid_of(1)), Selection()).gone == ()
