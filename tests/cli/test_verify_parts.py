"""``ckptstore verify`` of a part, of several, and of a restored directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_verify import flip, newest_objects


@pytest.fixture
def many(cli: Cli, store: Path, tmp_path: Path) -> str:
    """A run with a checkpoint of ten files of 1000 bytes."""
    for number in range(10):
        (tmp_path / "many").mkdir(exist_ok=True)
        (tmp_path / "many" / f"f{number}").write_bytes(bytes([number]) * 1000)
    assert cli("push", tmp_path / "many", f"{store}/llama@1").code == 0
    return f"{store}/llama"


def test_rolling_samples_go_on_where_the_last_one_ended(cli: Cli, many: str, store: Path) -> None:
    flip(newest_objects(store)[3])
    codes = []
    for _ in range(5):
        ended = cli("verify", many, "--sample", "20%", "--json")
        codes.append(ended.code)
        (checkpoint,) = ended.of_type("checkpoint")
        assert checkpoint["bytes_total"] == 10_000
        if ended.code:
            break
        assert checkpoint["bytes_verified"] == 2000
    assert codes[-1] == 4  # Once round, and the one bad file was met.


def test_every_turn_is_another_part(cli: Cli, many: str, store: Path) -> None:
    flip(newest_objects(store)[3])
    codes = [cli("verify", many, "--sample", f"{n}/5").code for n in range(1, 6)]
    assert sorted(codes) == [0, 0, 0, 0, 4]


def test_a_sample_is_noted_and_is_no_full_verification(cli: Cli, many: str, store: Path) -> None:
    assert cli("verify", many, "--sample", "1K").code == 0
    assert len(list((store / "runs/llama/sampled").rglob("*.json"))) == 1
    assert not (store / "runs/llama/verified").exists()
    assert cli("verify", many, "--sample", "100%").code == 0
    assert len(list((store / "runs/llama/verified").rglob("*.json"))) == 1


def test_what_there_was_no_time_for_is_unknown(
    cli: Cli, many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptstore.restore.sample.READ_TOGETHER", 1)
    ended = cli("verify", many, "--max-duration", "0.000001s", "--json")
    assert ended.code == 3
    assert (ended.summary["ok"], ended.summary["bytes_unknown"]) == (False, 10_000)
    assert "unknown: llama@1" in cli("verify", many, "--max-duration", "0.000001s").out
    assert cli("verify", many, "--max-duration", "1h").code == 0


def test_the_newest_few_are_verified(cli: Cli, run: str, source: Path) -> None:
    assert cli("push", source, f"{run}@300").code == 0
    ended = cli("verify", run, "--newest", 2, "--json")
    assert [line["step"] for line in ended.of_type("checkpoint")] == [300, 200]


@pytest.mark.parametrize(
    "options",
    [["--quick", "--sample", "5%"], ["--all", "--newest", "2"], ["--sample", "some"]],
)
def test_options_that_contradict_each_other_are_refused(
    cli: Cli, run: str, options: list[str]
) -> None:
    assert cli("verify", run, *options).code == 2


def test_a_directory_is_compared_file_by_file_without_reading_the_store(
    cli: Cli, run: str, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert cli("restore", run, out).code == 0
    for path in store.rglob("*.file"):
        path.unlink()
    assert cli("verify", run, "--against", out).code == 0
    (out / "mine").touch()
    assert cli("verify", run, "--against", out).code == 0
    flip(out / "weights.bin", 1000)
    (out / "empty").unlink()
    ended = cli("verify", run, "--against", out)
    assert ended.code == 4
    assert ended.out.splitlines()[:4] == [
        "- empty",
        "= sub/config.json",
        "* weights.bin (block 0 at byte 0)",
        "+ mine",
    ]
