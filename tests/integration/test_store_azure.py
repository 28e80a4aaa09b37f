"""The contract over a server that speaks as Azure Blob Storage does, read back with its client."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from azure.storage.blob import ContainerClient

from ckptstore.backends.azure.access import access_of
from ckptstore.backends.azure.store import open_azure_store
from ckptstore.location import parse_store
from ckptstore.opening import opened_store
from ckptstore.settings import RequestSettings, Settings
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance import StoreContract
from ckptstore.types import Key
from localstack.servers import Servers, variables

pytestmark = pytest.mark.integration


@pytest.fixture
def container(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[ContainerClient]:
    ((variable, text),) = variables("azurite", servers.url("azurite")).items()
    monkeypatch.setenv(variable, text)
    name = f"test-{secrets.token_hex(8)}"
    with ContainerClient.from_connection_string(text, name, api_version="2023-11-03") as client:
        client.create_container()
        yield client


class AzureContract(StoreContract):
    container: ContainerClient
    prefix: ClassVar[str] = ""
    list_count: ClassVar[int] = 300

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        data: bytes = self.container.download_blob(self.prefix + key).readall()
        return data


class TestAzure(AzureContract):
    @pytest.fixture
    async def store(self, container: ContainerClient) -> AsyncIterator[ObjectStore]:
        self.container = container
        location = parse_store(f"az://{container.container_name}")
        store = await open_azure_store(access_of(location, os.environ), RequestSettings())
        yield store
        await store.aclose()


class TestStackedAzure(AzureContract):
    prefix: ClassVar[str] = "some/prefix/"

    @pytest.fixture
    async def store(self, container: ContainerClient) -> AsyncIterator[ObjectStore]:
        self.container = container
        location = parse_store(f"az://{container.container_name}/some/prefix")
        async with opened_store(location, Settings()) as store:
            yield store


@pytest.mark.parametrize("compress", ["0", "1"])
def test_a_directory_becomes_a_checkpoint_is_verified_and_comes_back(
    container: ContainerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: str
) -> None:
    monkeypatch.setenv("CKPTSTORE_COMPRESS", compress)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(range(256)) * 200_000)
    run = f"az://{container.container_name}/ckpts/llama"
    for arguments in (
        ("push", tmp_path / "model", f"{run}@1"),
        ("verify", run),
        ("restore", run, tmp_path / "back"),
        ("gc", run, "--keep-last", "1", "--yes"),
        ("verify", run),
    ):
        command = [sys.executable, "-m", "ckptstore.cli.main", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "back" / "weights").read_bytes() == bytes(range(256)) * 200_000
