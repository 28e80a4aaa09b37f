"""The writer for ``torch.distributed.checkpoint``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter as DcpStorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ckptstore.clock import Deadline
from ckptstore.errors import CkptStoreError, UsageError
from ckptstore.location import Latest, parse_run
from ckptstore.manifest.layout import data_key
from ckptstore.opening import opened_store
from ckptstore.runtime import run_sync
from ckptstore.save import COORDINATOR_RANK, save_checkpoint, votes_until
from ckptstore.settings import Settings
from ckptstore.torch.attempts import Beginning, Begun
from ckptstore.torch.devices import current_stream
from ckptstore.torch.identity import checked_step, is_run_url, step_of
from ckptstore.torch.plans import RankPlan, laid_out, lay_out_plan
from ckptstore.torch.registry import lineage_of, next_number
from ckptstore.types import Key
from ckptstore.upload.source import stored_kind

logger = logging.getLogger(__name__)

# Of the time until votes are due. What takes longer hangs, and there is time left to say so.
LAY_OUT_SHARE: Final = 0.9
GRACE_S: Final = 5.0  # A save ends by its deadline; this is for a loop that does not answer.


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where an item was written: bytes ``[start, stop)`` of an object."""

    key: Key
    start: int
    stop: int


class StorageWriter(DcpStorageWriter):
    """Saves one step of a run: ``dcp.save(state, storage_writer=StorageWriter(url, step=1000))``.

    ``dcp.save`` returns once the checkpoint is committed on every rank. Otherwise it raises
    ``CheckpointException``, which is a ``BaseException`` and holds what each rank raised, and
    nothing of the attempt will ever be visible; only with ``CheckpointInDoubtError`` in it the
    outcome is not known yet. A save ends within ``deadline_s`` seconds, as far as it lies in
    our hands: DCP's own collectives, around our calls, end when the process group says so.

    Works with ``dcp.async_save`` in thread and process mode, with plan caching, and with
    ``use_collectives=False``, where the whole default process group must save. ``step`` may
    be left out if ``dcp.save`` is given a ``checkpoint_id`` that names one.

    Raises ``UsageError`` for a URL, step or checkpoint_id that makes no sense.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        deadline_s: float | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.location = parse_run(url)
        if self.location.selector != Latest():
            raise UsageError(f"{os.fspath(url)!r}: leave out what follows '@'; the step says it")
        self.step = None if step is None else checked_step(step)
        self.settings = settings or Settings()
        self.deadline_s = self.settings.deadline_s if deadline_s is None else deadline_s
        if self.deadline_s <= 0:
            raise UsageError(f"deadline_s must be positive: {self.deadline_s}")
        self._step_given = self.step is not None
        self._run = str(self.location)
        # A writer is pickled into the process that saves, which has loaded nothing itself.
        self._lineage = lineage_of(self._run)
        self._serial = 0
        self._started_s = 0.0
        self._rank = COORDINATOR_RANK
        self._world_size = 1
        self._use_collectives = True
        self._uid = ""

    @property
    def checkpoint_id(self) -> str:
        return self._run if self.step is None else f"{self._run}@{self.step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_run_url(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step from ``checkpoint_id``, which must not contradict the one given."""
        if checkpoint_id is None:
            return
        step = step_of(checkpoint_id, self.location)
        if self._step_given and step != self.step:
            raise UsageError(
                f"checkpoint_id {os.fspath(checkpoint_id)!r} contradicts step={self.step}; make "
                "one writer a step, or leave out step= and let checkpoint_id say it"
            )
        self.step = step

    def storage_meta(self) -> StorageMeta:
        """Open a new save. DCP calls this first, on every rank, before anything that can fail.

        So this is where saves are counted: the count is part of what ranks know each other by.
        """
        self._started_s = time.monotonic()
        self._uid = ""
        self._serial = next_number("save", self._run, str(self.step))
        here = lineage_of(self._run)
        if here.loads > self._lineage.loads:  # Something was loaded since this writer was made.
            self._lineage = here
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self._rank = kwargs.get("rank", COORDINATOR_RANK if is_coordinator else _default_rank())
        self._use_collectives = kwargs.get("use_collectives", True)
        self._world_size = 1
        if self.step is None:
            raise UsageError(f"{self._run}: which step? Give StorageWriter(..., step=N)")
        if is_coordinator != (self._rank == COORDINATOR_RANK):
            raise UsageError("the coordinator must be rank 0 of the process group")
        if not self._use_collectives and self._rank != _default_rank():
            raise UsageError(
                "use_collectives=False works with the default process group only: how many "
                "others save cannot be told without a collective"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Learn how many ranks save; nothing may be put into a plan, for plans are cached."""
        self._world_size = len(plans) if self._use_collectives else _default_world_size()
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Upload, vote, and return when the checkpoint is committed, on every rank alike."""
        stream = current_stream()

        def lay_out() -> RankPlan:
            if stream is not None:
                stream.synchronize()  # Tensors are copied on other threads, beside this stream.
            return lay_out_plan(plan, planner)

        left_s = self._started_s + self.deadline_s - time.monotonic()
        try:
            begun, rank_plan = run_sync(
                lambda: self._save(lay_out, left_s), timeout_s=max(left_s, 0) + GRACE_S
            )
        except CkptStoreError as error:
            # If a rank died, DCP's next collective breaks, and its error is all that is raised.
            logger.error("%s", error)
            raise
        self._uid = begun.attempt.uid
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._results(plan, rank_plan, begun))
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Check that every rank speaks of the one attempt that was committed; write nothing."""
        for rank, rank_results in enumerate(results):
            for result in rank_results:
                if self._uid not in result.storage_data.key.split("/"):
                    raise CkptStoreError(
                        f"run {self._run} step {self.step}: attempt {self._uid} is committed, but "
                        f"rank {rank} wrote {result.storage_data.key}: two saves ran at once"
                    )
        metadata.storage_meta = StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._uid)

    async def _save(self, lay_out: Callable[[], RankPlan], left_s: float) -> tuple[Begun, RankPlan]:
        deadline = Deadline.after(left_s)
        assert self.step is not None
        begun = await Beginning(
            location=self.location,
            step=self.step,
            serial=self._serial,
            lineage=self._lineage,
            coordinates=self._rank == COORDINATOR_RANK,
            world_size=self._world_size,
            settings=self.settings,
        ).agreed(deadline)
        votes_s = votes_until(deadline, self.settings.commit).left_s
        rank_plan = await laid_out(lay_out, Deadline.after(LAY_OUT_SHARE * max(votes_s, 0)))
        async with opened_store(self.location.store, self.settings) as store:
            await save_checkpoint(
                rank_plan.sources,
                rank_plan.contents,
                attempt=begun.attempt,
                rank=self._rank,
                store=store,
                record=begun.record,
                deadline=deadline,
                settings=self.settings,
            )
        return begun, rank_plan

    def _results(self, plan: SavePlan, rank_plan: RankPlan, begun: Begun) -> list[WriteResult]:
        attempt, fan_out = begun.attempt, begun.record.fan_out
        kinds = [stored_kind(source, self.settings.transfer) for source in rank_plan.sources]
        keys = [
            data_key(attempt.run, attempt.uid, self._rank, index, kind, fan_out=fan_out)
            for index, kind in enumerate(kinds)
        ]
        return [
            WriteResult(
                item.index,
                span.stop - span.start,
                StoredAt(keys[span.shard], span.start, span.stop),
            )
            for item, span in zip(plan.items, rank_plan.spans, strict=True)
        ]


def _default_rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else COORDINATOR_RANK


def _default_world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
