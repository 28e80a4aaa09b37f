"""The command as a process: how it starts, and how it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from ckptstore.cli import run
from tests.cli.conftest import Cli
from tests.cli.files import files_in, names_in, write_files

COMMAND = (sys.executable, "-m", "ckptstore.cli.main")
ENDED_S_MAX = 60
HEAVY = "aiobotocore asyncio awscrt boto3 botocore msgspec rich torch zstandard"


def start(
    *arguments: object, stdout: int = subprocess.PIPE, program: Sequence[str] = COMMAND
) -> subprocess.Popen[str]:
    words = [*program, *map(str, arguments)]
    return subprocess.Popen(words, stdout=stdout, stderr=subprocess.PIPE, text=True)


@contextmanager
def started(
    *arguments: object, until: str, program: Sequence[str] = COMMAND
) -> Iterator[subprocess.Popen[str]]:
    """Start a command and wait until it has said this on stderr."""
    with start(*arguments, "-v", program=program) as process:
        assert process.stderr is not None
        try:
            said = ""
            while until not in said:
                line = process.stderr.readline()
                assert line, f"it ended, having said: {said}"
                said += line
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=ENDED_S_MAX)
    return process.returncode, out, err


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from ckptstore.cli.main import execute; code = execute(['--help']);"
        f"print(code, sorted(set({HEAVY!r}.split()) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=ENDED_S_MAX
    )
    assert done.stderr == "0 []\n"
    assert "Commands:" in done.stdout


def test_a_process_ends_with_the_exit_code_of_its_verb(store: Path, source: Path) -> None:
    assert ended(start("push", source, f"{store}/llama@1"))[0] == 0
    assert ended(start("push", source, f"{store}/llama@1"))[0] == 10
    assert ended(start("ls", f"{store}/nope"))[0] == 5
    assert ended(start("push"))[0] == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_push_is_aborted_and_nothing_of_it_is_visible(
    cli: Cli, source: Path, store: Path, number: signal.Signals, code: int
) -> None:
    """It would wait for the vote of another node, which never comes."""
    node = ("--rank", 0, "--world-size", 2, "--job", "j", "--json")
    with started("push", source, f"{store}/llama@1", *node, until="pushes 3 files") as process:
        process.send_signal(number)
        found, out, err = ended(process)
    assert found == code
    assert "error: push was interrupted and cleaned up after itself" in err
    assert '"code": "interrupted"' in out or '"code": "terminated"' in out
    assert f'"type": "summary", "exit_code": {code}' in out.splitlines()[-1]
    (attempt,) = cli("ls", f"{store}/llama", "--json").of_type("checkpoint")
    assert attempt["state"] == "aborted"
    assert "interrupted" in attempt["reason"]


def test_a_node_that_waits_for_its_rank_0_can_be_stopped(source: Path, store: Path) -> None:
    node = ("--rank", 1, "--world-size", 2, "--job", "j")
    with started("push", source, f"{store}/llama@1", *node, until="waiting for rank 0") as process:
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130
    assert not (store / "runs").exists()


def test_a_stopped_restore_leaves_nothing_even_if_the_disk_hangs(run: str, tmp_path: Path) -> None:
    hanging = (
        "import os, sys, threading; from ckptstore.cli.main import main;"
        "hang = lambda *_: (print('reading', file=sys.stderr), threading.Event().wait());"
        "os.preadv = hang; main()"
    )
    words = ("restore", run, tmp_path / "out")
    with started(*words, until="reading", program=(sys.executable, "-c", hanging)) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130
    assert not [name for name in names_in(tmp_path) if "out" in name]


class Timers:
    """Timers that go off when a test says so, and a process that is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[int] = []
        self.ends: list[Callable[[], None]] = []
        monkeypatch.setattr(os, "_exit", self.codes.append)
        monkeypatch.setattr("threading.Timer", self.timer)

    def timer(self, after_s: float, end: Callable[[], None]) -> Mock:
        assert after_s > 0
        self.ends.append(end)
        return Mock()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    return Timers(monkeypatch)


def test_a_second_signal_ends_it_at_once(timers: Timers) -> None:
    interrupt = run._Interrupt()
    before = signal.getsignal(signal.SIGINT)
    with interrupt.handled():
        signal.raise_signal(signal.SIGINT)
        assert timers.codes == []
        signal.raise_signal(signal.SIGTERM)
    assert timers.codes == [143]
    assert signal.getsignal(signal.SIGINT) is before


def test_cleaning_up_after_a_signal_does_not_take_for_ever(timers: Timers) -> None:
    with run._Interrupt().handled():
        signal.raise_signal(signal.SIGTERM)
    (end,) = timers.ends
    end()
    assert timers.codes == [143]


def test_a_command_that_does_not_heed_its_deadline_is_ended(
    timers: Timers, capsys: pytest.CaptureFixture[str]
) -> None:
    with run._end_at_all_costs(1.0):
        timers.ends[0]()
    assert timers.codes == [8]
    assert "could not be ended in good order" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_reader_that_goes_away_is_no_error(run: str, flags: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("ls", run, *flags, stdout=writing)
    os.close(writing)
    assert ended(process)[::2] == (0, "")


def test_a_restore_that_was_killed_goes_on_where_it_was(
    cli: Cli, source: Path, store: Path, tmp_path: Path
) -> None:
    """It is killed by itself, right after it noted the first batch."""
    for name in "abc":
        (source / name).write_bytes(os.urandom(2 << 20))
    assert cli("push", source, f"{store}/llama@1").code == 0
    dying = (
        "import os, signal; from ckptstore.cli.main import main;"
        "from ckptstore.fetch import journal;"
        "note = journal.Journal.note;"
        "journal.Journal.note = lambda self, *what: (note(self, *what),"
        " os.kill(os.getpid(), signal.SIGKILL)); main()"
    )
    words = ("restore", f"{store}/llama", tmp_path / "out", "--concurrency", 1)
    assert ended(start(*words, program=(sys.executable, "-c", dying)))[0] == -signal.SIGKILL
    assert len([name for name in names_in(tmp_path) if name.startswith(".out")]) == 1
    summary = cli(*words, "--json").summary
    assert summary["bytes_resumed"] > 0
    assert summary["bytes_resumed"] + summary["bytes_verified"] == summary["bytes"]
    assert files_in(tmp_path / "out") == files_in(source)
    assert not [name for name in names_in(tmp_path) if name.startswith(".out")]


def test_a_sidecar_pushes_what_appears_until_it_is_stopped(
    cli: Cli, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "local" / "step-5").mkdir(parents=True)
    (tmp_path / "local" / "step-5" / ".metadata").write_text("m")
    words = ("push", tmp_path / "local", f"{store}/llama", "--watch", "--settle", "0.01s")
    with started(*words, until="pushes 1 files") as process:
        assert process.stdout is not None
        assert "as llama@5" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 130
    assert [line["step"] for line in cli("ls", store, "--json").of_type("checkpoint")] == [5]


def with_descriptors(limit: int) -> tuple[str, ...]:
    few = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
        "from ckptstore.cli.main import main; main()"
    )
    return (sys.executable, "-c", few)


def test_few_descriptors_are_enough_for_many_files(store: Path, tmp_path: Path) -> None:
    files = {f"{number:03d}": bytes([number]) * 10 for number in range(150)}
    source = write_files(tmp_path / "many", files)
    words = ("push", source, f"{store}/llama@1")
    code, _, err = ended(start(*words, program=with_descriptors(64)))
    assert code == 9
    assert "too few file descriptors" in err
    assert "ulimit -n" in err
    code, _, err = ended(start(*words, program=with_descriptors(128)))
    assert code == 0, err
    back = ("restore", f"{store}/llama", tmp_path / "out")
    code, _, err = ended(start(*back, program=with_descriptors(128)))
    assert code == 0, err
    assert files_in(tmp_path / "out") == files


def test_a_checkpoint_is_restored_with_memory_for_a_part_of_it(
    cli: Cli, store: Path, tmp_path: Path
) -> None:
    """The data segment is bounded, far below what all of it together would take."""
    source = write_files(tmp_path / "big", {})
    source.mkdir()
    with (source / "weights").open("wb") as file:
        file.truncate(1 << 30)
    assert cli("push", source, f"{store}/llama@1").code == 0
    bounded = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (850 << 20, 850 << 20));"
        "from ckptstore.cli.main import main; main()"
    )
    words = ("restore", f"{store}/llama", tmp_path / "out", "--sparse")
    code, _, err = ended(start(*words, program=(sys.executable, "-c", bounded)))
    assert code == 0, err
    assert (tmp_path / "out" / "weights").stat().st_size == 1 << 30
