"""Verify whole checkpoints: decision, rank records, and every byte that they promise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ckptstore.commit.catalog import CatalogStore, read_decision
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import Damage, IntegrityError
from ckptstore.load import read_rank_record
from ckptstore.manifest.layout import decisions_prefix, retired_prefix, uid_of_decision
from ckptstore.manifest.model import Commit, Manifest, Ready, RecordRef
from ckptstore.progress import Progress
from ckptstore.restore.sample import Sample, SampledPart, verify_sample
from ckptstore.restore.verify import VerifyReport, VerifyStore, verify_shards, verify_sizes
from ckptstore.settings import TransferSettings


class WholeStore(CatalogStore, VerifyStore, Protocol):
    """All that verifying whole checkpoints needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What became of verifying one checkpoint; without a ``uid`` none could be told."""

    run: str
    uid: str | None
    step: int | None
    report: VerifyReport
    part: SampledPart | None = None  # If not all was looked at.

    @property
    def ok(self) -> bool:
        return self.report.ok and not (self.part and self.part.bytes_left)


async def every_commit(store: CatalogStore, run: str) -> AsyncIterator[Commit | IntegrityError]:
    """Yield every committed, unretired checkpoint of a run, or what is wrong with its decision."""
    retired = {i.key.rpartition("/")[2] async for i in store.list_objects(retired_prefix(run))}
    keys = [info.key async for info in store.list_objects(decisions_prefix(run))]
    for key in keys:
        try:
            uid = uid_of_decision(key)
        except ValueError as error:
            damage = Damage(key, 0, 0, "the name of a decision", str(error))
            yield IntegrityError(f"{key}: {error}", damage=(damage,))
            continue
        if uid in retired:
            continue
        try:
            decision = await read_decision(store, run, uid)
        except IntegrityError as error:
            yield error
            continue
        if isinstance(decision, Commit):
            yield decision


async def verify_checkpoint(
    store: WholeStore,
    commit: Commit,
    *,
    quick: bool = False,
    sample: Sample | None = None,
    start_ppm: int = 0,
    until_s: float | None = None,
    settings: TransferSettings | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Read all of a checkpoint back; damage is reported, not raised, and does not end it.

    ``quick`` reads the records, and compares sizes and the store's own checksums of the data.
    A ``sample``, from ``start_ppm`` on, reads only a part, and until the loop's clock says
    ``until_s``.
    """
    records, damaged = await _records(store, commit)
    shards = [shard for record in records for shard in record.shards]
    part: SampledPart | None = None
    if sample is not None:
        report, part = await verify_sample(
            store,
            shards,
            sample,
            start_ppm=start_ppm,
            until_s=until_s,
            settings=settings or TransferSettings(),
            progress=progress or Progress(),
        )
    elif quick:
        report = await verify_sizes(store, shards)
    else:
        settings = settings or TransferSettings()
        report = await verify_shards(store, shards, settings=settings, progress=progress)
    return Verified(
        run=commit.attempt.run,
        uid=commit.attempt.uid,
        step=commit.attempt.step,
        report=VerifyReport(
            report.objects,
            report.bytes_verified,
            (*damaged, *report.damaged),
            report.unverifiable,
        ),
        part=part,
    )


def unreadable(run: str, error: IntegrityError) -> Verified:
    """Return what a checkpoint is whose decision cannot be believed."""
    damage = error.damage or (Damage(run, 0, 0, "a sound decision", str(error)),)
    return Verified(run=run, uid=None, step=None, report=VerifyReport(0, 0, damage))


async def _records(store: WholeStore, commit: Commit) -> tuple[Sequence[Ready], Sequence[Damage]]:
    """Return the rank records that are what was decided on, and the damage of the others."""

    async def read(ref: RecordRef) -> Ready | IntegrityError:
        try:
            return await read_rank_record(store, ref)
        except IntegrityError as error:
            return error

    found = await map_concurrently(read, commit.records)
    records = [record for record in found if isinstance(record, Ready)]
    damaged = [d for error in found if isinstance(error, IntegrityError) for d in error.damage]
    if not damaged:
        try:
            Manifest(commit, tuple(records))
        except ValueError as error:
            damaged.append(Damage(commit.attempt.uid, 0, 0, "records that fit", str(error)))
    return records, damaged
