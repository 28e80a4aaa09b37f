"""Find a committed checkpoint and read its manifest, believing nothing on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from ckptstore.clock import Clock, Deadline, SystemClock
from ckptstore.commit.catalog import (
    CatalogStore,
    commits_of_step,
    latest_commit,
    list_checkpoints,
    matching_uids,
    read_decision,
)
from ckptstore.commit.pins import PinStore, pinned
from ckptstore.commit.retire import is_retired, removed
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import CheckpointNotFoundError, Damage, IntegrityError, ObjectNotFoundError
from ckptstore.integrity import sha256_hex
from ckptstore.location import AtStep, ByUid, Latest, Selector
from ckptstore.manifest.codec import decode_rank_record
from ckptstore.manifest.model import Commit, Failed, Manifest, Ready, RecordRef
from ckptstore.store import SupportsGet

NEAREST_STEPS_MAX: Final = 5
LATEST_TRIES_MAX: Final = 5


@asynccontextmanager
async def opened_checkpoint(
    store: PinStore,
    run: str,
    selector: Selector,
    *,
    holder: str,
    deadline: Deadline,
    clock: Clock | None = None,
) -> AsyncIterator[Manifest]:
    """Find a checkpoint and keep retention away from it while the block reads it.

    For whoever reads data; ``holder`` says what for. Raises what ``find_checkpoint`` and
    ``read_manifest`` raise, and ``CheckpointNotFoundError`` if retention removed it meanwhile.
    ``deadline`` bounds the opening, not the block.
    """
    async with AsyncExitStack() as pins:
        async with deadline.enforce(f"run {run}: opening checkpoint @{selector}"):
            for tries_left in reversed(range(LATEST_TRIES_MAX)):
                commit = await find_checkpoint(store, run, selector)
                pin = pinned(
                    store,
                    run,
                    commit.attempt.uid,
                    clock=clock or SystemClock(),
                    holder=holder,
                    deadline=deadline,
                )
                try:
                    await pins.enter_async_context(pin)
                    break
                except CheckpointNotFoundError:
                    # The latest is retired only when there is a later one: look again.
                    if not isinstance(selector, Latest) or not tries_left:
                        raise
            manifest = await read_manifest(store, commit)
        yield manifest


async def find_checkpoint(store: CatalogStore, run: str, selector: Selector) -> Commit:
    """Return the decision of the checkpoint that the selector means.

    Raises ``CheckpointNotFoundError``, naming what there is instead, if there is no such
    committed checkpoint. Any other error means that it cannot be told: never take it for
    "there is none" and start from zero.
    """
    match selector:
        case Latest():
            commit = await latest_commit(store, run)
        case AtStep(step):
            commit = next(iter(await commits_of_step(store, run, step)), None)
        case ByUid(text):
            commit = await _by_uid(store, run, text)
    if commit is None:
        raise CheckpointNotFoundError(await _what_there_is(store, run, selector))
    return commit


async def read_manifest(store: SupportsGet, commit: Commit) -> Manifest:
    """Return all that the checkpoint consists of, every rank record proved to be the one
    that was decided on.

    Raises ``IntegrityError`` if a record is missing, damaged or not that one, and
    ``CheckpointNotFoundError`` if that is because retention removed the checkpoint.
    """
    run, uid = commit.attempt.run, commit.attempt.uid

    async def read(ref: RecordRef) -> Ready:
        return await read_rank_record(store, ref)

    try:
        records = await map_concurrently(read, commit.records)
    except IntegrityError:
        if await is_retired(store, run, uid):
            raise removed(run, uid) from None
        raise
    try:
        return Manifest(commit, tuple(records))
    except ValueError as error:
        raise IntegrityError(f"the rank records of {uid} do not fit together: {error}") from error


async def _by_uid(store: CatalogStore, run: str, text: str) -> Commit | None:
    uids = await matching_uids(store, run, text)
    if len(uids) > 1:
        raise CheckpointNotFoundError(
            f"run {run}: @{text} could be {' or '.join(uids)}; give the whole uid"
        )
    decision = await read_decision(store, run, uids[0]) if uids else None
    return decision if isinstance(decision, Commit) else None


async def _what_there_is(store: CatalogStore, run: str, selector: Selector) -> str:
    infos = await list_checkpoints(store, run)
    wanted = f"run {run} has no committed checkpoint"
    if not infos:
        return f"{wanted}: nothing was ever saved under that name here; check the URL"
    committed = sorted({info.step for info in infos if info.state == "committed"})
    if not isinstance(selector, Latest):
        wanted += f" @{selector}"
    for info in infos:
        if str(selector) in (str(info.step), info.uid, info.uid[-8:]):
            wanted += f"; attempt {info.uid} is {info.state}" + (info.reason and f": {info.reason}")
            wanted += "; run `ckptstore resolve`" if info.state == "undecided" else ""
    if not committed:
        return f"{wanted}; none of its {len(infos)} attempts is committed"
    if isinstance(selector, AtStep):
        committed.sort(key=lambda step: abs(step - selector.step))
    steps = ", ".join(str(step) for step in sorted(committed[:NEAREST_STEPS_MAX]))
    return f"{wanted}; committed steps near it: {steps} (`ckptstore ls` shows all)"


async def read_rank_record(store: SupportsGet, ref: RecordRef) -> Ready:
    """Return one rank's record, proved to be the one that was decided on.

    Raises ``IntegrityError``, with the damage, if it is missing, damaged or another one.
    """
    try:
        data = await store.get(ref.key)
    except ObjectNotFoundError as error:
        damage = Damage(ref.key, 0, 0, ref.sha256, "missing")
        raise IntegrityError(f"{ref.key}: the rank record is missing", damage=(damage,)) from error
    found = sha256_hex(data)
    if found != ref.sha256:
        raise IntegrityError(
            f"{ref.key} is not the record that was decided on: expected SHA-256 {ref.sha256}, "
            f"found {found}",
            damage=(Damage(ref.key, 0, 0, ref.sha256, found),),
        )
    record = decode_rank_record(data, ref.key)
    if isinstance(record, Failed):
        raise IntegrityError(
            f"{ref.key} was committed although its rank failed",
            damage=(Damage(ref.key, 0, 0, "READY", "FAILED"),),
        )
    return record
