"""A directory that appears all at once, on machines that are short of something."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from ckptstore.concurrency import in_thread
from ckptstore.errors import ConflictError, LocalResourceError, UsageError
from ckptstore.fetch.plan import OutputFile
from ckptstore.fetch.staging import create_files, staged
from tests.cli.files import names_in

ROOM = SimpleNamespace(f_bavail=1000, f_frsize=10, f_files=100, f_favail=50)


async def test_what_was_put_there_is_there_when_the_block_ends(tmp_path: Path) -> None:
    async with staged(tmp_path / "out", size_bytes=1, file_count=1) as staging:
        create_files(
            staging.root,
            [
                OutputFile(path="a/b/run.sh", size_bytes=6, head=b"#!/bin", executable=True),
                OutputFile(path="empty", size_bytes=0),
                OutputFile(path="zeros", size_bytes=4),
            ],
        )
        assert names_in(tmp_path) == [staging.root.parent.name]
    assert names_in(tmp_path) == ["out"]
    assert (tmp_path / "out" / "a" / "b" / "run.sh").read_bytes() == b"#!/bin"
    assert os.access(tmp_path / "out" / "a" / "b" / "run.sh", os.X_OK)
    assert not (tmp_path / "out" / "empty").stat().st_mode & 0o111
    assert (tmp_path / "out" / "empty").read_bytes() == b""
    assert (tmp_path / "out" / "zeros").read_bytes() == bytes(4)


async def test_everything_is_synced_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((os.path.basename(target), (tmp_path / "out").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    async with staged(tmp_path / "out", size_bytes=1, file_count=1) as staging:
        create_files(staging.root, [OutputFile(path="d/file", size_bytes=1)])
    assert synced == [
        ("file", False),
        ("d", False),
        (staging.root.name, False),
        (tmp_path.name, True),
    ]


@pytest.mark.parametrize(
    ("size_bytes", "file_count", "said"),
    [(10_001, 1, "10000 bytes free and the checkpoint takes 10001"), (1, 51, "50 inodes free")],
)
async def test_no_room_is_found_out_before_the_first_byte(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
    file_count: int,
    said: str,
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: ROOM)
    with pytest.raises(LocalResourceError, match=said):
        async with staged(tmp_path / "out", size_bytes=size_bytes, file_count=file_count):
            pytest.fail("there was no room")
    assert names_in(tmp_path) == []


async def test_just_enough_room_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: ROOM)
    async with staged(tmp_path / "out", size_bytes=10_000, file_count=50):
        pass
    assert names_in(tmp_path) == ["out"]


async def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LocalResourceError, match="could not create the file"):
        async with staged(tmp_path / "out", size_bytes=1, file_count=1) as staging:
            create_files(staging.root, [OutputFile(path="file", size_bytes=5)])
    assert names_in(tmp_path) == []


async def test_something_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    async def restore() -> None:
        async with staged(tmp_path / "out", size_bytes=1, file_count=1):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("precious")

    with pytest.raises(ConflictError, match="appeared at"):
        await restore()
    assert names_in(tmp_path) == ["out"]
    assert (tmp_path / "out" / "theirs").read_text() == "precious"


async def test_a_mount_point_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "out")
    with pytest.raises(UsageError, match=r"mount point.* such as .*/out/checkpoint"):
        async with staged(tmp_path / "out", size_bytes=1, file_count=1):
            pytest.fail("it cannot be replaced")


async def test_a_missing_parent_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory; create it first"):
        async with staged(tmp_path / "no" / "out", size_bytes=1, file_count=1):
            pytest.fail("there is no such parent")


async def test_a_link_is_followed_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with staged(tmp_path / "link", size_bytes=1, file_count=1) as staging:
        create_files(staging.root, [OutputFile(path="file", size_bytes=1)])
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path / "real") == ["file"]


async def test_a_cancelled_call_waits_for_its_thread_which_still_uses_the_files() -> None:
    loop = asyncio.get_running_loop()
    entered, released = asyncio.Event(), threading.Event()

    def work() -> None:
        loop.call_soon_threadsafe(entered.set)
        assert released.wait(10)

    task = asyncio.create_task(in_thread(work))
    await entered.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=0)
    assert not task.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
