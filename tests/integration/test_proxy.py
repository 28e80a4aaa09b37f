"""Real clients and real servers, and between them a connection that fails as scripted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ckptstore.backends.s3.store import open_s3_store
from ckptstore.cli.exit_codes import DEADLINE, UNAVAILABLE, code_of
from ckptstore.errors import (
    CheckpointAbortedError,
    CheckpointInDoubtError,
    StalledError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.manifest.model import Commit
from ckptstore.testing.proxy import (
    Cut,
    Drip,
    DropAnswer,
    Fault,
    FaultProxy,
    Reply,
    Reset,
    Stall,
    Way,
)
from ckptstore.types import MIB, ByteRange, Part, parse_key
from tests.integration.buckets import Bucket, use_server
from tests.proxy.job import QUICK, RUN, Job, nothing_left, opened_job

pytestmark = pytest.mark.integration

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
SEAWEEDFS = pytest.mark.parametrize("server_name", ["seaweedfs"])
HASTY_S = 2.0
FIRST_PART = ".file?partNumber=1"  # Of a shard; the look at a new store sends one as well.
RESTORE_S = 4.0  # Enough to get as far as the data, on a busy machine.
BRISK_S = 4.0  # A fifth of it is left to clean up, vote and decide in.
AFTER_DEADLINE_S_MAX = 2.0
START_S_MAX = 3.0  # Of the command, on a busy machine.


@pytest.fixture
def proxy(
    bucket: Bucket, server_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    with FaultProxy(bucket.endpoint_url) as between:
        use_server(server_name, between.url, monkeypatch)
        yield between


@pytest.fixture
def url(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/store"


@pytest.fixture
async def job(proxy: FaultProxy, url: str) -> AsyncIterator[Job]:
    """Yield a job whose end, and the proxy's, must leave nothing."""
    async with nothing_left(), opened_job(url) as ranks:
        yield ranks


def uploads_open(bucket: Bucket) -> int:
    return len(bucket.raw.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []))


async def check_saves(job: Job, bucket: Bucket) -> None:
    """A save, from its very beginning, is committed, and reads back."""
    attempt = await job.begin()
    results = await job.save(attempt)
    assert [type(result) for result in results] == [Commit] * 2, results
    await job.check_latest(attempt)
    assert uploads_open(bucket) == 0


@pytest.mark.parametrize(
    "record", ["/ckptstore.json", "/incarnations/", "/begin.json", "/rank-000001", "/decisions/"]
)
async def test_a_record_whose_answer_is_lost_is_read_back_and_found_to_be_our_own(
    job: Job, proxy: FaultProxy, bucket: Bucket, record: str
) -> None:
    proxy.script(DropAnswer(), method="PUT", path=record)
    await check_saves(job, bucket)
    proxy.assert_all_used()


async def test_a_decision_that_the_client_repeats_and_the_server_then_refuses_is_a_commit(
    job: Job, proxy: FaultProxy
) -> None:
    attempt = await job.begin()
    proxy.script(DropAnswer(), method="PUT", path="/decisions/")
    results = await job.save(attempt)
    proxy.assert_all_used()
    assert [type(result) for result in results] == [Commit] * 2, results
    puts = [target for _, method, target in proxy.requests if method == "PUT"]
    # The HTTP client sends it again by itself, when a connection ends that it used before.
    assert sum("/decisions/" in target for target in puts) == 2
    await job.check_latest(attempt)


async def test_a_completed_upload_whose_answer_is_lost_is_found_to_be_there(
    job: Job, proxy: FaultProxy, bucket: Bucket
) -> None:
    proxy.script(DropAnswer(), method="POST", path="uploadId=")
    await check_saves(job, bucket)
    proxy.assert_all_used()


@pytest.mark.parametrize(
    "fault",
    [
        Stall(300_000, Way.REQUEST),
        Reset(300_000, Way.REQUEST),
        Cut(300_000, Way.REQUEST),
        Reset(0, Way.REQUEST),
        Reset(),
        DropAnswer(),
        Reply(503, SLOW_DOWN),
    ],
    ids=str,
)
async def test_a_part_that_fails_on_the_way_is_sent_again_on_a_new_connection(
    job: Job, proxy: FaultProxy, bucket: Bucket, fault: Fault
) -> None:
    proxy.script(fault, method="PUT", path=FIRST_PART)
    await check_saves(job, bucket)
    proxy.assert_all_used()
    sent = [number for number, _, target in proxy.requests if FIRST_PART in target]
    assert len(sent) == 2
    assert isinstance(fault, Reply) or sent[0] != sent[1]


async def test_a_part_that_is_not_read_on_the_other_side_stalls_in_time(
    proxy: FaultProxy, bucket: Bucket
) -> None:
    async with nothing_left():
        store = await open_s3_store(bucket.name, QUICK.request)
        try:
            key = parse_key("large")
            data = bytes(24 * MIB)  # More than all the buffers on the way can hold.
            upload_id = await store.multipart_create(key)
            proxy.script(Stall(MIB, Way.REQUEST), path="partNumber=1")
            part = Part(0, ByteRange(0, len(data)))
            began_s = time.monotonic()
            with pytest.raises(StalledError, match="bytes were sent; its connection was closed"):
                await store.put_part(key, upload_id, part, [data], crc64nvme=crc64nvme(data))
            assert time.monotonic() - began_s < QUICK.request.stall_s_max + 1.5
            await store.multipart_abort(key, upload_id)
        finally:
            await store.aclose()
    proxy.assert_all_used()
    assert uploads_open(bucket) == 0


@pytest.mark.parametrize(
    "fault", [Cut(100_000), Reset(100_000), Stall(100_000), Reply(503, SLOW_DOWN)], ids=str
)
async def test_an_answer_with_data_that_ends_early_is_asked_for_again(
    job: Job, proxy: FaultProxy, bucket: Bucket, fault: Fault
) -> None:
    attempt = await job.begin()
    assert [type(result) for result in await job.save(attempt)] == [Commit] * 2
    proxy.script(fault, method="GET", path="/000000-0000.file")
    await job.check_latest(attempt)
    proxy.assert_all_used()


@pytest.mark.parametrize("fault", [Cut(250), Reset(250)], ids=str)
async def test_a_listing_that_ends_early_is_never_taken_for_an_empty_one(
    job: Job, proxy: FaultProxy, bucket: Bucket, fault: Fault
) -> None:
    attempt = await job.begin()
    assert [type(result) for result in await job.save(attempt)] == [Commit] * 2
    proxy.script(fault, method="GET", path="list-type=2", times=2)
    await job.check_latest(attempt)
    proxy.assert_all_used()


FOR_EVER = pytest.mark.parametrize(
    "fault", [Stall(), Drip(1.0), Reply(503, SLOW_DOWN)], ids=["silent", "dripping", "throttling"]
)


@SEAWEEDFS
@FOR_EVER
async def test_a_save_into_a_store_that_went_bad_ends_by_its_deadline(
    job: Job, proxy: FaultProxy, fault: Fault
) -> None:
    attempt = await job.begin(HASTY_S)
    proxy.script(fault, times=None)
    began_s = time.monotonic()
    results = await job.save(attempt, HASTY_S)
    assert time.monotonic() - began_s < HASTY_S + AFTER_DEADLINE_S_MAX
    proxy.assert_all_used()
    for result in results:
        assert isinstance(result, CheckpointInDoubtError), result
        assert code_of(result) in (UNAVAILABLE, DEADLINE)


@SEAWEEDFS
@pytest.mark.parametrize(
    "fault",
    [Stall(MIB, Way.REQUEST), Stall(), Drip(1.0), Reply(503, SLOW_DOWN)],
    ids=["stops reading", "silent", "dripping", "throttling"],
)
async def test_a_store_that_takes_no_parts_aborts_the_save_by_its_deadline(
    job: Job, proxy: FaultProxy, bucket: Bucket, fault: Fault
) -> None:
    attempt = await job.begin(BRISK_S)
    proxy.script(fault, method="PUT", path="partNumber=", times=None)
    began_s = time.monotonic()
    results = await job.save(attempt, BRISK_S)
    assert time.monotonic() - began_s < BRISK_S + AFTER_DEADLINE_S_MAX
    proxy.assert_all_used()
    for result in results:
        assert isinstance(result, CheckpointAbortedError), result
        assert "rank 0" in str(result)
    failed = results[0]
    assert isinstance(failed, BaseException)
    assert code_of(failed) in (UNAVAILABLE, DEADLINE)
    assert uploads_open(bucket) == 0


@SEAWEEDFS
@FOR_EVER
async def test_a_restore_from_a_store_that_went_bad_ends_by_its_deadline(
    job: Job, proxy: FaultProxy, url: str, fault: Fault, tmp_path: Path
) -> None:
    attempt = await job.begin()
    assert [type(result) for result in await job.save(attempt)] == [Commit] * 2
    proxy.script(fault, method="GET", path="/data/", times=None)
    began_s = time.monotonic()
    command = [str(Path(sys.executable).parent / "ckptstore"), "restore", f"{url}/{RUN}"]
    restore = await asyncio.create_subprocess_exec(
        *command,
        str(tmp_path / "restored"),
        "--deadline",
        f"{RESTORE_S:g}s",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, said = await restore.communicate()
    assert time.monotonic() - began_s < RESTORE_S + AFTER_DEADLINE_S_MAX + START_S_MAX
    proxy.assert_all_used()
    assert restore.returncode in (UNAVAILABLE, DEADLINE), said.decode()
    assert f"{RESTORE_S:g} s" in said.decode()
    assert os.listdir(tmp_path) == []
