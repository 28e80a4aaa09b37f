"""The contract over a server that speaks as Cloud Storage does, read back with Google's client."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from ckptstore.backends.gcs.components import SOURCES_MAX
from ckptstore.backends.gcs.store import GcsStore, open_gcs_store
from ckptstore.errors import SettingsError
from ckptstore.integrity import crc64nvme
from ckptstore.opening import layered
from ckptstore.settings import RequestSettings, Settings
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance import KEY, StoreContract
from ckptstore.types import ByteRange, Key, Part
from localstack.servers import Servers, variables

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class GcsBucket:
    name: str
    raw: Any  # Google's own view of it.


@pytest.fixture
def gcs_bucket(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsBucket]:
    url = servers.url("fakegcs")
    for variable, value in variables("fakegcs", url).items():
        monkeypatch.setenv(variable, value)
    with storage.Client(credentials=AnonymousCredentials(), project="test") as client:
        yield GcsBucket(name := f"test-{secrets.token_hex(8)}", client.create_bucket(name))


class GcsContract(StoreContract):
    bucket: GcsBucket
    prefix: ClassVar[str] = ""

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        data: bytes = self.bucket.raw.blob(self.prefix + key).download_as_bytes()
        return data


class TestGcs(GcsContract):
    list_count: ClassVar[int] = 1005  # A page holds 1000.

    @pytest.fixture
    async def store(self, gcs_bucket: GcsBucket) -> AsyncIterator[ObjectStore]:
        self.bucket = gcs_bucket
        store = await open_gcs_store(gcs_bucket.name, RequestSettings())
        yield store
        await store.aclose()


class TestStackOverGcs(GcsContract):
    prefix: ClassVar[str] = "some/prefix/"

    @pytest.fixture
    async def store(self, gcs_bucket: GcsBucket) -> AsyncIterator[ObjectStore]:
        self.bucket = gcs_bucket
        settings = Settings()
        backend = await open_gcs_store(gcs_bucket.name, settings.request)
        store = layered(backend, self.prefix.rstrip("/"), settings)
        yield store
        await store.aclose()


@pytest.fixture
async def store(gcs_bucket: GcsBucket) -> AsyncIterator[GcsStore]:
    store = await open_gcs_store(gcs_bucket.name, RequestSettings())
    yield store
    await store.aclose()


async def test_more_parts_than_one_compose_takes_become_one_object_and_nothing_else(
    store: GcsStore, gcs_bucket: GcsBucket
) -> None:
    parts = [f"part {index:03d}".encode() for index in range(SOURCES_MAX + 1)]
    upload_id = await store.multipart_create(KEY)
    etags = []
    for index, data in enumerate(parts):
        part = Part(index, ByteRange(index * len(data), (index + 1) * len(data)))
        etags.append(await store.put_part(KEY, upload_id, part, [data], crc64nvme=crc64nvme(data)))
    whole = b"".join(parts)
    crc = crc64nvme(whole)
    await store.multipart_complete(KEY, upload_id, etags, size_bytes=len(whole), crc64nvme=crc)
    assert gcs_bucket.raw.blob(KEY).download_as_bytes() == whole
    assert [blob.name for blob in gcs_bucket.raw.list_blobs()] == [KEY]


async def test_a_bucket_that_is_not_there_is_a_matter_of_settings(gcs_bucket: GcsBucket) -> None:
    store = await open_gcs_store("no-such-bucket-anywhere", RequestSettings())
    with pytest.raises(SettingsError, match="no-such-bucket-anywhere"):
        await store.put(KEY, b"x")
    with pytest.raises(SettingsError, match="no-such-bucket-anywhere"):
        _ = [info async for info in store.list_objects("")]
    await store.aclose()
