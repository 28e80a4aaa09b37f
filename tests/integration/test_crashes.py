"""Real processes, killed and stopped, on a real server; and the server killed as well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from ckptstore.location import StoreLocation, parse_store
from ckptstore.manifest.model import Attempt
from ckptstore.opening import opened_store
from ckptstore.store import ObjectStore
from localstack.kinds import KINDS
from localstack.servers import BUCKET, Server, make_bucket
from tests.crashes.inspection import Expected, inspected
from tests.crashes.laboratory import check_summary, run_lab
from tests.crashes.plan import WORLD_SIZE, At, Moment
from tests.crashes.rank import (
    COMMITTED,
    IN_DOUBT,
    Answer,
    Begin,
    StrikeLayer,
    answer_of_save,
    begun,
)
from tests.crashes.shards import SETTINGS
from tests.integration.buckets import Bucket, use_server

pytestmark = pytest.mark.integration

RUN: Final = "killed-server"
PATIENT_S: Final = 60.0
HASTY_S: Final = 3.0


@pytest.mark.parametrize("server_name", ["seaweedfs"])
def test_whoever_is_killed_or_stopped_no_promise_is_broken(bucket: Bucket) -> None:
    summary = run_lab(f"s3://{bucket.name}/lab", trials=15, seed=24, at_once=4)
    check_summary(summary)


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a server that nobody else minds to lose."""
    server = Server(KINDS["seaweedfs"], tmp_path / "server")
    try:
        make_bucket(server.url)
        use_server(server.name, server.url, monkeypatch)
        yield server
    finally:
        server.stop()


class ServerJob:
    """The ranks of a job, each with a connection of its own, and a server that may go."""

    def __init__(self, location: StoreLocation, stores: list[ObjectStore]) -> None:
        self._location = location
        self._stores = stores
        self._step = 0

    async def begin(self, deadline_s: float) -> Attempt:
        self._step += 1
        order = Begin(
            run=RUN,
            step=self._step,
            incarnation=None if self._step == 1 else 1,
            attempt_number=0,
            nonce=f"{self._step:07x}a",
            deadline_s=deadline_s,
        )
        return await begun(self._stores[0], order)

    async def save(
        self, attempt: Attempt, deadline_s: float, *strikes: StrikeLayer
    ) -> list[Answer]:
        """Save on all ranks; the first ones see the store through ``strikes``."""
        stores = [*strikes, *self._stores[len(strikes) :]]
        return await asyncio.gather(
            *(
                answer_of_save(store, self._location, rank, attempt, deadline_s)
                for rank, store in enumerate(stores)
            )
        )


async def test_a_server_that_is_killed_in_the_middle_of_saves_loses_nothing(
    own_server: Server,
) -> None:
    location = parse_store(f"s3://{BUCKET}/store")
    in_the_middle = Moment(At.REQUEST, 0.5, landed=False)
    at_the_end = Moment(At.DECISION, 0.0, landed=False)
    killed = 0

    def kill() -> None:
        nonlocal killed
        killed += 1
        own_server.kill()

    def kill_and_restart() -> None:
        kill()
        own_server.restart()

    async with AsyncExitStack() as opened:
        stores = [
            await opened.enter_async_context(opened_store(location, SETTINGS))
            for _ in range(WORLD_SIZE)
        ]
        job = ServerJob(location, stores)
        endings: dict[str, str | None] = {}
        for moment in (None, in_the_middle, at_the_end):
            attempt = await job.begin(PATIENT_S)
            strike = StrikeLayer(stores[0], moment, kill_and_restart, requests=8)
            answers = await job.save(attempt, PATIENT_S, strike)
            assert {answer.ending for answer in answers} == {COMMITTED}, answers
            endings[attempt.uid] = COMMITTED
        assert killed == 2

        attempt = await job.begin(HASTY_S)
        answers = await job.save(attempt, HASTY_S, StrikeLayer(stores[0], at_the_end, kill))
        assert killed == 3
        assert {answer.ending for answer in answers} == {IN_DOUBT}, answers
        assert max(answer.seconds for answer in answers) < HASTY_S + 2
        endings[attempt.uid] = COMMITTED  # All were ready, so that is how it is resolved.

        own_server.restart()
        await asyncio.to_thread(lambda: own_server.url)
        findings = await inspected(stores[0], location, Expected(RUN, endings, attempt.uid))
        assert findings.violations == ()
        last = await job.begin(PATIENT_S)
        answers = await job.save(last, PATIENT_S)
        assert {answer.ending for answer in answers} == {COMMITTED}, answers
