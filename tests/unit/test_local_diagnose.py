"""An errno has many causes; the message names the one that the numbers prove."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckptstore.backends import _diagnose
from ckptstore.backends._diagnose import PinnedFile, deleted_open_files, resource_error
from ckptstore.types import MIB

GIB = 1024 * MIB
PLENTY = {
    "f_frsize": 4096,
    "f_blocks": 10 * GIB // 4096,
    "f_bfree": 5 * GIB // 4096,
    "f_bavail": 5 * GIB // 4096,
    "f_files": 1000,
    "f_favail": 500,
}


def explained(
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    pinned: tuple[PinnedFile, ...] = (),
    need_bytes: int = MIB,
    **space: int,
) -> str:
    found: Any = SimpleNamespace(**{**PLENTY, **space})
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    monkeypatch.setattr(_diagnose, "deleted_open_files", lambda _: iter(pinned))
    error = OSError(number, os.strerror(number))
    return str(resource_error(error, "/no/such/x", doing="put data/x", need_bytes=need_bytes))


FULL = {"f_bfree": 0, "f_bavail": 0}


@pytest.mark.parametrize(
    ("space", "pinned", "said"),
    [
        (FULL, (), "the disk is full: 0.0 MiB of 10.0 GiB are free"),
        ({"f_favail": 0}, (), "no inodes are left (1000 in use) though 5.0 GiB are free"),
        ({**FULL, "f_files": 0, "f_favail": 0}, (), "the disk is full"),  # Like btrfs.
        (
            FULL,
            (PinnedFile(1, "/d/small", MIB), PinnedFile(7, "/d/old.pt", 6 * GIB)),
            "2 deleted files that are still open pin 6.0 GiB (0.0 MiB are free); end or fix who "
            "holds them: /d/old.pt by process 7, /d/small by process 1",
        ),
        (FULL, (PinnedFile(7, "/d/log", 4096),), "the disk is full"),  # Too small to matter.
        ({}, (), "the system says no space although 5.0 GiB are free"),
        ({"f_bavail": 0, "f_bfree": 25600}, (), "the 100.0 MiB that are left are reserved"),
    ],
)
def test_no_space_has_a_cause(
    monkeypatch: pytest.MonkeyPatch,
    space: dict[str, int],
    pinned: tuple[PinnedFile, ...],
    said: str,
) -> None:
    message = explained(errno.ENOSPC, monkeypatch, pinned=pinned, **space)
    assert message.startswith("put data/x: ")
    assert said in message
    assert "No space left on device" in message


def test_a_quota_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "quota" in explained(errno.EDQUOT, monkeypatch)


def test_a_limit_on_the_size_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert "RLIMIT_FSIZE: 4096 bytes" in explained(errno.EFBIG, monkeypatch)


def test_descriptors_are_counted_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [(tmp_path / f"{number}").open("w") for number in range(40)]
    message = explained(errno.EMFILE, monkeypatch)
    for file in files:
        file.close()
    assert f"40 {tmp_path}" in message
    assert "ulimit -n" in message


def test_deleted_files_that_are_still_open_are_found(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        file.write(bytes(MIB))
        file.flush()
        device = os.fstat(file.fileno()).st_dev
        assert str(path) not in {found.name for found in deleted_open_files(device)}
        path.unlink()
        [mine] = [found for found in deleted_open_files(device) if found.name == str(path)]
        assert mine.pid == os.getpid()
        assert mine.size_bytes >= MIB
    assert str(path) not in {found.name for found in deleted_open_files(device)}
