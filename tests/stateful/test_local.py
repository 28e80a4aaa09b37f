"""The machine over a local directory, in real time."""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory

from hypothesis import settings

from ckptstore.backends.local import LocalStore
from ckptstore.store import ObjectStore
from tests.stateful.machine import CheckpointMachine


class OverLocalDirectory(CheckpointMachine):
    def made_runner(self) -> asyncio.Runner:
        self.directory = TemporaryDirectory()
        return asyncio.Runner()

    def opened(self) -> ObjectStore:
        return LocalStore(self.directory.name)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


TestOverLocalDirectory = OverLocalDirectory.TestCase
TestOverLocalDirectory.settings = settings(
    max_examples=6, stateful_step_count=15, deadline=None, derandomize=True
)
