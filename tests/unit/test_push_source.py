"""A file is read part by part, and never half old and half new."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from ckptstore.errors import ConflictError, LocalResourceError
from ckptstore.push.source import FileSource
from ckptstore.push.walk import walk
from ckptstore.types import ByteRange

DATA = bytes(range(100))


def source_of(directory: Path) -> FileSource:
    (directory / "file").write_bytes(DATA)
    (file,) = walk(directory)
    return FileSource(file)


async def staged(source: FileSource, start: int, stop: int) -> bytes:
    return b"".join(await source.stage(ByteRange(start, stop)))


async def test_any_range_is_staged_in_any_order(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    assert source.size_bytes == 100
    assert await staged(source, 60, 100) == DATA[60:]
    assert await staged(source, 0, 60) == DATA[:60]


async def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(tmp_path)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: real(fd, [views[0][:7]], at))
    assert await staged(source, 1, 99) == DATA[1:99]


def grow(path: Path) -> None:
    path.write_bytes(DATA + b"more")


def shrink(path: Path) -> None:
    os.truncate(path, 50)


def rewrite(path: Path) -> None:
    path.write_bytes(DATA[::-1])
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    """Another file with the same size and time, as a careful writer puts one in place."""
    status = path.stat()
    path.with_name("new").write_bytes(DATA[::-1])
    os.utime(path.with_name("new"), ns=(status.st_atime_ns, status.st_mtime_ns))
    path.with_name("new").replace(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [grow, shrink, rewrite, replace, remove])
async def test_a_file_that_changed_between_two_parts_fails_the_push(
    tmp_path: Path, change: object
) -> None:
    source = source_of(tmp_path)
    await staged(source, 0, 50)
    assert callable(change)
    change(tmp_path / "file")
    with pytest.raises(ConflictError, match="while it was pushed; push again once nobody writes"):
        await staged(source, 50, 100)


@pytest.mark.parametrize("change", [grow, shrink, rewrite])
async def test_a_file_that_changes_during_the_read_fails_the_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object
) -> None:
    source = source_of(tmp_path)
    real = os.preadv

    def changing(descriptor: int, views: list[memoryview], offset: int) -> int:
        assert callable(change)
        change(tmp_path / "file")
        return real(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", changing)
    with pytest.raises(ConflictError, match="became shorter|changed"):
        await staged(source, 40, 90)


async def test_no_descriptor_stays_open_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path)
    await staged(source, 0, 1)  # Threads and what they open are there from now on.
    before = os.listdir("/proc/self/fd")
    await asyncio.gather(*(staged(source, n, n + 10) for n in range(90)))
    shrink(tmp_path / "file")
    with pytest.raises(ConflictError):
        await staged(source, 0, 10)
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_running_out_of_descriptors_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path)

    def refusing(path: Path, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        with pytest.raises(LocalResourceError, match="ulimit -n"):
            await staged(source, 0, 10)
