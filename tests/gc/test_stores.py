"""Collecting on a real file system, and listing uploads page by page from S3."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ckptstore.backends.local import LocalStore
from ckptstore.backends.s3.listing import ListingVerbs
from ckptstore.clock import SystemClock
from ckptstore.errors import StoreError
from ckptstore.gc.execute import collect
from ckptstore.gc.policy import RetentionPolicy
from ckptstore.gc.survey import plan_collection
from ckptstore.manifest.layout import ShardKind, data_key
from ckptstore.opening import layered
from ckptstore.types import Key, UploadId, UploadInfo
from tests.world import RECORD, RUN, SETTINGS, BytesShard, World

POLICY = RetentionPolicy(keep_last=1)


class LaterClock(SystemClock):
    def unix_s(self) -> float:
        return super().unix_s() + 30 * 24 * 3600.0


def directories(path: Path) -> set[str]:
    return {one.name for one in path.rglob("*") if one.is_dir()}


async def test_a_directory_has_no_trace_of_what_was_collected(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "store")
    world = World(local, world_size=2, clock=SystemClock())  # type: ignore[arg-type]
    attempts = [await world.begin(step) for step in (1, 2, 3)]
    for attempt in attempts[:2]:
        results = await world.save(attempt, [BytesShard(bytes(100))] * 2)
        assert not any(isinstance(result, BaseException) for result in results)
    left = data_key(RUN, attempts[2].uid, 0, 0, ShardKind.FILE, fan_out=4)
    await local.put(left, b"left behind")
    await local.multipart_create(left)
    await local.multipart_create(Key(f"data/00/{RUN}/{attempts[0].uid}/000000-0009.file"))
    store = layered(local, "", SETTINGS)
    plan = await plan_collection(store, RUN, POLICY, record=RECORD, clock=LaterClock())
    report = await collect(store, plan, record=RECORD, clock=LaterClock())
    assert report.failed == []
    assert {garbage.uid for garbage in report.collected} == {
        attempts[0].uid,
        attempts[2].uid,
    }
    names = directories(tmp_path)
    assert attempts[1].uid in names
    assert names & {attempts[0].uid, attempts[2].uid} == set()
    assert [one async for one in local.list_uploads("")] == []
    await store.aclose()


async def test_what_a_killed_put_left_is_an_open_upload(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    key = Key("data/00/x")
    await store.multipart_create(key)
    (tmp_path / ".uploads" / ("0" * 32 + ".key")).touch()  # Killed before it wrote the key.
    (tmp_path / ".uploads" / "note.txt").touch()
    [upload] = [upload async for upload in store.list_uploads("data/")]
    assert upload.key == key
    await store.multipart_abort(upload.key, upload.upload_id)
    assert [upload async for upload in store.list_uploads("")] == []
    await store.aclose()


class PagedCaller:
    """An S3 client that answers with these pages, and remembers what it was asked."""

    bucket = "bucket"

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = list(pages)
        self.asked: list[dict[str, Any]] = []

    def call(self, verb: str, key: str) -> tuple[str, str]:
        return verb, key

    async def ask(self, operation: str, call: tuple[str, str], **asked: Any) -> dict[str, Any]:  # noqa: ANN401
        assert operation == "list_multipart_uploads"
        self.asked.append(asked)
        return self._pages.pop(0)


def upload(number: int) -> dict[str, Any]:
    begun = datetime.fromtimestamp(1000 + number, UTC)
    return {"Key": f"data/{number}", "UploadId": f"u{number}", "Initiated": begun}


async def test_uploads_are_listed_page_by_page() -> None:
    caller = PagedCaller(
        {
            "Uploads": [upload(1), upload(2)],
            "IsTruncated": True,
            "NextKeyMarker": "data/2",
            "NextUploadIdMarker": "u2",
        },
        {"IsTruncated": True, "NextKeyMarker": "data/2"},  # An empty page is not the end.
        {"Uploads": [upload(3)], "IsTruncated": False},
    )
    verbs = ListingVerbs(caller)  # type: ignore[arg-type]
    assert [one async for one in verbs.list_uploads("data/")] == [
        UploadInfo(Key(f"data/{number}"), UploadId(f"u{number}"), 1000.0 + number)
        for number in (1, 2, 3)
    ]
    assert caller.asked == [
        {"Prefix": "data/"},
        {"Prefix": "data/", "KeyMarker": "data/2", "UploadIdMarker": "u2"},
        {"Prefix": "data/", "KeyMarker": "data/2"},
    ]


async def test_a_listing_of_uploads_that_does_not_say_how_it_goes_on_is_an_error() -> None:
    caller = PagedCaller({"Uploads": [upload(1)], "IsTruncated": True})
    verbs = ListingVerbs(caller)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="goes on"):
        [one async for one in verbs.list_uploads("data/")]
