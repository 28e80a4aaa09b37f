"""The machine over memory, in virtual time."""

from __future__ import annotations

import asyncio

from hypothesis import settings

from ckptstore.backends.memory import MemoryStore
from ckptstore.store import ObjectStore
from ckptstore.testing.virtual_time import VirtualTimeLoop
from tests.stateful.machine import CheckpointMachine


class OverMemory(CheckpointMachine):
    def made_runner(self) -> asyncio.Runner:
        return asyncio.Runner(loop_factory=VirtualTimeLoop)

    def opened(self) -> ObjectStore:
        return MemoryStore()


TestOverMemory = OverMemory.TestCase
TestOverMemory.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)
