"""``ckptstore push``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_a_push_says_what_it_made(cli: Cli, source: Path, store: Path) -> None:
    ended = cli("push", source, f"{store}/llama@100")
    assert ended.code == 0
    assert ended.out.startswith("pushed 3 files, 250.0 KiB in ")
    assert f"{store}/llama@100 (i000001-s000000000100-a00-" in ended.out
    assert ended.err == ""


def test_a_push_tells_programs_the_same(cli: Cli, source: Path, store: Path) -> None:
    ended = cli("push", source, f"{store}/llama@100", "--json")
    uid = ended.summary.pop("uid")
    assert uid.startswith("i000001-s000000000100-a00-")
    summary = {key: value for key, value in ended.summary.items() if key != "uid"}
    assert summary == {
        "type": "summary",
        "exit_code": 0,
        "run": "llama",
        "step": 100,
        "rank": 0,
        "ranks": 1,
        "files": 3,
        "bytes": 256_002,
        "latest": True,
    }
    assert ended.lines[0]["verb"] == "push"


def test_a_trailing_slash_means_nothing(cli: Cli, source: Path, store: Path) -> None:
    assert cli("push", f"{source}/", f"{store}/llama@100/").code == 0
    assert cli("ls", f"{store}/llama/").code == cli("ls", f"{store}/").code == 0


def test_the_same_step_twice_is_a_conflict_unless_again(cli: Cli, run: str, source: Path) -> None:
    ended = cli("push", source, f"{run}@200")
    assert ended.code == 10
    assert "step 200 is committed already" in ended.err
    assert cli("push", source, f"{run}@200", "--again").code == 0
    assert len(cli("ls", run, "--json").of_type("checkpoint")) == 3


def test_nodes_are_told_what_they_need(cli: Cli, source: Path, store: Path) -> None:
    ended = cli("push", source, f"{store}/llama@1", "--rank", 1, "--world-size", 2)
    assert ended.code == 2
    assert "give all of them the same --job ID" in ended.err


def test_a_node_whose_rank_0_does_not_come_gives_up_at_its_deadline(
    cli: Cli, source: Path, store: Path
) -> None:
    node = ("--rank", 1, "--world-size", 2, "--job", "j", "--deadline", "2s")
    ended = cli("push", source, f"{store}/llama@1", *node)
    assert ended.code == 8
    assert "waiting for rank 0 of job 'j': not done within 2 s" in ended.err


@pytest.mark.parametrize("selector", ["", "@latest", "@i000001-s000000000001-a00-0000abcd"])
def test_a_push_needs_a_step(cli: Cli, source: Path, store: Path, selector: str) -> None:
    ended = cli("push", source, f"{store}/llama{selector}")
    assert ended.code == 2
    assert "say which step this is" in ended.err
    assert not store.exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda d: None, "there is no such directory to push"),
        (lambda d: d.mkdir(), "holds no file"),
        (lambda d: d.touch(), "is a file; push the directory it lies in"),
    ],
)
def test_what_is_no_directory_is_refused_before_the_store_is_touched(
    cli: Cli, tmp_path: Path, store: Path, make: object, said: str
) -> None:
    assert callable(make)
    make(tmp_path / "thing")
    ended = cli("push", tmp_path / "thing", f"{store}/llama@1")
    assert ended.code == 2
    assert said in ended.err
    assert not store.exists()
