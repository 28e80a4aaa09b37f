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


@pytest.mark.usefixtures("stored_as_it_is")
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


def damage_largest(store: Path, step: int) -> None:
    path = max(
        (p for p in store.rglob("*.file") if f"s{step:012d}" in str(p)),
        key=lambda p: p.stat().st_size,
    )
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("stored_as_it_is")
def test_an_older_intact_one_takes_the_place_of_a_damaged_one_and_that_is_said(
    cli: Cli, run: str, store: Path, tmp_path: Path
) -> None:
    damage_largest(store, 200)
    uid = cli("show", run, "--json").summary["uid"]
    ended = cli("restore", run, tmp_path / "out", "--fallback", "--json")
    assert ended.code == 0
    assert (ended.summary["step"], ended.summary["fallback_from"]) == (100, [uid])
    assert "warning: " in ended.err
    assert "falling back to" in ended.err
    assert cli("restore", run, tmp_path / "no").code == 4


def test_a_damaged_decision_has_an_older_one_too(
    cli: Cli, run: str, store: Path, tmp_path: Path
) -> None:
    min((store / "runs" / "llama" / "decisions").iterdir()).write_text("torn")
    ended = cli("restore", run, tmp_path / "out", "--fallback", "--json")
    assert (ended.code, ended.summary["step"]) == (0, 100)


@pytest.mark.usefixtures("stored_as_it_is")
def test_if_all_are_damaged_there_is_nothing_to_fall_back_to(
    cli: Cli, run: str, store: Path, tmp_path: Path
) -> None:
    for step in (100, 200):
        damage_largest(store, step)
    assert cli("restore", run, tmp_path / "out", "--fallback").code == 4
    assert not (tmp_path / "out").exists()


def test_what_is_left_out_does_not_come_back(cli: Cli, run: str, tmp_path: Path) -> None:
    ended = cli("restore", run, tmp_path / "out", "--not", "sub/*", "--not", "empty")
    assert ended.code == 0
    assert sorted(files_in(tmp_path / "out")) == ["weights.bin"]
    nothing = cli("restore", run, tmp_path / "none", "--not", "*")
    assert nothing.code == 2
    assert "nothing of" in nothing.err


def test_only_weights_come_back_and_the_rest_is_not_read(
    cli: Cli, source: Path, store: Path, tmp_path: Path
) -> None:
    (source / "optimizer.pt").write_bytes(b"x" * 5000)
    assert cli("push", source, f"{store}/llama@1").code == 0
    ended = cli("restore", f"{store}/llama", tmp_path / "out", "--weights-only", "--json")
    assert "optimizer.pt" not in files_in(tmp_path / "out")
    assert ended.summary["bytes_verified"] == 256_002


def test_a_directory_is_replaced_when_that_is_asked_for(
    cli: Cli, run: str, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    for flags in (["--verify", "reread"], ["--sparse"]):
        assert cli("restore", run, tmp_path / "out", "--overwrite", "always", *flags).code == 0
        assert files_in(tmp_path / "out") == files_in(source)


def test_a_directory_that_is_the_same_already_is_left_as_it_is(
    cli: Cli, run: str, source: Path, tmp_path: Path
) -> None:
    words = ("restore", run, tmp_path / "out", "--overwrite", "if-changed", "--json")
    assert cli(*words).summary["bytes_verified"] == 256_002
    before = (tmp_path / "out" / "weights.bin").stat().st_ino
    again = cli(*words).summary
    assert (again["bytes_verified"], again["bytes_resumed"]) == (0, 256_002)
    assert (tmp_path / "out" / "weights.bin").stat().st_ino == before
    (tmp_path / "out" / "more").touch()
    assert cli(*words).summary["bytes_verified"] == 256_002
    assert files_in(tmp_path / "out") == files_in(source)


def test_files_cannot_be_exported_as_tensors(cli: Cli, run: str, tmp_path: Path) -> None:
    ended = cli("export", run, tmp_path / "out", "--max-shard-size", "5G", "--dtype", "bf16")
    assert ended.code == 2
    assert "use --format native" in ended.err
