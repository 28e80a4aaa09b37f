"""``ckptstore tag``: a name given once, which keeps its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_a_tagged_checkpoint_is_kept_until_the_tag_is_deleted(
    cli: Cli, run: str, source: Path
) -> None:
    assert cli("push", source, f"{run}@300").code == 0
    ended = cli("tag", f"{run}@100", "paper")
    assert ended.code == 0
    assert ended.out.startswith("llama@100 (i000001-s000000000100-")
    assert ended.out.endswith("is tagged paper\n")
    assert cli("gc", run, "--keep-last", 1, "--yes").code == 0
    assert cli("verify", f"{run}@100").code == 0
    deleted = cli("tag", run, "paper", "--delete", "--json")
    assert (deleted.summary["tag"], deleted.summary["uid"]) == ("paper", None)
    assert cli("gc", run, "--keep-last", 1, "--yes").code == 0
    assert cli("verify", f"{run}@100").code == 5


def test_a_tag_does_not_move_by_itself(cli: Cli, run: str) -> None:
    assert cli("tag", run, "best", "--json").summary["uid"].startswith("i000002-")
    assert cli("tag", f"{run}@200", "best").code == 0
    ended = cli("tag", f"{run}@100", "best")
    assert ended.code == 10
    assert "delete the tag first" in ended.err
    assert cli("tag", run, "best", "--delete").code == 0
    assert cli("tag", f"{run}@100", "best").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{run}", "no spaces"), 2, "not a tag"),
        (("{run}@100", "x", "--delete"), 2, "leave the @ away"),
        (("{run}@101", "x"), 5, "committed steps near it: 100, 200"),
    ],
)
def test_what_cannot_be_tagged_is_said(
    cli: Cli, run: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ended = cli("tag", *(argument.format(run=run) for argument in arguments))
    assert ended.code == code
    assert message in ended.err
