"""Options stand after the verb, in the environment or in a file, in this order; and are shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Ended
from tests.cli.files import names_in


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    path = tmp_path / "home" / "ckptstore" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def setting(ended: Ended, name: str) -> tuple[str, str]:
    (found,) = [line for line in ended.of_type("setting") if line["name"] == name]
    return found["value"], found["origin"]


def test_a_file_a_variable_and_a_flag_win_over_each_other_in_this_order(
    cli: Cli, run: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('concurrency = 3\n[restore]\nonly = ["empty"]\n')
    assert cli("restore", run, tmp_path / "file").code == 0
    assert names_in(tmp_path / "file") == ["empty"]
    monkeypatch.setenv("CKPTSTORE_ONLY", "weights.bin")
    assert cli("restore", run, tmp_path / "variable").code == 0
    assert names_in(tmp_path / "variable") == ["weights.bin"]
    assert cli("restore", run, tmp_path / "flag", "--only", "sub/*").code == 0
    assert names_in(tmp_path / "flag") == ["sub"]


def test_another_file_can_be_named(cli: Cli, run: str, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("json = true")
    assert cli("ls", run, "--config", tmp_path / "other.toml").summary["checkpoints"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("concurency = 3", "there is no option --concurency"),
        ("[restoer]\nonly = []", "there is no verb 'restoer'"),
        ("[ls]\nonly = []", "ls has no option --only"),
        ("= nothing", "is not TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_configuration_error(
    cli: Cli, run: str, config: Path, text: str, said: str
) -> None:
    config.write_text(text)
    ended = cli("ls", run)
    assert ended.code == 6
    assert said in ended.err
    assert cli("ls", run, "--json").of_type("error")[0]["code"] == "configuration"


def test_a_named_file_that_is_not_there_is_an_error(cli: Cli, run: str, tmp_path: Path) -> None:
    assert cli("ls", run, "--config", tmp_path / "none").code == 6


def test_every_setting_is_shown_with_its_origin(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('deadline = "5m"')
    monkeypatch.setenv("CKPTSTORE_ENDPOINT_URL", "https://me:pw@host/")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    ended = cli("config", "show", "verify", "--json")
    assert setting(ended, "--deadline") == ("5m", str(config))
    assert setting(ended, "--endpoint-url") == ("https://host/", "CKPTSTORE_ENDPOINT_URL")
    assert setting(ended, "--quick") == ("False", "default")
    assert "very secret" not in ended.out
    assert "pw" not in ended.out
    assert cli("config", "show", "nothing").code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(cli: Cli, shell: str) -> None:
    ended = cli("completion", shell)
    assert ended.code == 0
    assert "_CKPTSTORE_COMPLETE" in ended.out


def test_a_verb_is_completed() -> None:
    asked = {
        "_CKPTSTORE_COMPLETE": "complete_bash",
        "COMP_WORDS": "ckptstore res",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "ckptstore.cli.main"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["restore", "resolve"]


def test_the_manual_has_every_verb_and_option(cli: Cli) -> None:
    page = cli("man").out
    assert page.startswith(".TH CKPTSTORE 1")
    assert ".SH RESTORE" in page
    assert ".B \\-\\-max\\-shard\\-size" in page
    assert not [line for line in page.splitlines() if line.startswith("'")]
