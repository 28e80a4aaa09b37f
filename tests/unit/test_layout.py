"""Where things live, and which names are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.manifest.layout import (
    INCARNATION_MAX,
    STEP_MAX,
    ShardKind,
    Uid,
    begin_key,
    check_run,
    check_step,
    data_key,
    decision_key,
    incarnation_key,
    parse_uid,
    rank_record_key,
    uid_of_decision,
)
from ckptstore.types import parse_key

UIDS = st.builds(
    Uid,
    incarnation=st.integers(1, INCARNATION_MAX),
    step=st.integers(0, STEP_MAX),
    attempt=st.integers(0, 99),
    nonce=st.text("0123456789abcdef", min_size=8, max_size=8),
)
HOSTILE = ["", "/abs", "a/../../x", "a//b", "a/", "./a", "..", "..\\x", "a\\b", "a\0b", "a\nb"]


@given(UIDS)
def test_a_uid_reads_back(uid: Uid) -> None:
    assert parse_uid(str(uid)) == uid
    assert uid_of_decision(decision_key("run", str(uid))) == str(uid)


@given(UIDS, UIDS)
def test_the_newest_incarnation_and_step_sort_first(one: Uid, other: Uid) -> None:
    newer = (one.incarnation, one.step) > (other.incarnation, other.step)
    if (one.incarnation, one.step) != (other.incarnation, other.step):
        assert (decision_key("r", str(one)) < decision_key("r", str(other))) == newer
    if one.incarnation != other.incarnation:
        newer = one.incarnation > other.incarnation
        keys = incarnation_key("r", one.incarnation), incarnation_key("r", other.incarnation)
        assert (keys[0] < keys[1]) == newer


@given(UIDS, st.integers(0, 20_000), st.integers(0, 20_000), st.integers(1, 256))
def test_every_key_of_an_attempt_holds_its_uid(
    uid: Uid, rank: int, index: int, fan_out: int
) -> None:
    text = str(uid)
    key = data_key("run", text, rank, index, ShardKind.TENSORS, fan_out=fan_out)
    for one in (key, rank_record_key("run", text, rank), begin_key("run", text)):
        assert text in one.split("/")
        assert parse_key(one) == one
    assert int(key.split("/")[1], 16) < fan_out


def test_data_spreads_over_all_directories_and_stays_where_it_is() -> None:
    uid = str(Uid(1, 1000, 0, "00c0ffee"))
    keys = [data_key("run", uid, r, 0, ShardKind.TENSORS, fan_out=64) for r in range(1000)]
    assert len({key.split("/")[1] for key in keys}) == 64
    assert keys[7] == f"data/25/run/{uid}/000007-0000.safetensors"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="key"):
        parse_key(text)


def test_a_name_with_dots_inside_is_a_fine_key() -> None:
    assert parse_key("a/file..txt") == "a/file..txt"


@pytest.mark.parametrize("run", [*HOSTILE, ".hidden", "-x", "a b", "a@1", "x" * 101, "a.", "é"])
def test_hostile_run_names_are_refused(run: str) -> None:
    with pytest.raises(ValueError, match="not a run name"):
        check_run(run)


@pytest.mark.parametrize("step", [-1, STEP_MAX + 1])
def test_a_step_that_does_not_fit_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match="step must be"):
        check_step(step)


@pytest.mark.parametrize(
    "text", ["", "latest", "i1-s1-a1-x", "i000001-s000000000001-a00-00C0FFEE", "x" * 40]
)
def test_what_is_no_uid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="uid"):
        parse_uid(text)
