"""``ckptstore restore``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.files import files_in, names_in


def only_object(store: Path, suffix: str) -> Path:
    (found,) = [path for path in store.rglob("*.file") if path.name.endswith(suffix)]
    return found


def test_what_was_pushed_comes_back(cli: Cli, run: str, source: Path, tmp_path: Path) -> None:
    ended = cli("restore", run, tmp_path / "out")
    assert ended.code == 0
    assert f"to {tmp_path}/out: 3 files, 250.0 KiB in " in ended.out
    assert files_in(tmp_path / "out") == files_in(source)


def test_a_restore_tells_programs_the_same(cli: Cli, run: str, tmp_path: Path) -> None:
    summary = cli("restore", f"{run}@100", tmp_path / "out", "--json").summary
    assert summary["uid"].startswith("i000001-s000000000100")
    assert (summary["step"], summary["bytes"], summary["files"]) == (100, 256_002, 3)
    assert summary["bytes_verified"] == 256_002


def test_a_checkpoint_is_found_by_step_uid_and_nonce(cli: Cli, run: str, tmp_path: Path) -> None:
    uid = cli("show", f"{run}@100", "--json").summary["uid"]
    for number, selector in enumerate(["100", uid, "latest"]):
        ended = cli("restore", f"{run}@{selector}", tmp_path / str(number), "--json")
        assert ended.summary["step"] == (200 if selector == "latest" else 100)


def test_only_what_matches_comes_back(cli: Cli, run: str, tmp_path: Path) -> None:
    ended = cli("restore", run, tmp_path / "out", "--only", "sub/*", "--only", "empty", "--json")
    assert sorted(files_in(tmp_path / "out")) == ["empty", "sub/config.json"]
    assert ended.summary["bytes_verified"] == 2


def test_a_pattern_that_matches_nothing_is_an_error(cli: Cli, run: str, tmp_path: Path) -> None:
    ended = cli("restore", run, tmp_path / "out", "--only", "model.*")
    assert ended.code == 2
    assert "--only 'model.*' matches nothing" in ended.err
    assert "empty, sub/config.json, weights.bin" in ended.err
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_not_empty_is_a_conflict(cli: Cli, run: str, source: Path) -> None:
    before = files_in(source)
    ended = cli("restore", run, source)
    assert ended.code == 10
    assert "is not empty; restore into a new directory, or remove that one first" in ended.err
    assert files_in(source) == before


def test_a_step_that_is_not_there_names_those_that_are(cli: Cli, run: str, tmp_path: Path) -> None:
    ended = cli("restore", f"{run}@150", tmp_path / "out")
    assert ended.code == 5
    assert "no committed checkpoint @150; committed steps near it: 100, 200" in ended.err


def test_damage_is_an_integrity_failure_that_names_the_place(
    cli: Cli, run: str, store: Path, tmp_path: Path
) -> None:
    damaged = next(path for path in store.rglob("*.file") if path.stat().st_size > 1000)
    data = bytearray(damaged.read_bytes())
    data[7] ^= 1
    damaged.write_bytes(data)
    codes = [cli("restore", f"{run}@{s}", tmp_path / f"out-{s}").code for s in (100, 200)]
    assert sorted(codes) == [0, 4]
    bad = (100, 200)[codes.index(4)]
    ended = cli("restore", f"{run}@{bad}", tmp_path / "again", "--json")
    (error,) = ended.of_type("error")
    assert (error["code"], error["retryable"]) == ("integrity", False)
    assert damaged.relative_to(store).as_posix() in error["message"]
    assert "block 0 at byte 0: expected " in error["message"]
    assert "again" not in names_in(tmp_path)


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_files_are_not_tensors(cli: Cli, run: str, tmp_path: Path, form: str) -> None:
    ended = cli("restore", run, tmp_path / "out", "--format", form)
    assert ended.code == 2
    assert "use --format native" in ended.err


def test_an_unknown_format_is_a_usage_error_that_names_the_known_ones(
    cli: Cli, run: str, tmp_path: Path
) -> None:
    ended = cli("restore", run, tmp_path / "out", "--format", "zip")
    assert ended.code == 2
    assert "'native', 'safetensors', 'torch'" in ended.err
    assert "hint: ckptstore restore --help" in ended.err
