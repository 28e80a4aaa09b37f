"""A directory becomes a checkpoint, on one node and on several."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline
from ckptstore.commit.catalog import list_checkpoints, list_undecided
from ckptstore.errors import (
    CheckpointAbortedError,
    ConflictError,
    DeadlineExceededError,
    StoreError,
    UnsupportedVerbError,
    UsageError,
)
from ckptstore.fetch.restore import restore_checkpoint
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import AtStep, Latest, Selector
from ckptstore.manifest.model import Commit
from ckptstore.opening import layered, prepared_record
from ckptstore.push.directory import Pushed, push_directory
from ckptstore.push.rendezvous import Meeting, Part
from ckptstore.store import OVERWRITE, ObjectStore
from ckptstore.testing.faults import Fault, FaultLayer
from ckptstore.testing.virtual_time import VirtualClock, run_virtual
from ckptstore.types import Buffer, Capabilities, Key, PutMode, UploadId, Version
from tests.cli.files import Files, files_in, write_files
from tests.world import RECORD, RUN, SETTINGS

FILES: Files = {"a": b"0123456789", "deep/b": b"xyz", "empty": b""}


async def push(
    directory: Path,
    store: ObjectStore,
    *,
    step: int = 5,
    part: Part | None = None,
    again: bool = False,
    deadline_s: float = 20.0,
) -> Pushed:
    return await push_directory(
        directory,
        store,
        run=RUN,
        step=step,
        deadline=Deadline.after(deadline_s),
        part=part,
        again=again,
        settings=SETTINGS,
    )


async def restored(
    store: ObjectStore, destination: Path, selector: Selector | None = None
) -> Files:
    commit = await find_checkpoint(store, RUN, selector or Latest())
    manifest = await read_manifest(store, commit)
    await restore_checkpoint(store, manifest, destination, settings=SETTINGS.transfer)
    return files_in(destination)


def of_two(rank: int, job: str = "job-1") -> Part:
    return Part(rank=rank, world_size=2, job=job)


async def states_in(store: ObjectStore) -> list[str]:
    return [info.state for info in await list_checkpoints(store, RUN)]


async def test_what_was_pushed_comes_back(tmp_path: Path) -> None:
    store = MemoryStore()
    pushed = await push(write_files(tmp_path / "in", FILES), store)
    assert (pushed.files, pushed.bytes, pushed.latest) == (3, 13, True)
    assert pushed.commit.attempt.step == 5
    assert await restored(store, tmp_path / "out") == FILES


async def test_many_files_never_need_many_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    directory = write_files(tmp_path / "in", {f"{n:04d}": b"x" for n in range(1000)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        pushed = await push(directory, MemoryStore())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert pushed.files == 1000


async def test_a_committed_step_is_refused_unless_again(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    first = await push(directory, store)
    write_files(directory, {"a": b"other"})
    with pytest.raises(ConflictError, match="step 5 is committed already.* --again"):
        await push(directory, store)
    assert (await restored(store, tmp_path / "one", AtStep(5)))["a"] == FILES["a"]
    second = await push(directory, store, again=True)
    assert second.commit.attempt.uid != first.commit.attempt.uid
    assert (await restored(store, tmp_path / "two", AtStep(5)))["a"] == b"other"


async def test_a_step_that_was_only_aborted_may_be_pushed(tmp_path: Path) -> None:
    store = MemoryStore()
    faults = FaultLayer(store)
    directory = write_files(tmp_path / "in", {"a": b"0123456789"})
    await prepared_record(store, clock=VirtualClock())
    faults.script("put_part", Fault(StoreError("as if")))
    with pytest.raises(CheckpointAbortedError, match="as if"):
        await push(directory, faults)
    faults.assert_all_used()
    await push(directory, store)
    assert await states_in(store) == ["committed", "aborted"]


async def test_the_push_that_began_last_is_the_latest_whatever_its_step(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    await push(directory, store, step=1000)
    assert (await push(directory, store, step=5)).latest
    assert (await find_checkpoint(store, RUN, Latest())).attempt.step == 5


async def test_a_push_that_a_later_one_overtook_says_so(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)

    class Overtaken(FaultLayer):
        async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
            if "/decisions/" in key:
                await push(directory, store, step=6)
            return await super().put(key, data, mode=mode)

    assert (await push(directory, Overtaken(store))).latest is False
    assert (await find_checkpoint(store, RUN, Latest())).attempt.step == 6


async def test_a_store_that_fails_after_the_commit_does_not_fail_the_push(tmp_path: Path) -> None:
    faults = FaultLayer(MemoryStore())
    directory = write_files(tmp_path / "in", FILES)

    class Failing(FaultLayer):
        async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
            if "/decisions/" in key:
                faults.script("list_objects", Fault(StoreError("as if")))
            return await super().put(key, data, mode=mode)

    assert (await push(directory, Failing(faults))).latest is None
    faults.assert_all_used()


async def test_a_changing_file_aborts_the_push_and_names_it(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", {"a": b"0123456789"})

    class Meddling(FaultLayer):
        async def multipart_create(self, key: Key) -> UploadId:
            write_files(directory, {"a": b"9876543210+"})
            return await super().multipart_create(key)

    with pytest.raises(CheckpointAbortedError, match="in/a changed while it was pushed") as raised:
        await push(directory, Meddling(store))
    assert isinstance(raised.value.__cause__, ConflictError)
    assert await states_in(store) == ["aborted"]
    assert store.uploads_open == 0


async def test_two_nodes_make_one_checkpoint(tmp_path: Path) -> None:
    store = MemoryStore()
    one = write_files(tmp_path / "one", {"shared": b"same", "rank-0": b"0"})
    two = write_files(tmp_path / "two", {"shared": b"same", "rank-1": b"1"})
    joined, opened = await asyncio.gather(
        push(two, store, part=of_two(1)), push(one, store, part=of_two(0))
    )
    assert opened.commit == joined.commit
    assert await restored(store, tmp_path / "out") == {
        "shared": b"same",
        "rank-0": b"0",
        "rank-1": b"1",
    }


async def test_jobs_that_push_the_same_step_at_once_do_not_mix(tmp_path: Path) -> None:
    store = MemoryStore()
    names = [(job, rank) for job in ("A", "B") for rank in (0, 1)]
    pushes = [
        push(
            write_files(tmp_path / f"{job}{rank}", {f"rank-{rank}": job.encode()}),
            store,
            part=of_two(rank, job),
        )
        for job, rank in names
    ]
    done = await asyncio.gather(*pushes)
    assert done[0].commit == done[1].commit != done[2].commit == done[3].commit
    for number, commit in enumerate([done[0].commit, done[2].commit]):
        manifest = await read_manifest(store, commit)
        out = tmp_path / f"out-{number}"
        await restore_checkpoint(store, manifest, out, settings=SETTINGS.transfer)
        assert set(files_in(out).values()) == {b"AB"[number : number + 1]}


async def test_a_failed_node_aborts_the_push_on_all_nodes(tmp_path: Path) -> None:
    store = MemoryStore()
    faults = FaultLayer(store)
    await prepared_record(store, clock=VirtualClock())
    faults.script("put_part", Fault(StoreError("as if")))
    directory = write_files(tmp_path / "in", {"a": b"0123456789"})
    ended = await asyncio.gather(
        push(directory, store, part=of_two(0)),
        push(directory, faults, part=of_two(1)),
        return_exceptions=True,
    )
    faults.assert_all_used()
    assert [type(error) for error in ended] == [CheckpointAbortedError] * 2
    assert await states_in(store) == ["aborted"]


async def test_a_job_id_is_good_for_one_push(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    await asyncio.gather(*(push(directory, store, part=of_two(rank)) for rank in (0, 1)))
    for rank in (0, 1):
        with pytest.raises(ConflictError, match=r"new --job"):
            await push(directory, store, part=of_two(rank), again=True)
    assert await states_in(store) == ["committed"]


async def test_a_dead_push_of_the_same_job_is_neither_joined_nor_left_undecided(
    tmp_path: Path,
) -> None:
    """Rank 0 was ready and died; what it wrote must not meet what is pushed later."""
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    dead = asyncio.create_task(push(directory, Mute(store), part=of_two(0)))
    await until_voted(store)
    dead.cancel()
    await asyncio.gather(dead, return_exceptions=True)
    assert len(await list_undecided(store, RUN)) == 1
    joined = asyncio.create_task(push(directory, store, part=of_two(1)))
    with pytest.raises(ConflictError, match="was used before"):
        await push(directory, store, part=of_two(0))
    with pytest.raises(CheckpointAbortedError, match="used twice"):
        await joined
    assert await states_in(store) == ["aborted"]


class Mute(FaultLayer):
    """A store that no decision gets through to, as if this process had been killed by then."""

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        if "/decisions/" in key:
            raise StoreError("this process is dead")
        return await super().put(key, data, mode=mode)


async def until_voted(store: MemoryStore) -> None:
    async with asyncio.timeout(10):
        while True:
            keys = [info.key async for info in store.list_objects(f"runs/{RUN}/attempts")]
            if any("/rank-" in key for key in keys):
                return
            await asyncio.sleep(0)


async def test_two_processes_with_one_rank_do_not_mix(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    ended = await asyncio.gather(
        push(directory, store, part=of_two(0)),
        push(directory, store, part=of_two(1)),
        push(directory, store, part=of_two(1)),
        return_exceptions=True,
    )
    refused = [error for error in ended if isinstance(error, ConflictError)]
    assert len(refused) == 1
    assert "another process already pushes as rank 1" in str(refused[0])
    assert len([one for one in ended if isinstance(one, Pushed)]) == 2


def meeting(store: ObjectStore, part: Part) -> Meeting:
    return Meeting(
        store=store,
        record=RECORD,
        run=RUN,
        step=5,
        part=part,
        clock=VirtualClock(),
        settings=SETTINGS.commit,
    )


class Interleaved(FaultLayer):
    """A store whose requests take turns, as those of several processes do."""

    async def get(self, key: Key) -> bytes:
        try:
            return await super().get(key)
        finally:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("at_once", "attempts"), [(True, 2), (False, 1)])
async def test_two_processes_with_rank_0_end_with_nothing_committed(
    at_once: bool, attempts: int
) -> None:
    store = MemoryStore()
    seen = Interleaved(store) if at_once else store
    deadline = Deadline.after(60.0)
    ended = await asyncio.gather(
        meeting(seen, of_two(0)).attempt(deadline),
        meeting(seen, of_two(0)).attempt(deadline),
        return_exceptions=True,
    )
    assert len([error for error in ended if isinstance(error, ConflictError)]) == 1
    assert await states_in(store) == ["aborted"] * attempts


async def test_nodes_that_were_told_different_world_sizes_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    coordinator = asyncio.create_task(push(directory, store, part=of_two(0), deadline_s=2.0))
    with pytest.raises(UsageError, match="from 2 nodes, this one was told 3; give all of them"):
        await push(directory, store, part=Part(rank=2, world_size=3, job="job-1"))
    coordinator.cancel()
    await asyncio.gather(coordinator, return_exceptions=True)
    assert await states_in(store) == ["aborted"]


def test_a_node_that_waits_in_vain_says_for_whom() -> None:
    async def wait() -> None:
        await meeting(MemoryStore(), of_two(1)).attempt(Deadline.after(1800.0))

    with pytest.raises(DeadlineExceededError, match="rank 0 of job 'job-1': not done within 1800"):
        run_virtual(wait())


async def test_nodes_cannot_meet_in_a_store_without_put_if_absent(tmp_path: Path) -> None:
    store = MemoryStore(Capabilities(create_only=False))
    directory = write_files(tmp_path / "in", FILES)
    with pytest.raises(UnsupportedVerbError, match="push from one node"):
        await push(directory, store, part=of_two(0))
    await push(directory, store)


@pytest.mark.parametrize(
    ("rank", "world_size", "job", "said"),
    [
        (2, 2, "j", "no rank 2 in a world of 2; ranks count from 0"),
        (-1, 2, "j", "no rank -1"),
        (0, 0, "j", "at least 1"),
        (0, 2, None, "same --job ID"),
        (1, 2, "", "same --job ID"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(
    rank: int, world_size: int, job: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Part(rank=rank, world_size=world_size, job=job)


async def test_an_interrupted_coordinator_leaves_nothing_undecided(tmp_path: Path) -> None:
    store = MemoryStore()
    directory = write_files(tmp_path / "in", FILES)
    waiting = asyncio.create_task(push(directory, store, part=of_two(0)))
    await until_voted(store)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await states_in(store) == ["aborted"]
    assert await list_undecided(store, RUN) == []


async def test_the_layers_of_the_product_change_nothing(tmp_path: Path) -> None:
    store = layered(MemoryStore(), "pre/fix", SETTINGS)
    directory = write_files(tmp_path / "in", FILES)
    commit: Commit = (await push(directory, store)).commit
    assert commit.objects == 3
    assert await restored(store, tmp_path / "out") == FILES
