"""The contract over real S3 servers, read back with another client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from ckptstore.backends.s3.store import open_s3_store
from ckptstore.opening import layered
from ckptstore.settings import RequestSettings, Settings
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance import StoreContract
from ckptstore.types import MIB, Key
from tests.integration.buckets import Bucket

pytestmark = pytest.mark.integration


class S3Contract(StoreContract):
    part_size_bytes: ClassVar[int] = 5 * MIB
    list_count: ClassVar[int] = 1005  # A page holds 1000.
    bucket: Bucket
    prefix: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def what_the_server_cannot_do(self, server_name: str) -> None:
        self.lists_in_key_order = server_name != "seaweedfs"

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        answer = self.bucket.raw.get_object(Bucket=self.bucket.name, Key=self.prefix + key)
        data: bytes = answer["Body"].read()
        return data


class TestS3(S3Contract):
    @pytest.fixture
    async def store(self, bucket: Bucket) -> AsyncIterator[ObjectStore]:
        self.bucket = bucket
        store = await open_s3_store(bucket.name, RequestSettings())
        yield store
        await store.aclose()


class TestStackOverS3(S3Contract):
    prefix: ClassVar[str] = "some/prefix/"
    list_count: ClassVar[int] = 30  # The long one is told bare.

    @pytest.fixture
    async def store(self, bucket: Bucket) -> AsyncIterator[ObjectStore]:
        self.bucket = bucket
        settings = Settings()
        backend = await open_s3_store(bucket.name, settings.request)
        store = layered(backend, self.prefix.rstrip("/"), settings)
        yield store
        await store.aclose()
