"""``ckptstore pin``: a checkpoint is kept for a while, and ``ls`` and ``show`` say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_a_pinned_checkpoint_is_kept_until_it_is_released(cli: Cli, run: str, source: Path) -> None:
    assert cli("push", source, f"{run}@300").code == 0
    ended = cli("pin", f"{run}@100", "--for", "7d", "--json")
    assert ended.code == 0
    assert cli("gc", run, "--keep-last", 1, "--yes").code == 0
    assert cli("verify", f"{run}@100").code == 0
    assert cli("pin", f"{run}@100", "--release", "--json").summary["released"] == 1
    assert cli("gc", run, "--keep-last", 1, "--yes").code == 0
    assert cli("verify", f"{run}@100").code == 5


def test_pins_are_listed_with_their_holder_and_end(cli: Cli, run: str) -> None:
    assert "nothing of llama is pinned" in cli("pin", run, "--list").out
    made = cli("pin", f"{run}@100", "--for", "1h", "--json").summary
    (pin,) = cli("pin", run, "--list", "--json").of_type("pin")
    assert (pin["uid"], pin["expires_at"]) == (made["uid"], made["expires_at"])
    assert pin["holder"].startswith("kept by ")
    assert made["uid"] in cli("pin", run, "--list").out


def test_what_is_kept_is_shown(cli: Cli, run: str) -> None:
    assert cli("tag", f"{run}@100", "paper").code == 0
    assert cli("pin", f"{run}@100", "--for", "1h").code == 0
    shown = {line["step"]: line for line in cli("ls", run, "--json").of_type("checkpoint")}
    assert (shown[100]["tags"], len(shown[100]["pins"])) == (["paper"], 1)
    assert (shown[200]["tags"], shown[200]["pins"]) == ([], [])
    assert "tag paper, pin until 2" in cli("ls", run).out
    assert "kept       tag paper, pin until 2" in cli("show", f"{run}@100").out


@pytest.mark.parametrize("options", [[], ["--list", "--release"], ["--for", "soon"]])
def test_what_makes_no_sense_is_a_usage_error(cli: Cli, run: str, options: list[str]) -> None:
    assert cli("pin", run, *options).code == 2
