"""The contract over a local directory, read back as plain files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ckptstore.backends.local import LocalStore
from ckptstore.opening import layered
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance import StoreContract
from ckptstore.types import Key


class TestLocal(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        self.root = tmp_path / "store"
        store = LocalStore(self.root)
        yield store
        await store.aclose()

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        return (self.root / key).read_bytes()


class TestStackOverLocal(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        self.root = tmp_path / "store"
        store = layered(LocalStore(self.root), "some/prefix", Settings())
        yield store
        await store.aclose()

    async def raw_get(self, store: ObjectStore, key: Key) -> bytes:
        return (self.root / "some/prefix" / key).read_bytes()
