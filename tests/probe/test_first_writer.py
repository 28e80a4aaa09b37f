"""What the first writer finds out is written down, and what it says is acted upon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.resolve import resolve_attempt
from ckptstore.errors import CheckpointAbortedError, IntegrityError, UnsupportedVerbError
from ckptstore.manifest.codec import decode_store
from ckptstore.manifest.layout import STORE_RECORD_KEY
from ckptstore.opening import layered, prepared_record
from ckptstore.sync.execute import carry_out, plan_runs
from ckptstore.sync.selection import Selection
from ckptstore.sync.transfer import End
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import Buffer, Key, Part, UploadId, Version
from tests.probe import liars
from tests.world import RECORD, RUN, SETTINGS, World

FROZEN = Path(__file__).parent.parent / "frozen" / "v1" / "ckptstore.json"


class Damages(liars.IgnoresChecksums):
    """Takes anything, and one part of an upload arrives with another byte."""

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        arrived = bytearray(b"".join(pieces))
        if part.index == 1:
            arrived[0] ^= 1
        return await super().put_part(key, upload_id, part, [arrived], crc64nvme=crc64nvme)

    async def multipart_complete(
        self,
        key: Key,
        upload_id: UploadId,
        part_etags: Sequence[str],
        *,
        size_bytes: int,
        crc64nvme: int,
    ) -> Version:
        _, parts = self._uploads.pop(upload_id)
        return self._keep(key, b"".join(parts[index] for index in range(len(part_etags))))


@pytest.mark.parametrize(
    ("kind", "create_only", "checksums"),
    [
        (liars.Honest, True, True),
        (liars.IgnoresConditions, False, True),
        (liars.IgnoresChecksums, True, False),
    ],
)
def test_the_first_writer_writes_down_what_it_found(
    kind: type[MemoryStore], create_only: bool, checksums: bool
) -> None:
    async def scenario() -> None:
        backend = kind()
        store = layered(backend, "", SETTINGS)
        record = await prepared_record(store, clock=SystemClock())
        assert (record.create_only, record.checksums) == (create_only, checksums)
        assert await prepared_record(store, clock=SystemClock()) == record
        assert [info.key async for info in backend.list_objects("")] == [STORE_RECORD_KEY]
        assert backend.uploads_open == 0

    run_virtual(scenario())


def test_a_record_from_before_says_nothing_of_checksums() -> None:
    assert decode_store(FROZEN.read_bytes(), "frozen").checksums is None


@pytest.mark.parametrize("checksums", [None, False])
def test_what_nobody_looked_at_is_read_back_before_the_vote(checksums: bool | None) -> None:
    async def scenario() -> None:
        record = msgspec.structs.replace(RECORD, checksums=checksums)
        world = World(Damages(), world_size=2, record=record)
        ended = await world.save(await world.begin())
        aborted = [isinstance(one, CheckpointAbortedError) for one in ended]
        assert all(aborted) == (checksums is False)
        if checksums is False:
            assert "what was sent is not what the store holds" in str(ended[0])
            assert "block 2 at byte 4" in str(ended[0])

    run_virtual(scenario())


def test_what_arrived_right_is_committed_after_it_was_read_back() -> None:
    async def scenario() -> None:
        record = msgspec.structs.replace(RECORD, checksums=False)
        world = World(liars.IgnoresChecksums(), world_size=1, record=record)
        [commit] = await world.save(await world.begin())
        assert not isinstance(commit, BaseException), commit

    run_virtual(scenario())


def test_a_copy_is_read_back_as_well() -> None:
    async def scenario() -> None:
        world = World(liars.Honest(), world_size=1)
        await world.save(await world.begin())
        source, target = End(store=world.store, name="a"), End(store=Damages(), name="b")
        report = await carry_out(
            await plan_runs(source, target, [RUN], Selection()),
            source,
            target,
            record=msgspec.structs.replace(RECORD, checksums=False),
            clock=world.clock,
            deadline=Deadline.after(100.0),
            settings=SETTINGS.transfer,
        )
        [failure] = report.failed
        assert isinstance(failure.error, IntegrityError)
        assert "what was sent is not" in str(failure.error)

    run_virtual(scenario())


def test_without_put_if_absent_nobody_else_decides_or_collects_what_is_undecided() -> None:
    async def scenario() -> None:
        record = msgspec.structs.replace(RECORD, create_only=False)
        world = World(liars.IgnoresConditions(), world_size=1, record=record)
        attempt = await world.begin()
        with pytest.raises(UnsupportedVerbError, match="its own coordinator only"):
            await resolve_attempt(world.store, attempt, create_only=False, clock=world.clock)

    run_virtual(scenario())
