"""Results on stdout, the rest on stderr, and nothing that was not asked for."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest

from ckptstore.cli.output import STATS_S, Output
from ckptstore.cli.progress import line, shown
from ckptstore.progress import Progress
from ckptstore.testing.virtual_time import run_virtual
from tests.cli.conftest import Cli


def output(*, quiet: bool = False) -> Output:
    return Output("push", as_json=False, quiet=quiet, verbosity=0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_tells_how_far_it_is() -> None:
    progress = Progress(bytes_total=4 * 2**30, bytes_done=2**30)
    assert line(progress, "push", 2.0) == "push   25%  1.0 GiB of 4.0 GiB  512.0 MiB/s  after 2.0s"
    assert line(Progress(bytes_done=5), "push", 1.0) == "push  5 B of ~  5 B/s  after 1.0s"


def test_all_bytes_are_not_all_before_the_end() -> None:
    assert " 99%  " in line(Progress(bytes_total=7, bytes_done=7), "push", 1.0)


def test_programs_are_told_how_far_it_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        told = Output("push", as_json=True, quiet=False, verbosity=0)
        told.stats_s = 2.0
        async with shown(told, "push") as progress:
            progress.bytes_total, progress.bytes_done = 9, 4
            await asyncio.sleep(3.0)

    run_virtual(work())
    said = capsys.readouterr()
    (status,) = map(json.loads, said.err.splitlines())
    assert (status["type"], status["bytes_done"], status["bytes_total"]) == ("status", 4, 9)
    assert status["elapsed_s"] == 2.0
    assert said.out == ""


@pytest.mark.parametrize(("quiet", "lines"), [(False, 3), (True, 0)])
def test_without_a_terminal_there_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], quiet: bool, lines: int
) -> None:
    async def work() -> None:
        async with shown(output(quiet=quiet), "push"):
            await asyncio.sleep(3.5 * STATS_S)

    run_virtual(work())
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == lines
    assert said.out == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")

    async def work() -> None:
        async with shown(output(), "push") as progress:
            progress.bytes_total, progress.bytes_done = 2048, 1024
            await asyncio.sleep(1)

    run_virtual(work())
    assert "push" in terminal.getvalue()
    assert "1.0/2.0 KiB" in terminal.getvalue()


@pytest.mark.parametrize("plain", [False, True])
def test_colours_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")

    async def work() -> None:
        async with shown(output(), "push") as progress:
            progress.bytes_total, progress.bytes_done = 2048, 1024
            await asyncio.sleep(1)

    run_virtual(work())
    assert ("\x1b[3" in terminal.getvalue()) is not plain


def test_a_terminal_gets_nothing_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    async def work() -> None:
        async with shown(output(quiet=True), "push"):
            await asyncio.sleep(STATS_S)

    run_virtual(work())
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)

    async def work() -> None:
        async with shown(output(), "push") as progress:
            progress.bytes_total, progress.bytes_done = 2048, 1024
            await asyncio.sleep(1)

    run_virtual(work())
    assert ("\x1b[38;5;" in terminal.getvalue()) == coloured


def test_a_table_is_whole_however_wide_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    name = "n[bold]" + "n" * 300
    output().table(["NAME", ">SIZE"], [[name, "1 B"], ["m", "10 B"]])
    assert capsys.readouterr().out.splitlines() == [
        f"NAME{' ' * 303}  SIZE",
        f"{name}   1 B",
        f"m{' ' * 306}  10 B",
    ]


def test_a_name_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output().table(["NAME"], [["\x1b[2J\x07evil"]])
    output().error(ValueError("\x1b]0;title\x07"))
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\x07" not in said.out + said.err


def test_quiet_leaves_results_and_errors(cli: Cli, run: str, source: Path) -> None:
    assert cli("verify", run, "--quiet").out
    ended = cli("push", source, f"{run}@200", "-q")
    assert ended.err.startswith("error: ")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("JSON", "1", 0), ("DEADLINE", "soon", 2), ("QUIET", "true", 0), ("ALL", "1", 0)],
)
def test_every_option_has_a_twin_in_the_environment(
    cli: Cli, run: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int
) -> None:
    monkeypatch.setenv(f"CKPTSTORE_{name}", value)
    ended = cli("verify", run)
    assert ended.code == code
    if name == "JSON":
        assert ended.summary["ok"]


def test_what_stands_after_the_verb_wins_over_the_environment(
    cli: Cli, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTSTORE_DEADLINE", "soon")
    assert cli("verify", run, "--deadline", "1m").code == 0


def test_every_verb_has_the_shared_options(cli: Cli) -> None:
    shared = ("--json", "--quiet", "--verbose", "--deadline", "--concurrency", "--endpoint-url")
    for verb in ("push", "restore", "verify", "ls", "show", "resolve", "version"):
        ended = cli(verb, "--help")
        assert ended.code == 0
        assert all(option in ended.out for option in shared)
