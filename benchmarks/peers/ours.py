"""Ours: the store with all its layers, checksums on the way out and on the way in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.peers.base import Go, Task, payload, touched
from ckptstore.location import StoreLocation
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import ShardEntry
from ckptstore.opening import opened_store
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.runtime import new_event_loop
from ckptstore.settings import RequestSettings, Settings, TransferSettings
from ckptstore.store import ObjectStore
from ckptstore.types import Buffer, ByteRange, Key
from ckptstore.upload.uploader import Uploader


class _Memory:
    """A shard that lies in memory."""

    kind = ShardKind.FILE

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return [self._data[byte_range.start : byte_range.stop]]


def settings_for(task: Task) -> Settings:
    return Settings(
        request=RequestSettings(in_flight_max=task.in_flight),
        transfer=TransferSettings(
            part_size_bytes=task.part_size_bytes, in_flight_bytes_max=task.in_flight_bytes
        ),
    )


@contextmanager
def _opened(task: Task) -> Iterator[tuple[asyncio.Runner, ObjectStore]]:
    location = StoreLocation("s3", task.bucket, "bench")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        opening = opened_store(location, settings_for(task))
        store = runner.run(opening.__aenter__())
        try:
            yield runner, store
        finally:
            runner.run(opening.__aexit__(None, None, None))


async def _upload(store: ObjectStore, task: Task, key: str, data: memoryview) -> ShardEntry:
    uploader = Uploader(store, settings_for(task).transfer)
    (entry,) = await uploader.upload([(Key(key), _Memory(data))])
    return entry


@contextmanager
def upload(task: Task) -> Iterator[Go]:
    data = payload(task.size_bytes)
    with _opened(task) as (runner, store):

        def go(key: str, size_bytes: int) -> None:
            runner.run(_upload(store, task, key, data[:size_bytes]))

        yield go


@contextmanager
def download(task: Task) -> Iterator[Go]:
    target = touched(task.size_bytes)
    entries: dict[str, ShardEntry] = {}
    with _opened(task) as (runner, store):

        def go(key: str, size_bytes: int) -> None:
            reader = CheckedReader(store, settings_for(task).transfer)
            wanted = [Wanted(entries[key], 0, target[:size_bytes])]
            runner.run(reader.read_wanted(wanted))

        for key, size_bytes in (("warm-up", task.warm_up_bytes), ("object", task.size_bytes)):
            entries[key] = runner.run(_upload(store, task, key, target[:size_bytes]))
        yield go
