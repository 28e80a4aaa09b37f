"""Look at all that a store holds, in the order that makes it safe to judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ckptstore.clock import Clock
from ckptstore.commit.catalog import decided_uids, list_runs, read_attempts, read_decisions
from ckptstore.commit.retire import list_retired
from ckptstore.commit.verified import list_verified
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import IntegrityError
from ckptstore.gc.plan import (
    CollectionPlan,
    Found,
    LeftAlone,
    Rules,
    RunFacts,
    Verdict,
    plan_run,
    unknown_key,
)
from ckptstore.gc.policy import Metrics, RetentionPolicy
from ckptstore.gc.protect import find_protected
from ckptstore.load import read_rank_record
from ckptstore.manifest.layout import (
    DATA_PREFIX,
    attempts_prefix,
    begin_key,
    check_run,
    check_uid,
    data_prefixes,
    owner_of_data,
    pins_prefix,
    runs_prefix,
)
from ckptstore.manifest.model import Commit, Decision, StoreRecord
from ckptstore.store import SupportsGet, SupportsList, SupportsListUploads
from ckptstore.types import Key, ObjectInfo

RUNS_AT_ONCE_MAX: Final = 8
ORPHAN_S_MIN: Final = 24 * 3600.0


class SurveyStore(SupportsGet, SupportsList, SupportsListUploads, Protocol):
    """All that making a plan needs; note that it cannot write or delete."""


@dataclass(slots=True)
class _Survey:
    """What was found of each attempt, by run and uid, and keys that are nobody's."""

    runs: defaultdict[str, defaultdict[str, Found]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Found))
    )
    unknown: list[LeftAlone] = field(default_factory=list)

    def owner(self, key: Key) -> Found | None:
        try:
            run, uid = owner_of_data(key)
        except ValueError:
            self.unknown.append(unknown_key(key))
            return None
        return self.runs[run][uid]

    def record(self, run: str, prefix: str, info: ObjectInfo) -> None:
        try:
            uid = check_uid(info.key.removeprefix(prefix).partition("/")[0])
        except ValueError:
            self.unknown.append(unknown_key(info.key))
            return
        self.runs[run][uid].records.append(info)


async def plan_collection(
    store: SurveyStore,
    run: str | None,
    policy: RetentionPolicy,
    *,
    record: StoreRecord,
    clock: Clock,
    orphans_older_than_s: float = ORPHAN_S_MIN,
) -> CollectionPlan:
    """Return what a collection of a run, or of the whole store, would delete, and why.

    Reads only. Any failure is raised: what could not be listed may be anything, and no plan is
    made of half a listing. It holds the name of every data object in memory.
    """
    rules = Rules(
        policy=policy,
        now_unix_s=clock.unix_s(),
        create_only=record.create_only,
        orphans_older_than_s=orphans_older_than_s,
    )
    survey = _Survey()
    # Data first: whoever writes it began before, so whoever is listed next is not missed.
    await _survey_data(store, run, survey)
    runs = [run] if run else sorted({*survey.runs, *await _list_runs(store, survey)})

    async def plan(name: str) -> list[Verdict]:
        return plan_run(await _facts(store, name, survey, rules, clock), rules)

    planned = await map_concurrently(plan, runs, in_flight_max=RUNS_AT_ONCE_MAX)
    return CollectionPlan.of([*(one for verdicts in planned for one in verdicts), *survey.unknown])


async def _list_runs(store: SurveyStore, survey: _Survey) -> list[str]:
    runs = []
    for name in await list_runs(store):
        try:
            runs.append(check_run(name))
        except ValueError:
            survey.unknown.append(unknown_key(f"{runs_prefix()}{name}"))
    return runs


async def _survey_data(store: SurveyStore, run: str | None, survey: _Survey) -> None:
    async def listed(prefix: str) -> list[ObjectInfo]:
        return [info async for info in store.list_objects(prefix)]

    for infos in await map_concurrently(listed, data_prefixes(run)):
        for info in infos:
            if owner := survey.owner(info.key):
                owner.data.append(info)
    async for upload in store.list_uploads(DATA_PREFIX):
        if owner := survey.owner(upload.key):
            owner.uploads.append(upload)


async def _facts(
    store: SurveyStore, run: str, survey: _Survey, rules: Rules, clock: Clock
) -> RunFacts:
    for prefix in (attempts_prefix(run), pins_prefix(run)):
        async for info in store.list_objects(prefix):
            survey.record(run, prefix, info)
    # Pins before decisions: whoever copies an attempt holds one until it is decided here.
    protected = await find_protected(store, run, clock=clock)
    retired = await list_retired(store, run)
    decided = frozenset([uid async for uid in decided_uids(store, run)])
    decisions = await read_decisions(store, run, sorted(decided - retired))
    undecided = await read_attempts(
        store,
        [
            begin_key(run, uid)
            for uid, found in survey.runs[run].items()
            if found.begun and uid not in decided
        ],
    )
    return RunFacts(
        run=run,
        found=survey.runs[run],
        undecided={attempt.uid: attempt for attempt in undecided},
        decisions={decision.attempt.uid: decision for decision in decisions},
        retired=retired & decided,
        protected=protected.reasons,
        pinned=protected.pinned,
        metrics=await _metrics(store, decisions) if rules.policy.keep_best else {},
        verified=await list_verified(store, run) if rules.policy.only_verified else frozenset(),
        is_known=bool(decided or undecided),
    )


async def _metrics(store: SupportsGet, decisions: Iterable[Decision]) -> dict[str, Metrics | None]:
    """Return the metrics of each commit, ``None`` where its record is damaged."""

    async def read(commit: Commit) -> Metrics | None:
        try:
            return (await read_rank_record(store, commit.records[0])).metrics
        except IntegrityError:
            return None

    commits = [decision for decision in decisions if isinstance(decision, Commit)]
    metrics = await map_concurrently(read, commits)
    return {commit.attempt.uid: one for commit, one in zip(commits, metrics, strict=True)}
