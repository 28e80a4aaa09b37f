"""Retention that counts only what a verify found intact."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.gc.policy import RetentionPolicy
from ckptstore.manifest.layout import Uid
from tests.cli.conftest import Cli

UIDS = [str(Uid(1, step, 0, "00c0ffee")) for step in range(8)]


@given(st.sets(st.sampled_from(UIDS)), st.sets(st.sampled_from(UIDS)), st.integers(1, 4))
def test_the_last_verified_ones_and_all_that_is_newer_are_kept(
    there: set[str], verified: set[str], keep_last: int
) -> None:
    policy = RetentionPolicy(keep_last=keep_last, only_verified=True)
    kept = policy.kept({uid: {} for uid in there}, verified)
    counted = sorted(there & verified, reverse=True)
    newer = {uid for uid in there if not counted or uid > counted[0]}
    assert set(kept) == {*counted[:keep_last], *newer}


def test_without_a_rule_everything_is_kept_as_ever() -> None:
    policy = RetentionPolicy(only_verified=True)
    assert policy.keeps_all
    assert set(policy.kept({uid: {} for uid in UIDS})) == set(UIDS)


def test_a_full_verify_is_noted_and_gc_counts_on_it(
    cli: Cli, run: str, store: Path, source: Path
) -> None:
    for step in (300, 400, 500):
        assert cli("push", source, f"{store}/llama@{step}").code == 0
    for step in (100, 300):
        assert cli("verify", f"{run}@{step}").code == 0
    assert cli("verify", f"{run}@400", "--quick").code in (0, 3)  # Proves nothing of the bytes.
    plan = cli("gc", run, "--keep-last", 1, "--only-verified", "--json")
    actions = {item["step"]: item["action"] for item in plan.of_type("item")}
    assert actions == {500: "keep", 400: "keep", 300: "keep", 200: "delete", 100: "delete"}


@pytest.mark.usefixtures("stored_as_it_is")
def test_a_damaged_checkpoint_is_never_noted(cli: Cli, run: str, store: Path) -> None:
    victim = next(path for path in store.rglob("*.file") if path.stat().st_size > 2)
    victim.write_bytes(victim.read_bytes()[::-1])
    cli("verify", run, "--all")
    noted = {path.parent.name for path in (store / "runs/llama/verified").rglob("*.json")}
    assert len(noted) == 1
    assert victim.parent.name not in noted
