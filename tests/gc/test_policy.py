"""Retention rules, without a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.gc.policy import KEEP_ALL, KeepBest, RetentionPolicy, parse_keep_best
from ckptstore.manifest.layout import Uid, parse_uid

UIDS = st.builds(
    lambda incarnation, step, nonce: str(Uid(incarnation, step, 0, f"{nonce:07x}f")),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(0, 0xFFFFFFF),
)
METRICS = st.none() | st.dictionaries(
    st.sampled_from(["loss", "accuracy"]), st.floats(-10, 10), max_size=2
)
CHECKPOINTS = st.dictionaries(UIDS, METRICS, max_size=25)
BEST = st.builds(KeepBest, st.sampled_from(["loss", "accuracy"]), st.integers(1, 4), st.booleans())
POLICIES = st.builds(
    RetentionPolicy,
    keep_last=st.none() | st.integers(1, 5),
    keep_every=st.none() | st.integers(1, 20),
    keep_best=st.lists(BEST, max_size=2).map(tuple),
    keep_tagged=st.booleans(),
)


def uid(step: int, incarnation: int = 1, nonce: str = "c0ffee00") -> str:
    return str(Uid(incarnation, step, 0, nonce))


def steps(policy: RetentionPolicy, *checkpoints: str) -> list[int]:
    kept = policy.kept({key: {} for key in checkpoints})
    return sorted(parse_uid(one).step for one in kept)


@given(CHECKPOINTS)
def test_without_a_rule_everything_is_kept(checkpoints: dict[str, dict[str, float] | None]) -> None:
    assert KEEP_ALL.kept(checkpoints).keys() == checkpoints.keys()


@given(CHECKPOINTS, POLICIES)
def test_what_is_kept_is_there_and_says_why(
    checkpoints: dict[str, dict[str, float] | None], policy: RetentionPolicy
) -> None:
    kept = policy.kept(checkpoints)
    assert kept.keys() <= checkpoints.keys()
    assert all(kept.values())


@given(CHECKPOINTS, st.integers(1, 30))
def test_the_last_are_the_last(checkpoints: dict[str, dict[str, float] | None], count: int) -> None:
    kept = RetentionPolicy(keep_last=count).kept(checkpoints).keys()
    assert len(kept) == min(count, len(checkpoints))
    let_go = checkpoints.keys() - kept
    assert all(parse_uid(a) > parse_uid(b) for a in kept for b in let_go)


@given(CHECKPOINTS, POLICIES, POLICIES)
def test_more_rules_never_keep_less(
    checkpoints: dict[str, dict[str, float] | None], one: RetentionPolicy, two: RetentionPolicy
) -> None:
    if one.keeps_all or two.keeps_all:
        return
    both = RetentionPolicy(
        keep_last=one.keep_last,
        keep_every=two.keep_every,
        keep_best=one.keep_best + two.keep_best,
        keep_tagged=one.keep_tagged or two.keep_tagged,
    )
    part = RetentionPolicy(keep_last=one.keep_last, keep_best=one.keep_best, keep_tagged=True)
    assert part.kept(checkpoints).keys() <= both.kept(checkpoints).keys()


@given(CHECKPOINTS, BEST)
def test_the_best_are_not_worse_than_what_goes(
    checkpoints: dict[str, dict[str, float] | None], best: KeepBest
) -> None:
    kept = RetentionPolicy(keep_best=(best,)).kept(checkpoints).keys()
    values = {u: m[best.metric] for u, m in checkpoints.items() if m and best.metric in m}
    assert {u for u, m in checkpoints.items() if m is None} <= kept
    ranked = kept & values.keys()
    assert len(ranked) == min(best.count, len(values))
    sign = -1 if best.highest else 1
    for good in ranked:
        for worse in values.keys() - kept:
            assert sign * values[good] <= sign * values[worse]


def test_every_keeps_the_newest_of_each_step_that_it_divides() -> None:
    old, new = uid(100, incarnation=1), uid(100, incarnation=2)
    kept = RetentionPolicy(keep_every=50).kept({key: {} for key in [old, new, uid(120), uid(0)]})
    assert kept.keys() == {new, uid(0)}
    assert kept[new] == ["every 50 steps"]


def test_what_a_newer_incarnation_saved_is_newer_whatever_its_step() -> None:
    assert steps(RetentionPolicy(keep_last=1), uid(900, 1), uid(600, 2)) == [600]


def test_a_policy_that_keeps_the_tagged_only_keeps_nothing_by_itself() -> None:
    assert RetentionPolicy(keep_tagged=True).kept({uid(1): {}}) == {}


def test_of_equally_good_ones_the_newer_is_kept() -> None:
    policy = RetentionPolicy(keep_best=(KeepBest("loss", 1),))
    kept = policy.kept({uid(step): {"loss": 0.5} for step in (1, 2, 3)})
    assert kept.keys() == {uid(3)}
    assert kept[uid(3)] == ["number 1 by loss (0.5)"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("loss:3", KeepBest("loss", 3)),
        ("loss:3:min", KeepBest("loss", 3)),
        ("eval/acc:1:max", KeepBest("eval/acc", 1, highest=True)),
        ("a:b:2", KeepBest("a:b", 2)),
    ],
)
def test_a_rule_for_the_best_is_read(text: str, rule: KeepBest) -> None:
    assert parse_keep_best(text) == rule
    assert parse_keep_best(str(rule)) == rule


@pytest.mark.parametrize("text", ["", "loss", "loss:", ":3", "loss:x", "loss:3:best", "loss:0"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_keep_best(text)


@pytest.mark.parametrize("name", ["keep_last", "keep_every"])
@pytest.mark.parametrize("count", [0, -1])
def test_to_keep_nothing_is_no_rule(name: str, count: int) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least 1"):
        RetentionPolicy(**{name: count})  # type: ignore[arg-type]
