"""The loop that most people want: restore, then save now and then, in the background."""

from __future__ import annotations

import atexit
import logging
import os
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import zip_longest
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import msgspec
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load

from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.catalog import latest_commit, list_checkpoints
from ckptstore.errors import (
    CkptStoreError,
    DeadlineExceededError,
    IntegrityError,
    UsageError,
)
from ckptstore.gc.execute import collect
from ckptstore.gc.policy import RetentionPolicy
from ckptstore.gc.survey import plan_collection
from ckptstore.location import Latest, parse_run
from ckptstore.manifest.model import Commit, StoreRecord
from ckptstore.opening import opened_store
from ckptstore.runtime import cancel_and_wait, run_sync, start
from ckptstore.save import COORDINATOR_RANK, save_checkpoint
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.torch.agree import agree
from ckptstore.torch.attempts import Beginning, Begun
from ckptstore.torch.holding import Holding
from ckptstore.torch.identity import checked_step
from ckptstore.torch.planning import Planning
from ckptstore.torch.plans import RankPlan, broken_plan, lay_out_plan
from ckptstore.torch.reader import StorageReader
from ckptstore.torch.registry import lineage_of, next_number
from ckptstore.torch.sigterm import SigtermGrace
from ckptstore.torch.staging import Staging

logger = logging.getLogger(__name__)

GRACE_S: Final = 5.0

StateDict: TypeAlias = dict[str, Any]


class Checkpointer:
    """Restores the newest checkpoint of a run, and saves new ones while training goes on.

    Use it as a context manager, on every rank alike::

        with Checkpointer("s3://bucket/ckpts/llama-7b", deadline_s=600) as ckpt:
            step = ckpt.restore(state) or 0
            for step in range(step + 1, total):
                train()
                ckpt.save(step, state)

    One save is in flight at a time. How it ended is raised by the next call on this object, or
    when the block is left; there is nothing to forget to ask. Between the ranks there are no
    collectives of ours, so a dead rank is named to the others by the deadline and holds nobody.

    ``deadline_s`` bounds each save and each load. After a commit, checkpoints that ``keep_last``
    or ``retention`` do not keep are deleted, and so is what aborted saves left; without either,
    nothing is. The newest, pinned and tagged ones always stay. On SIGTERM a save in flight has
    ``sigterm_grace_s`` to commit, and is aborted otherwise; ``None`` leaves SIGTERM alone.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        deadline_s: float = 1800.0,
        keep_last: int | None = None,
        retention: RetentionPolicy | None = None,
        sigterm_grace_s: float | None = 30.0,
        settings: Settings | None = None,
        trusted_globals: tuple[str, ...] = (),
    ) -> None:
        self._location = parse_run(url)
        if self._location.selector != Latest():
            raise UsageError(f"{os.fspath(url)!r}: give the run alone, without '@'")
        if deadline_s <= 0:
            raise UsageError(f"deadline_s must be positive: {deadline_s}")
        self._url = str(self._location)
        self._deadline_s = deadline_s
        self._settings = settings or Settings()
        self._trusted_globals = trusted_globals
        if keep_last is not None and retention is not None:
            raise UsageError("give keep_last or retention, not both")
        self._retention = retention or RetentionPolicy(keep_last=keep_last)
        self._planning = Planning()
        self._staging = Staging()
        self._holding = Holding(self._location, self._settings)
        self._saving: Future[Commit] | None = None
        self._saving_step = 0
        self._saving_until_s = 0.0
        self._sigterm = SigtermGrace(sigterm_grace_s, lambda: self._saving)
        atexit.register(self._warn_of_unread_save)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except CkptStoreError:
            if kind is None:
                raise
            logger.exception("the save in flight failed as well")  # The first error matters more.

    def restore(self, state: StateDict, *, fallback: bool = False) -> int | None:
        """Load the newest checkpoint into ``state`` and return its step; ``None`` if there is none.

        ``None`` means that the store answered and has none. Whatever keeps us from telling is
        an error, for starting from zero by mistake loses everything. With ``fallback``, a
        damaged checkpoint is reported by a warning and the next older one is tried. After an
        error, what was to be loaded into holds anything.
        """
        self.wait()
        uids = self._committed_uids()
        for uid, older in zip_longest(uids, uids[1:]):
            if _rank() == COORDINATOR_RANK:
                self._holding.hold(uid, deadline_s=self._deadline_s)
            try:
                return self._load(state, uid)
            except IntegrityError as error:
                if not (fallback and older):
                    raise
                logger.warning("%s; falling back to %s@%s", error, self._url, older)
        return None

    def save(
        self, step: int, state: StateDict, *, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Start to save ``state`` as ``step``; return when it may change again.

        Every rank calls this with the same step. Rank 0's ``metrics`` (a loss, say) are kept
        with the checkpoint, for retention to choose by. Raises what the save before ended with, if
        not well, and what keeps this one from starting: for instance a rank that does not
        come. What happens later is raised by the next call.
        """
        self.wait()
        checked_step(step)
        self._saving_until_s = time.monotonic() + self._deadline_s
        planner = DefaultSavePlanner()
        local = _local_plan(planner, state)
        beginning = Beginning(
            location=self._location,
            step=step,
            serial=next_number("checkpointer", self._url, str(step)),
            lineage=lineage_of(self._url),
            coordinates=_rank() == COORDINATOR_RANK,
            world_size=_world_size(),
            settings=self._settings,
        )

        async def agreed() -> tuple[SavePlan, Begun]:
            return await self._planning.agreed(local, beginning, _rank(), self._left())

        mine, begun = run_sync(agreed, timeout_s=self._deadline_s + GRACE_S)
        rank_plan = self._staged(mine, planner, metrics)
        self._saving_step = step
        self._saving = start(lambda: self._save(rank_plan, begun))

    def wait(self) -> None:
        """Return once no save is in flight, and raise what the last one ended with, if not well."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            saving.result(max(self._saving_until_s - time.monotonic(), 0.0) + GRACE_S)
        except TimeoutError as error:
            cancel_and_wait(saving)
            raise DeadlineExceededError(
                f"run {self._url} step {self._saving_step}: the save did not end by its deadline "
                f"of {self._deadline_s:g} s and was cancelled"
            ) from error

    def close(self) -> None:
        """Like ``wait``, and leave SIGTERM to whoever had it before. May be called twice."""
        try:
            self.wait()
        finally:
            self._holding.let_go()
            self._sigterm.restore()
            atexit.unregister(self._warn_of_unread_save)

    def _staged(
        self, mine: SavePlan, planner: DefaultSavePlanner, metrics: Mapping[str, float] | None
    ) -> RankPlan:
        try:
            plan = lay_out_plan(mine, self._staging.staged(mine, planner))
            return replace(plan, contents=replace(plan.contents, metrics=dict(metrics or {})))
        except Exception as error:  # Even a bug is a vote: the others are waiting to hear it.
            return broken_plan(error)

    async def _save(self, rank_plan: RankPlan, begun: Begun) -> Commit:
        async with opened_store(self._location.store, self._settings) as store:
            commit = await save_checkpoint(
                rank_plan.sources,
                rank_plan.contents,
                attempt=begun.attempt,
                rank=_rank(),
                store=store,
                record=begun.record,
                deadline=self._left(),
                settings=self._settings,
            )
            await self._holding.over()
            if _rank() == COORDINATOR_RANK and not self._retention.keeps_all:
                await self._let_go(store, begun.record)
            return commit

    async def _let_go(self, store: ObjectStore, record: StoreRecord) -> None:
        """Collect what retention does not keep. That it fails does not make the save a failure."""
        clock = SystemClock()
        try:
            async with self._left().enforce(f"run {self._url}: retention"):
                plan = await plan_collection(
                    store, self._location.run, self._retention, record=record, clock=clock
                )
                report = await collect(store, plan, record=record, clock=clock)
        except CkptStoreError as error:
            logger.warning("run %s: retention failed, the next one goes on: %s", self._url, error)
            return
        for garbage, failure in report.failed:
            logger.warning("run %s: could not delete %s: %s", self._url, garbage.uid, failure)

    def _left(self) -> Deadline:
        left = Deadline.after(self._saving_until_s - time.monotonic())
        return Deadline(left.at_s, self._deadline_s)

    def _load(self, state: StateDict, selector: str) -> int:
        reader = StorageReader(
            f"{self._url}@{selector}",
            deadline_s=self._deadline_s,
            settings=self._settings,
            trusted_globals=self._trusted_globals,
        )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                load(state, storage_reader=reader, no_dist=_world_size() == 1)
        except CheckpointException as error:
            raise reader.failure or _unwrapped(error) from error
        assert reader.attempt is not None
        return reader.attempt.step

    def _committed_uids(self) -> list[str]:
        """Return the latest checkpoint and the older ones, the same list on every rank."""
        serial = next_number("restore", self._url)

        async def find() -> str:
            async with opened_store(self._location.store, self._settings) as store:
                return msgspec.json.encode(await _uids(store, self._location.run)).decode()

        async def agreed() -> str:
            deadline = Deadline.after(self._deadline_s)
            topic = ("restore", f"run {self._url}", f"#{serial}")
            async with deadline.enforce(f"run {self._url}: find the latest checkpoint"):
                return await agree(topic, find, leads=None, deadline=deadline)

        found = run_sync(agreed, timeout_s=self._deadline_s + GRACE_S)
        return msgspec.json.decode(found, type=list[str])

    def _warn_of_unread_save(self) -> None:
        if self._saving is not None:
            logger.critical(
                "run %s step %d: the process ends while this save was never waited for; it may "
                "not exist. Use Checkpointer in a with block, or call close()",
                self._url,
                self._saving_step,
            )


async def _uids(store: ObjectStore, run: str) -> list[str]:
    latest = await latest_commit(store, run)
    if latest is None:
        return []
    infos = await list_checkpoints(store, run)
    committed = [info.uid for info in infos if info.state == "committed"]
    return [latest.attempt.uid, *(uid for uid in committed if uid < latest.attempt.uid)]


def _local_plan(planner: DefaultSavePlanner, state: StateDict) -> SavePlan | Exception:
    try:
        planner.set_up_planner(state, is_coordinator=_rank() == COORDINATOR_RANK)
        return planner.create_local_plan()
    except Exception as error:  # The other ranks must hear of it.
        return error


def _unwrapped(error: CheckpointException) -> Exception:
    """Return what one of the ranks raised: an error of ours if there is one."""
    failures = [failure[0] for _, failure in sorted(error.failures.items())]
    ours = [failure for failure in failures if isinstance(failure, CkptStoreError)]
    others = [failure for failure in failures if isinstance(failure, Exception)]
    return next(iter([*ours, *others]), CkptStoreError(str(error)))


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else COORDINATOR_RANK


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
