"""What an upload that does not come to its end leaves behind: nothing."""

from __future__ import annotations

import asyncio

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import Key, UploadId, parse_key
from ckptstore.upload.uploader import ABORT_S_MAX, Uploader
from tests.world import SETTINGS, BytesShard

KEY = parse_key("data/00/run/uid/000000-0000.file")


class SlowToCreate(MemoryStore):
    """Creates an upload at once, and says so after ``answer_s``."""

    answer_s = 1.0

    async def multipart_create(self, key: Key) -> UploadId:
        upload_id = await super().multipart_create(key)
        await asyncio.shield(asyncio.sleep(self.answer_s))
        return upload_id


def test_an_upload_that_is_cancelled_while_it_is_created_is_aborted() -> None:
    async def tell() -> None:
        store = SlowToCreate()
        uploading = asyncio.ensure_future(
            Uploader(store, SETTINGS.transfer).upload([(KEY, BytesShard())])
        )
        await asyncio.sleep(store.answer_s / 2)
        assert store.uploads_open == 1
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert store.uploads_open == 0
        assert asyncio.get_running_loop().time() <= store.answer_s

    run_virtual(tell())


def test_an_upload_whose_creation_is_never_answered_holds_nobody_for_long() -> None:
    async def tell() -> None:
        store = SlowToCreate()
        store.answer_s = 1000.0
        uploading = asyncio.ensure_future(
            Uploader(store, SETTINGS.transfer).upload([(KEY, BytesShard())])
        )
        await asyncio.sleep(1.0)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert asyncio.get_running_loop().time() <= 1.0 + ABORT_S_MAX

    run_virtual(tell())
