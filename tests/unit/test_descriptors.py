"""The descriptor guard: what fits, what was forgotten, and what a full table is blamed on."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptstore.descriptors import RESERVED, accounted, fitting, open_targets
from ckptstore.errors import LocalResourceError
from ckptstore.location import StoreLocation
from ckptstore.opening import opened_store
from ckptstore.settings import Settings
from ckptstore.types import Key


@contextmanager
def descriptor_limit(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_where_there_are_plenty_nothing_is_narrowed() -> None:
    with descriptor_limit(4096):
        assert fitting(32) == 32


def test_fewer_requests_go_at_a_time_where_few_are_left(caplog: pytest.LogCaptureFixture) -> None:
    with descriptor_limit(len(open_targets()) + RESERVED + 5):
        assert 1 <= fitting(32) <= 5
    assert "requests at a time, not 32" in caplog.text


def test_where_not_even_one_fits_it_is_said_what_holds_them() -> None:
    with (
        descriptor_limit(len(open_targets()) + 2),
        pytest.raises(LocalResourceError, match=r"are open, the limit is \d+ .*most of them"),
    ):
        fitting(32)


def test_a_deleted_file_that_was_left_open_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with accounted("the save"), (tmp_path / "kept").open("wb") as kept:
        leak = tempfile.NamedTemporaryFile(dir=tmp_path, prefix="leaked-", delete=False)  # noqa: SIM115
        os.unlink(leak.name)
    assert "the save: 1 deleted files were left open" in caplog.text
    assert leak.name in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), accounted("another save"):
        pass
    assert caplog.text == ""  # It was there before.
    leak.close()
    assert kept.closed


def test_opening_and_using_a_store_leaves_no_descriptor(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened_store(StoreLocation("file", "", str(tmp_path)), Settings()) as store:
            await asyncio.gather(*(store.put(Key(f"a/{n}"), b"x" * n) for n in range(50)))
            await asyncio.gather(*(store.get(Key(f"a/{n}")) for n in range(50)))

    asyncio.run(use())  # What is loaded once stays open.
    before = open_targets()
    asyncio.run(use())
    assert sorted(open_targets()) == sorted(before)


RUN_OUT = """
import asyncio, os, sys
from ckptstore.backends.local import LocalStore
from ckptstore.errors import LocalResourceError
from ckptstore.types import Key
import resource
async def main():
    store = LocalStore(sys.argv[1])
    await store.put(Key("first"), b"x")
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8,) * 2)
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        await store.put(Key("second"), b"x")
    except LocalResourceError as error:
        os.close(held.pop())
        print(error)
    for fd in held:
        os.close(fd)
    await store.put(Key("third"), b"x")
    await store.aclose()
asyncio.run(main())
"""


def test_a_full_table_is_called_that_and_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_OUT, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "no file descriptors are left" in done.stdout
    assert (tmp_path / "third").exists()
    assert not (tmp_path / "second").exists()
