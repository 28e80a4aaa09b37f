"""Copy one checkpoint, so that a reader of the target sees all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Final

from ckptstore.clock import Clock, Deadline
from ckptstore.commit.pins import pinned
from ckptstore.commit.standing import put_standing
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import (
    ConflictError,
    Damage,
    IntegrityError,
    ObjectNotFoundError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import sha256_hex
from ckptstore.load import read_manifest
from ckptstore.manifest.codec import decode_attempt, decode_decision, decode_incarnation
from ckptstore.manifest.layout import (
    ShardKind,
    begin_key,
    decision_key,
    incarnation_key,
    owner_of_data,
    rank_record_key,
)
from ckptstore.manifest.model import (
    Attempt,
    Commit,
    Incarnation,
    Manifest,
    RecordRef,
    ShardEntry,
    StoreRecord,
)
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.restore.verify import check_arrived, verify_shards, verify_sizes
from ckptstore.settings import TransferSettings
from ckptstore.store import ObjectStore
from ckptstore.sync.plan import same_checkpoint
from ckptstore.types import Buffer, ByteRange, Key
from ckptstore.upload.uploader import Uploader

SEND_TRIES_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One of the two stores, open, and what to call it."""

    store: ObjectStore
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What it took: bytes that were sent, and all that were verified, sent or found there."""

    commit: Commit
    bytes_sent: int
    bytes_verified: int
    objects_sent: int


class StoredShard:
    """A ``ShardSource`` over a shard of a store: what it stages was checked, block by block."""

    def __init__(self, reader: CheckedReader, shard: ShardEntry) -> None:
        self._reader = reader
        self._shard = shard.stored

    def __repr__(self) -> str:
        return f"StoredShard({self._shard.key})"

    @property
    def kind(self) -> ShardKind:
        return ShardKind(self._shard.key.rpartition(".")[2])

    @property
    def size_bytes(self) -> int:
        return self._shard.size_bytes

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        data = bytearray(byte_range.size_bytes)
        await self._reader.read_wanted([Wanted(self._shard, byte_range.start, memoryview(data))])
        return (data,)


class Transfer:
    """Copies checkpoints, one at a time, within one byte budget.

    ``record`` is the target's. Where it keeps no put-if-absent, records are put plainly: copying
    decides nothing, and whoever copies the same writes the same. Where it looks at no checksums,
    what was sent is read back.
    """

    def __init__(
        self,
        source: End,
        target: End,
        *,
        record: StoreRecord,
        clock: Clock,
        settings: TransferSettings,
        progress: Progress,
    ) -> None:
        self._source = source
        self._target = target
        self._record = record
        self._clock = clock
        self._settings = settings
        self._progress = progress
        self._reader = CheckedReader(source.store, settings)
        as_it_is = replace(settings, compression=None)
        self._uploader = Uploader(target.store, as_it_is, progress=progress)

    async def copy_checkpoint(self, commit: Commit, *, deadline: Deadline) -> Copied:
        """Make the target hold the checkpoint, its decision last; what is there is not sent again.

        Raises ``IntegrityError`` if the source's is damaged, ``ConflictError`` if something
        else stands in the target, and ``CheckpointNotFoundError`` if retention let go of it in
        either store. Whatever was raised, no reader of the target sees any of it, unless only
        the answer to the decision was lost; running again goes on where this ended.
        """
        run, uid = commit.attempt.run, commit.attempt.uid
        async with (
            self._pinned(self._source, run, uid, deadline),
            # Data of an attempt that nobody began there is an orphan to the target's collector.
            self._pinned(self._target, run, uid, deadline),
        ):
            manifest = await read_manifest(self._source.store, commit)
            _check_names(manifest)
            copied = await self._copy_data(manifest)
            await map_concurrently(self._copy_rank_record, commit.records)
            await self._copy_begin(commit.attempt)
            await self._copy_decision(commit)
        return copied

    async def copy_claim(self, claim: Incarnation) -> None:
        """Put an incarnation's claim; ``ConflictError`` if another job claimed it there."""
        key = incarnation_key(claim.run, claim.number)
        data = await self._source.store.get(key)
        if decode_incarnation(data, key) != claim:
            raise IntegrityError(f"{key} in {self._source.name} is not what it was a moment ago")
        await self._put(key, data, lambda standing: decode_incarnation(standing, key) == claim)

    def _pinned(
        self, end: End, run: str, uid: str, deadline: Deadline
    ) -> AbstractAsyncContextManager[None]:
        return pinned(end.store, run, uid, clock=self._clock, holder="sync", deadline=deadline)

    async def _copy_data(self, manifest: Manifest) -> Copied:
        shards = await self._lacking(manifest.shards)
        size_bytes = sum(shard.size_bytes for shard in shards)
        total_bytes = manifest.commit.data_bytes
        self._progress.objects_done += len(manifest.shards) - len(shards)
        self._progress.bytes_done += total_bytes - size_bytes
        # The uploader announces what it is given, and the plan has announced all of it before.
        self._progress.objects_total -= len(shards)
        self._progress.bytes_total -= size_bytes
        await self._send(shards)
        return Copied(
            commit=manifest.commit,
            bytes_sent=size_bytes,
            bytes_verified=total_bytes,
            objects_sent=len(shards),
        )

    async def _send(self, shards: Sequence[ShardEntry]) -> None:
        """Send shards; what a lost answer leaves open is found out, and sent again if need be."""
        for tries_left in reversed(range(SEND_TRIES_MAX)):
            sources = [(shard.key, StoredShard(self._reader, shard)) for shard in shards]
            try:
                sent = await self._uploader.upload(sources)
            except (WriteOutcomeUnknownError, ObjectNotFoundError):
                if not tries_left:
                    raise
                shards = await self._lacking(shards)
                continue
            for shard, entry in zip(shards, sent, strict=True):
                _check_same(shard, entry)
            if self._record.checksums is False:
                await check_arrived(self._target.store, sent, settings=self._settings)
            return

    async def _lacking(self, shards: Sequence[ShardEntry]) -> list[ShardEntry]:
        """Return what is not in the target yet; where it keeps no checksum, by reading it back."""
        store = self._target.store
        quick = await verify_sizes(store, shards)
        unknown = [shard for shard in shards if shard.key in frozenset(quick.unverifiable)]
        full = await verify_shards(store, unknown, settings=self._settings)
        lacking = {damage.object for damage in (*quick.damaged, *full.damaged)}
        return [shard for shard in shards if shard.key in lacking]

    async def _copy_rank_record(self, ref: RecordRef) -> None:
        data = await self._source.store.get(ref.key)
        if sha256_hex(data) != ref.sha256:
            damage = Damage(ref.key, 0, 0, ref.sha256, sha256_hex(data))
            raise IntegrityError(
                f"{damage} in {self._source.name}: it changed since it was read", damage=(damage,)
            )
        await self._put(ref.key, data, lambda standing: standing == data)

    async def _copy_begin(self, attempt: Attempt) -> None:
        key = begin_key(attempt.run, attempt.uid)
        try:
            data = await self._source.store.get(key)
        except ObjectNotFoundError as error:
            damage = Damage(key, 0, 0, "a record", "missing")
            raise IntegrityError(f"{damage} in {self._source.name}", damage=(damage,)) from error
        if decode_attempt(data, key) != attempt:
            damage = Damage(key, 0, 0, f"the begin of {attempt.uid}", "another one")
            raise IntegrityError(f"{damage} in {self._source.name}", damage=(damage,))
        await self._put(key, data, lambda standing: standing == data)

    async def _copy_decision(self, commit: Commit) -> None:
        key = decision_key(commit.attempt.run, commit.attempt.uid)
        data = await self._source.store.get(key)
        if decode_decision(data, key) != commit:
            raise IntegrityError(f"{key} in {self._source.name} is not what it was a moment ago")
        await self._put(
            key, data, lambda standing: same_checkpoint(decode_decision(standing, key), commit)
        )

    async def _put(self, key: Key, data: bytes, accepts: Callable[[bytes], bool]) -> None:
        """Put a record once and for all; what stands there already must be acceptable."""
        store = self._target.store
        if self._record.create_only:
            standing = await put_standing(store, key, data)
        else:
            try:
                standing = await store.get(key)
            except ObjectNotFoundError:
                await store.put(key, data)
                return
        if standing != data and not accepts(standing):
            raise ConflictError(
                f"{key} is another record in {self._target.name} than in {self._source.name}; "
                "neither was changed: sync into another store"
            )


def _check_names(manifest: Manifest) -> None:
    """Refuse a manifest that would have us write where another attempt's things lie."""
    run, uid = manifest.attempt.run, manifest.attempt.uid
    keys = [rank_record_key(run, uid, rank) for rank in range(manifest.attempt.world_size)]
    if [ref.key for ref in manifest.commit.records] != keys:
        raise IntegrityError(f"{uid}: its decision names rank records that are not its own")
    for shard in manifest.shards:
        try:
            owner = owner_of_data(shard.key)
        except ValueError as error:
            raise IntegrityError(f"{uid}: {error}") from error
        if owner != (run, uid):
            raise IntegrityError(f"{uid}: {shard.key} belongs to another attempt")


def _check_same(shard: ShardEntry, sent: ShardEntry) -> None:
    if (sent.size_bytes, sent.crc64nvme) != (shard.size_bytes, shard.crc64nvme):
        damage = Damage(shard.key, 0, 0, shard.crc64nvme, sent.crc64nvme)
        raise IntegrityError(f"{damage}: what was sent is not what was read", damage=(damage,))
