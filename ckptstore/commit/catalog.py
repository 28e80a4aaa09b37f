"""What the decisions of a run say there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ckptstore.concurrency import map_concurrently
from ckptstore.errors import IntegrityError, ObjectNotFoundError
from ckptstore.manifest.codec import decode_attempt, decode_decision, decode_incarnation
from ckptstore.manifest.layout import (
    Uid,
    attempts_prefix,
    decision_key,
    decisions_prefix,
    incarnation_key,
    incarnations_prefix,
    parse_uid,
    retired_prefix,
    runs_prefix,
    uid_of_decision,
)
from ckptstore.manifest.model import Attempt, Commit, Decision
from ckptstore.store import SupportsGet, SupportsList
from ckptstore.types import Key

State: TypeAlias = Literal["committed", "aborted", "undecided", "retired"]


class CatalogStore(SupportsGet, SupportsList, Protocol):
    """All that looking around needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One attempt, as ``ls`` shows it. Sizes are known once it is committed."""

    run: str
    step: int
    uid: str
    state: State
    ranks: int
    bytes: int = 0
    objects: int = 0
    committed_at: float | None = None  # Seconds since 1970.
    reason: str = ""


async def latest_commit(store: CatalogStore, run: str) -> Commit | None:
    """Return the newest commit of the newest incarnation, else what that one resumed from.

    ``None`` means that the listing succeeded and there is none. A commit that an earlier
    incarnation made later, a zombie's, is never the answer.
    """
    # In this order: what is true of both listings was true at some moment between them. The
    # other way round, a zombie may commit after the next incarnation was claimed, unseen by us.
    newest = await _newest_commit(store, run)
    incarnation = await newest_incarnation(store, run)
    if newest is not None and parse_uid(newest.attempt.uid).incarnation >= incarnation:
        return newest  # Above it only where a copy lacks the claims: a decision proves its claim.
    return await _parent(store, run, incarnation)


async def newest_incarnation(store: SupportsList, run: str) -> int:
    """Return the number of the newest incarnation that was claimed, or 0."""
    async for info in store.list_objects(incarnations_prefix(run)):
        return _incarnation_number(info.key)
    return 0


async def newest_decided(store: SupportsList, run: str) -> int:
    """Return the number of the newest incarnation of which anything was decided, or 0."""
    async for uid in decided_uids(store, run):
        return parse_uid(uid).incarnation
    return 0


async def newest_parent(store: CatalogStore, run: str) -> str | None:
    """Return the uid of what the newest incarnation went on from, if it went on from anything."""
    return await _parent_uid(store, run, await newest_incarnation(store, run))


async def decided_uids(store: SupportsList, run: str) -> AsyncIterator[str]:
    """Yield what was decided, the newest first: of several tries at a step, the last one."""
    tries: list[Uid] = []
    async for info in store.list_objects(decisions_prefix(run)):
        try:
            uid = parse_uid(uid_of_decision(info.key))
        except ValueError as error:
            raise IntegrityError(f"{info.key}: not a name that ckptstore gives: {error}") from error
        if tries and (uid.incarnation, uid.step) != (tries[0].incarnation, tries[0].step):
            for one in sorted(tries, reverse=True):
                yield str(one)
            tries.clear()
        tries.append(uid)
    for one in sorted(tries, reverse=True):
        yield str(one)


async def commits_of_step(store: CatalogStore, run: str, step: int) -> list[Commit]:
    """Return the commits of one step, the newest first."""
    uids = [uid async for uid in decided_uids(store, run) if parse_uid(uid).step == step]
    decisions = await read_decisions(store, run, uids)
    return [decision for decision in decisions if isinstance(decision, Commit)]


async def matching_uids(store: CatalogStore, run: str, text: str) -> list[str]:
    """Return the decided attempts whose uid, or nonce, is ``text``."""
    return [uid async for uid in decided_uids(store, run) if text in (uid, parse_uid(uid).nonce)]


async def read_decision(store: SupportsGet, run: str, uid: str) -> Decision:
    """Return an attempt's decision, proved to be its own.

    Raises ``ObjectNotFoundError`` if it is undecided, and ``IntegrityError``.
    """
    key = decision_key(run, uid)
    decision = decode_decision(await store.get(key), key)
    if (decision.attempt.run, decision.attempt.uid) != (run, uid):
        raise IntegrityError(f"{key} is the decision of another attempt: {decision.attempt.uid}")
    return decision


async def read_decisions(store: SupportsGet, run: str, uids: Sequence[str]) -> list[Decision]:
    """Return the decisions of attempts that were decided, in the order given."""
    return await map_concurrently(lambda uid: read_decision(store, run, uid), uids)


async def list_checkpoints(store: CatalogStore, run: str) -> list[CheckpointInfo]:
    """Return every attempt of a run, the newest incarnation and step first."""
    decided = [uid async for uid in decided_uids(store, run)]
    retired = {
        info.key.rpartition("/")[2] async for info in store.list_objects(retired_prefix(run))
    }
    decisions = await read_decisions(store, run, decided)
    infos = [_described(decision, decision.attempt.uid in retired) for decision in decisions]
    infos += [
        CheckpointInfo(
            run=run,
            step=attempt.step,
            uid=attempt.uid,
            state="undecided",
            ranks=attempt.world_size,
        )
        for attempt in await list_undecided(store, run)
    ]
    return sorted(infos, key=lambda info: parse_uid(info.uid), reverse=True)


async def list_undecided(store: CatalogStore, run: str) -> list[Attempt]:
    """Return the attempts that were begun and neither committed nor aborted."""
    keys = [
        info.key
        async for info in store.list_objects(attempts_prefix(run))
        if info.key.endswith("/begin.json")
    ]
    decided = {uid async for uid in decided_uids(store, run)}  # Listed last, so none is missed.
    open_keys = [key for key in keys if key.split("/")[-2] not in decided]
    return await read_attempts(store, open_keys)


async def read_attempts(store: SupportsGet, begin_keys: Sequence[Key]) -> list[Attempt]:
    """Return the attempts that these ``begin`` records say of, in the order given."""

    async def read(key: Key) -> Attempt:
        return decode_attempt(await store.get(key), key)

    return await map_concurrently(read, begin_keys)


async def list_runs(store: SupportsList) -> list[str]:
    """Return the names of the runs that a store holds."""
    prefix = runs_prefix()
    runs: dict[str, None] = {}
    async for info in store.list_objects(prefix):
        runs.setdefault(info.key.removeprefix(prefix).partition("/")[0])
    return list(runs)


async def _newest_commit(store: CatalogStore, run: str) -> Commit | None:
    """Return the newest commit of the newest incarnation that decided anything."""
    incarnation: int | None = None
    async for uid in decided_uids(store, run):
        if incarnation not in (None, parse_uid(uid).incarnation):
            break
        incarnation = parse_uid(uid).incarnation
        decision = await read_decision(store, run, uid)
        if isinstance(decision, Commit):
            return decision
    return None


async def _parent_uid(store: SupportsGet, run: str, incarnation: int) -> str | None:
    if incarnation == 0:
        return None
    key = incarnation_key(run, incarnation)
    return decode_incarnation(await store.get(key), key).parent_uid


async def _parent(store: SupportsGet, run: str, incarnation: int) -> Commit | None:
    parent_uid = await _parent_uid(store, run, incarnation)
    if parent_uid is None:
        return None
    try:
        decision = await read_decision(store, run, parent_uid)
    except ObjectNotFoundError as error:
        raise IntegrityError(
            f"run {run}: incarnation {incarnation} went on from {parent_uid}, "
            "whose decision is missing"
        ) from error
    return decision if isinstance(decision, Commit) else None


def _incarnation_number(key: Key) -> int:
    name = key.rpartition("/")[2].removesuffix(".json")
    try:
        return int(name.rpartition("-i")[2])
    except ValueError as error:
        raise IntegrityError(f"{key}: not a name that ckptstore gives") from error


def _described(decision: Decision, retired: bool) -> CheckpointInfo:
    attempt = decision.attempt
    if isinstance(decision, Commit):
        return CheckpointInfo(
            run=attempt.run,
            step=attempt.step,
            uid=attempt.uid,
            state="retired" if retired else "committed",
            ranks=attempt.world_size,
            bytes=decision.data_bytes,
            objects=decision.objects,
            committed_at=decision.decided_unix_s,
        )
    return CheckpointInfo(
        run=attempt.run,
        step=attempt.step,
        uid=attempt.uid,
        state="aborted",
        ranks=attempt.world_size,
        reason=decision.reason,
    )
