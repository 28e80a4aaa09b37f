"""``ckptstore sync``: what it says, what it leaves alone, and what it ends with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def files_of(directory: Path) -> dict[str, bytes]:
    """Return every file under a directory; there need not be one."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.fixture
def collected(cli: Cli, run: str, source: Path, store: Path, other: Path) -> str:
    """A run of which 300 was added, all of it synced, and 100 then let go of."""
    assert cli("push", source, f"{run}@300").code == 0
    assert cli("sync", store, other).code == 0
    assert "1 attempt" in cli("gc", store, "--keep-last", 1, "--yes").out
    return run


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "other"


@pytest.mark.usefixtures("stored_as_it_is")
def test_the_result_is_one_line(cli: Cli, run: str, store: Path, other: Path) -> None:
    ended = cli("sync", store, other)
    assert ended.code == 0
    assert re.fullmatch(
        r"synced 2 checkpoints \(2 new, 0 already there\), 500\.0 KiB in \d+\.\ds, "
        r"500\.0 KiB verified, 0 failed\n",
        ended.out,
    )
    assert ended.err == ""
    again = cli("sync", store, other)
    assert re.match(
        r"synced 2 checkpoints \(0 new, 2 already there\), 0 B in .*, 0 failed\n", again.out
    )


def test_what_arrives_verifies_and_restores(
    cli: Cli, run: str, store: Path, other: Path, source: Path, tmp_path: Path
) -> None:
    assert cli("sync", run, f"{other}/llama").code == 0
    assert cli("verify", other, "--all").code == 0
    assert cli("restore", f"{other}/llama", tmp_path / "back").code == 0
    assert files_of(tmp_path / "back") == files_of(source)
    first, second = (
        {  # All but what each store says of itself, and of its own verifications.
            name: data
            for name, data in files_of(root).items()
            if name != "ckptstore.json" and "/verified/" not in name
        }
        for root in (store, other)
    )
    assert first == second


@pytest.mark.usefixtures("stored_as_it_is")
def test_json_says_what_became_of_each(cli: Cli, run: str, store: Path, other: Path) -> None:
    assert cli("sync", store, other, "--newest", 1, "--json").summary["new"] == 1
    ended = cli("sync", store, other, "--json")
    said = {line["step"]: (line["action"], line["reason"]) for line in ended.of_type("op")}
    assert said == {100: ("copy", ""), 200: ("skip", "already there")}
    assert {k: v for k, v in ended.summary.items() if k != "elapsed_s"} == {
        "type": "summary",
        "exit_code": 0,
        "checkpoints": 2,
        "new": 1,
        "already_there": 1,
        "let_go": 0,
        "not_tried": 0,
        "failed": 0,
        "bytes": 256_002,
        "bytes_verified": 256_002,
        "deleted": 0,
    }


@pytest.mark.usefixtures("stored_as_it_is")
def test_a_dry_run_says_what_and_how_much_and_writes_nothing(
    cli: Cli, run: str, store: Path, other: Path
) -> None:
    before = files_of(store)
    ended = cli("sync", store, other, "--dry-run", "--json")
    assert [(line["action"], line["step"]) for line in ended.of_type("op")] == [
        ("copy", 200),
        ("copy", 100),
    ]
    assert (ended.summary["checkpoints"], ended.summary["bytes"]) == (2, 512_004)
    assert not other.exists()
    text = cli("sync", store, other, "-n").out
    assert text.endswith("would copy 2 checkpoints, 500.0 KiB in 6 objects\n")
    assert files_of(store) == before


def test_a_dry_run_says_what_would_be_deleted_and_deletes_nothing(
    cli: Cli, collected: str, store: Path, other: Path
) -> None:
    before = files_of(store), files_of(other)
    ended = cli("sync", store, other, "-n", "--delete")
    assert ended.out.endswith(
        "would copy 0 checkpoints, 0 B in 0 objects, and delete 1 checkpoint\n"
    )
    assert (files_of(store), files_of(other)) == before
    refused = cli("sync", store, other, "-n", "--delete", "--max-delete", 0)
    assert refused.code == 10
    assert (files_of(store), files_of(other)) == before


def test_options_choose(cli: Cli, run: str, source: Path, store: Path, other: Path) -> None:
    cli("push", source, f"{run}@250")
    for words, steps in (
        (["--steps", "100:200", "--newest", 1], [200]),
        (["--every", 100], [200, 100]),
        (["--steps", "250,100"], [250, 100]),
    ):
        ended = cli("sync", store, other, "-n", "--json", *words)
        assert [line["step"] for line in ended.of_type("op")] == steps
    ended = cli("sync", store, other, "--steps", "7")
    assert (ended.code, other.exists()) == (5, False)
    assert "asked for" in ended.err


def test_what_is_gone_is_deleted_only_when_asked_for(
    cli: Cli, collected: str, store: Path, other: Path
) -> None:
    assert cli("sync", store, other, "--json").summary["deleted"] == 0
    refused = cli("sync", store, other, "--delete", "--max-delete", 0)
    assert refused.code == 10
    assert cli("verify", other, "--all", "--json").summary["checkpoints"] == 3
    ended = cli("sync", store, other, "--delete")
    assert ended.out.endswith(", 0 failed, 1 deleted\n")
    assert cli("verify", other, "--all", "--json").summary["checkpoints"] == 2
    assert cli("sync", store, other, "--delete").code == 0


def test_damage_ends_with_4_and_nothing_is_deleted(
    cli: Cli, collected: str, store: Path, other: Path, source: Path
) -> None:
    cli("push", source, f"{collected}@400")
    key = next(
        path for path in store.glob("data/*/llama/*-s000000000400-*/*") if path.stat().st_size
    )
    key.chmod(0o644)
    key.write_bytes(b"!" * key.stat().st_size)
    ended = cli("sync", store, other, "--delete", "--json")
    assert (ended.code, ended.summary["failed"], ended.summary["deleted"]) == (4, 1, 0)
    (error,) = ended.of_type("error")
    assert error["code"] == "integrity"
    assert key.name in error["message"]
    listed = cli("ls", other, "--json").of_type("checkpoint")
    assert [line["step"] for line in listed if line["state"] == "committed"] == [300, 200, 100]


def test_stores_that_went_different_ways_end_with_10(
    cli: Cli, run: str, source: Path, store: Path, other: Path
) -> None:
    cli("sync", store, other, "--newest", 1)
    for place in (store, other):
        cli("push", source, f"{place}/llama@300")
    before = files_of(other)
    for words in ([], ["--dry-run"]):
        ended = cli("sync", store, other, *words)
        assert ended.code == 10
        assert str(store) in ended.err
        assert str(other) in ended.err
    assert files_of(other) == before


@pytest.mark.parametrize(
    ("source_url", "target_url", "code", "says"),
    [
        ("{store}", "{store}/", 2, "the same store"),
        ("{store}/llama", "{store}/llama", 2, "the same store"),
        ("{store}/llama", "{other}", 2, "{other}/llama"),
        ("{store}/llama", "{other}/gpt", 2, "keeps its name"),
        ("{store}/llama@100", "{other}/llama", 2, "--steps"),
        ("{store}/nothing", "{other}/nothing", 5, "asked for"),
        ("{other}", "{store}", 5, "not a"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    cli: Cli,
    run: str,
    store: Path,
    other: Path,
    source_url: str,
    target_url: str,
    code: int,
    says: str,
) -> None:
    places = {"store": store, "other": other}
    ended = cli("sync", source_url.format(**places), target_url.format(**places))
    assert ended.code == code, ended.err
    assert says.format(**places) in ended.err
    assert not other.exists()


def test_a_store_does_not_go_into_a_run(cli: Cli, run: str, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "copy")
    ended = cli("sync", store, tmp_path / "copy" / "llama")
    assert ended.code == 2
    assert "is a run" in ended.err


def test_a_plain_copy_of_a_store_is_up_to_date(
    cli: Cli, run: str, store: Path, tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "copy")
    summary = cli("sync", store, tmp_path / "copy", "--json").summary
    assert (summary["new"], summary["already_there"]) == (0, 2)


def test_each_side_has_its_own_profile(
    cli: Cli, run: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    ended = cli("sync", store, "s3://bucket/x", "--dst-profile", "elsewhere", "--json")
    assert ended.code == 6
    assert "elsewhere" in json.dumps(ended.of_type("error"))
