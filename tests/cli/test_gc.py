"""``ckptstore gc``: says what it would do, does it when told to, and ends with the right code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from ckptstore.backends.local import LocalStore
from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.commit.committer import Committer
from ckptstore.commit.pins import pinned
from ckptstore.commit.tags import put_tag
from ckptstore.manifest.layout import ShardKind, data_key
from ckptstore.manifest.model import Attempt
from ckptstore.settings import CommitSettings
from tests.cli.conftest import Cli, Ended

T = TypeVar("T")

CLOCK = SystemClock()


async def leave(store: LocalStore, *, step: int, deadline_s: float, abort: bool = False) -> Attempt:
    """Leave an attempt behind, with an object and an upload that is still open."""
    claim = await claim_incarnation(store, run="llama", parent_uid=None, facts={}, clock=CLOCK)
    attempt = await begin_attempt(
        store,
        run="llama",
        step=step,
        incarnation=claim.number,
        attempt_number=0,
        world_size=1,
        deadline=Deadline.after(deadline_s),
        clock=CLOCK,
    )
    await store.put(data_key("llama", attempt.uid, 0, 0, ShardKind.FILE, fan_out=1), b"x" * 1000)
    await store.multipart_create(data_key("llama", attempt.uid, 0, 1, ShardKind.FILE, fan_out=1))
    if abort:
        settings = CommitSettings()
        committer = Committer(store, attempt, settings, role="x", create_only=True, clock=CLOCK)
        await committer.decide(committer.abort("a test"))
    return attempt


@pytest.fixture
def leftovers(run: str, store: Path) -> dict[str, Attempt]:
    async def leave_them() -> dict[str, Attempt]:
        local = LocalStore(store)
        left = {
            "aborted": await leave(local, step=300, deadline_s=600, abort=True),
            "under way": await leave(local, step=400, deadline_s=600),
        }
        await local.aclose()
        return left

    return asyncio.run(leave_them())


def files(store: Path) -> set[Path]:
    return {path for path in store.rglob("*") if path.is_file()}


def actions(ended: Ended) -> list[tuple[str, int | None, str]]:
    return [(line["action"], line["step"], line["why"]) for line in ended.of_type("item")]


def test_a_dry_run_says_what_and_why_and_deletes_nothing(
    cli: Cli, run: str, store: Path, leftovers: dict[str, Attempt]
) -> None:
    before = files(store)
    ended = cli("gc", run, "--keep-last", 1, "--json")
    assert ended.code == 0
    assert actions(ended) == [
        ("delete", 300, "the attempt was aborted"),
        ("delete", 100, "no rule keeps it"),
        ("keep", 200, "number 1 of the last 1; the latest"),
        ("leave", None, "under way"),
    ]
    summary = ended.summary
    assert summary["dry_run"] is True
    assert (summary["attempts"], summary["uploads"]) == (2, 1)
    assert (summary["kept"], summary["left_alone"]) == (1, 1)
    assert files(store) == before


def test_people_read_a_table_and_are_told_how_to_go_on(
    cli: Cli, run: str, leftovers: dict[str, Attempt]
) -> None:
    ended = cli("gc", run, "--keep-last", 1)
    head, *rows, last = [line.split() for line in ended.out.splitlines()]
    assert head == ["ACTION", "RUN", "STEP", "SIZE", "OBJECTS", "UPLOADS", "UID", "WHY"]
    assert [row[:3] for row in rows] == [
        ["delete", "llama", "300"],
        ["delete", "llama", "100"],
        ["keep", "llama", "200"],
        ["leave", "llama", "-"],
    ]
    assert " ".join(last).startswith("would delete ")
    assert " ".join(last).endswith("1 open upload of 2 attempts; run again with --yes to do so")


def test_with_yes_it_is_gone_and_the_rest_verifies(
    cli: Cli, run: str, store: Path, leftovers: dict[str, Attempt]
) -> None:
    planned = cli("gc", run, "--keep-last", 1, "--json").summary
    ended = cli("gc", run, "--keep-last", 1, "--yes", "--json")
    assert ended.code == 0
    for total in ("attempts", "objects", "bytes", "uploads"):
        assert ended.summary[total] == planned[total]
    assert (ended.summary["spared"], ended.summary["failed"]) == (0, 0)
    assert [row[0] for row in actions(ended)] == ["deleted", "deleted", "keep", "leave"]
    names = "\n".join(map(str, files(store)))
    assert leftovers["under way"].uid in names
    assert names.count(leftovers["aborted"].uid) == 1  # Its decision.
    assert cli("verify", run, "--all").code == 0
    missing = cli("restore", f"{run}@100", store.parent / "out")
    assert missing.code == 5
    again = cli("gc", run, "--keep-last", 1, "--yes")
    assert "deleted 0 B in 0 objects and 0 open uploads of 0 attempts" in again.out


def test_without_a_rule_no_checkpoint_is_touched(
    cli: Cli, run: str, leftovers: dict[str, Attempt]
) -> None:
    ended = cli("gc", run, "--yes", "--json")
    assert [row[:2] for row in actions(ended)] == [
        ("deleted", 300),
        ("keep", 200),
        ("keep", 100),
        ("leave", None),
    ]
    nothing = cli("gc", run)
    assert nothing.out.splitlines()[-1] == "there is nothing to delete"


def test_a_whole_store_is_collected_run_by_run(
    cli: Cli, run: str, store: Path, source: Path
) -> None:
    for step in (1, 2, 3):
        assert cli("push", source, f"{store}/mamba@{step}").code == 0
    ended = cli("gc", store, "--keep-last", 1, "--yes", "--json")
    rows = {(line["action"], line["run"], line["step"]) for line in ended.of_type("item")}
    assert rows == {
        ("keep", "llama", 100),  # What the second push went on from.
        ("keep", "llama", 200),
        ("deleted", "mamba", 1),
        ("keep", "mamba", 2),
        ("keep", "mamba", 3),
    }


def test_every_rule_can_be_given(cli: Cli, run: str) -> None:
    ended = cli(
        "gc", run, "--keep-last", 1, "--keep-every", 50, "--keep-best", "loss:1",
        "--keep-best", "accuracy:2:max", "--keep-tag", "--older-than", "1h", "--json",
    )  # fmt: skip
    why = {step: why for action, step, why in actions(ended) if action == "keep"}
    assert why[100] == "every 50 steps; the newest incarnation went on from it"
    assert why[200].startswith("number 1 of the last 1; every 50 steps")


def test_tagged_and_pinned_checkpoints_are_kept_and_named(
    cli: Cli, run: str, store: Path, source: Path
) -> None:
    assert cli("push", source, f"{store}/llama@300").code == 0
    uids = {line["step"]: line["uid"] for line in cli("ls", run, "--json").of_type("checkpoint")}

    async def tag_and_pin() -> None:
        local = LocalStore(store)
        await put_tag(local, "llama", "paper", uids[100], clock=CLOCK)
        pin = pinned(local, "llama", uids[200], clock=CLOCK, holder="x", deadline=Deadline.after(9))
        await pin.__aenter__()  # And is killed.
        await local.aclose()

    asyncio.run(tag_and_pin())
    ended = cli("gc", run, "--keep-tag", "--yes", "--json")
    why = {step: why for action, step, why in actions(ended)}
    assert why[100] == "tagged paper"
    assert "pinned by somebody" in why[200]
    assert "the latest" in why[300]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-last", "0"], "--keep-last"),
        (["--keep-every", "-1"], "--keep-every"),
        (["--keep-best", "loss"], "METRIC:N"),
        (["--older-than", "soon"], "no length of time"),
    ],
)
def test_a_rule_that_makes_no_sense_is_a_usage_error(
    cli: Cli, run: str, store: Path, options: list[str], message: str
) -> None:
    before = files(store)
    ended = cli("gc", run, "--yes", *options)
    assert ended.code == 2
    assert message in ended.err
    assert files(store) == before


def test_one_checkpoint_is_not_what_gc_takes(cli: Cli, run: str) -> None:
    ended = cli("gc", f"{run}@100", "--yes")
    assert ended.code == 2
    assert "leave the @ away" in ended.err


def test_a_run_that_is_not_there_is_not_found(cli: Cli, run: str, store: Path) -> None:
    assert cli("gc", f"{store}/lama", "--keep-last", 1, "--yes").code == 5
    assert cli("gc", store / "nowhere" / "llama", "--yes").code == 5


def test_a_deletion_that_fails_is_told_and_decides_the_exit_code(
    cli: Cli, run: str, leftovers: dict[str, Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = LocalStore.delete
    refusing(monkeypatch, lambda key: key.startswith("data/") and "-s000000000100-" in key)
    ended = cli("gc", run, "--keep-last", 1, "--yes", "--json")
    assert ended.code == 6
    assert [row[:2] for row in actions(ended)][:3] == [
        ("deleted", 300),
        ("failed", 100),
        ("keep", 200),
    ]
    assert (ended.summary["failed"], ended.summary["attempts"]) == (1, 1)
    monkeypatch.setattr(LocalStore, "delete", delete)
    again = cli("gc", run, "--keep-last", 1, "--yes", "--json")
    assert again.code == 0
    assert [row[:2] for row in actions(again)][:2] == [("deleted", 100), ("keep", 200)]


def refusing(monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], bool]) -> None:
    from ckptstore.errors import PermissionDeniedError
    from ckptstore.types import Key

    delete = LocalStore.delete

    async def refuse(self: LocalStore, key: Key) -> None:
        if refused(key):
            raise PermissionDeniedError("object lock", verb="delete", key=key)
        await delete(self, key)

    monkeypatch.setattr(LocalStore, "delete", refuse)
