"""A thread cannot be cancelled; a call that waits for one can."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ckptstore.backends import _threads
from ckptstore.backends.local import LocalStore
from ckptstore.errors import ObjectNotFoundError, SettingsError, StoreError
from ckptstore.integrity import crc64nvme
from ckptstore.types import ByteRange, Key, Part, UploadId

KEY = Key("data/x")
PART = Part(0, ByteRange(0, 7))
CRC = crc64nvme(b"payload")


class Disk:
    """A disk that hangs in ``pwritev`` until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self._real = os.pwritev
        monkeypatch.setattr(os, "pwritev", self._pwritev)

    def _pwritev(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        self.entered.set()
        assert self.go_on.wait(30)
        return self._real(descriptor, pieces, offset)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    store = LocalStore(tmp_path, threads_max=1)
    yield store
    await store.aclose()


async def cancelled_put_part(
    store: LocalStore, upload_id: UploadId, disk: Disk
) -> asyncio.Task[str]:
    task = asyncio.create_task(store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC))
    assert await asyncio.to_thread(disk.entered.wait, 30)
    task.cancel()
    return task


async def test_a_cancelled_call_waits_until_its_thread_lets_go_of_the_memory(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id = await store.multipart_create(KEY)
    disk = Disk(monkeypatch)
    task = await cancelled_put_part(store, upload_id, disk)
    await asyncio.sleep(0.05)
    assert not task.done()
    disk.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    etag = await store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)
    assert await store.get(KEY) == b"payload"


async def test_an_upload_with_a_write_that_never_ended_is_never_completed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_threads, "LINGER_S_MAX", 0.05)
    upload_id = await store.multipart_create(KEY)
    etag = await store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC)
    disk = Disk(monkeypatch)
    task = await cancelled_put_part(store, upload_id, disk)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)  # The disk still hangs, and may write what it likes.
    disk.go_on.set()
    with pytest.raises(StoreError, match="may still be under way"):
        await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)
    await store.multipart_abort(KEY, upload_id)


async def test_a_cancelled_put_is_not_published_afterwards(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    task = asyncio.create_task(store.put(KEY, b"payload"))
    assert await asyncio.to_thread(disk.entered.wait, 30)
    task.cancel()
    disk.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    with pytest.raises(ObjectNotFoundError):
        await store.head(KEY)


async def test_a_call_that_never_got_a_thread_is_simply_gone(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_threads, "LINGER_S_MAX", 0.05)
    disk = Disk(monkeypatch)
    first = asyncio.create_task(store.put(KEY, b"payload"))
    assert await asyncio.to_thread(disk.entered.wait, 30)
    second = asyncio.create_task(store.put(Key("data/y"), b"payload"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(second, 10)
    disk.go_on.set()
    await asyncio.wait_for(first, 10)
    assert [info.key async for info in store.list_objects("")] == [KEY]


async def test_no_thread_outlives_the_store(tmp_path: Path) -> None:
    before = threading.active_count()
    store = LocalStore(tmp_path)
    await asyncio.gather(*(store.put(Key(f"{number}"), b"x") for number in range(20)))
    assert threading.active_count() > before
    await store.aclose()
    assert threading.active_count() == before


@pytest.mark.parametrize("cancelled", [False, True])
async def test_closing_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    monkeypatch.setattr(_threads, "LINGER_S_MAX", 0.05)
    store = LocalStore(tmp_path)
    disk = Disk(monkeypatch)
    task = asyncio.create_task(store.put(KEY, b"payload"))
    assert await asyncio.to_thread(disk.entered.wait, 30)
    if cancelled:
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
    async with asyncio.timeout(10):
        await store.aclose()
    disk.go_on.set()
    await asyncio.wait({task}, timeout=10)
    assert task.done()


async def test_a_store_of_another_process_is_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(SettingsError, match="forked"):
        await store.get(KEY)
