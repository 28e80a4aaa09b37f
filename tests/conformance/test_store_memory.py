"""The contract over the reference backend, bare and under every layer."""

from __future__ import annotations

import random

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.layers.limit import LimitLayer
from ckptstore.layers.prefix import PrefixLayer
from ckptstore.layers.retry import RetryLayer
from ckptstore.layers.timeout import TimeoutLayer
from ckptstore.opening import layered
from ckptstore.settings import RequestSettings, RetrySettings, Settings
from ckptstore.store import ObjectStore
from ckptstore.testing.conformance import StoreContract
from ckptstore.testing.faults import FaultLayer


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


class TestPrefixOverMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return PrefixLayer(MemoryStore(), "some/prefix")


class TestTimeoutOverMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return TimeoutLayer(MemoryStore(), RequestSettings())


class TestLimitOverMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return LimitLayer(MemoryStore(), 1)


class TestRetryOverMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        settings = RetrySettings(backoff_s_max=0.001)
        return RetryLayer(FaultLayer(MemoryStore()), settings, rng=random.Random(0))


class TestStackOverMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return layered(MemoryStore(), "some/prefix", Settings())
