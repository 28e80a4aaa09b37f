"""A sync that is killed again and again goes on where it was, object by object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ckptstore.types import MIB

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("stored_as_it_is")]

COMMAND = (sys.executable, "-m", "ckptstore.cli.main")
FILES = 16
FILE_BYTES = 4 * MIB
KILLS_AT = (2, 5, 9)  # Objects that are there by then.
WAIT_S_MAX = 60.0


def run(*words: object) -> dict[str, object]:
    done = subprocess.run(
        [*COMMAND, *map(str, words), "--json"], capture_output=True, check=True, timeout=WAIT_S_MAX
    )
    summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return summary


def data_of(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes() for path in store.glob("data/*/*/*/*.file")
    }


def kill_at(count: int, *words: object) -> bool:
    """Kill a command once so many objects are there; false if it was done before."""
    target = Path(str(words[-1]))
    with subprocess.Popen([*COMMAND, *map(str, words), "--quiet", "--concurrency", "2"]) as process:
        give_up_s = time.monotonic() + WAIT_S_MAX
        while process.poll() is None and time.monotonic() < give_up_s:
            if len(list(target.glob("data/*/*/*/*.file"))) >= count:
                process.kill()
                return process.wait(timeout=WAIT_S_MAX) < 0
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.002)
    return False


def test_a_killed_sync_commits_nothing_and_sends_only_what_is_not_there(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (tmp_path / "files").mkdir()
    for index in range(FILES):
        (tmp_path / "files" / f"{index:02d}").write_bytes(os.urandom(FILE_BYTES))
    run("push", tmp_path / "files", f"{source}/llama@1")
    killed = 0
    for count in KILLS_AT:
        killed += kill_at(count, "sync", source, target)
        if not list(target.glob("runs/*/decisions/*")):
            assert run("ls", target)["checkpoints"] == 0
    assert killed
    there = data_of(target)
    committed = bool(list(target.glob("runs/*/decisions/*")))
    done = run("sync", source, target)
    sent = 0 if committed else (FILES - len(there)) * FILE_BYTES
    assert (done["failed"], done["bytes"]) == (0, sent)
    assert data_of(target) == data_of(source)
    assert run("verify", target)["ok"]
