"""The reader for ``torch.distributed.checkpoint``."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

import msgspec
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as DcpStorageReader
from torch.futures import Future

from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.pins import pinned
from ckptstore.errors import CkptStoreError, StoreError, UsageError
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import AtStep, Latest, parse_run
from ckptstore.manifest.model import Attempt, Commit, Manifest, TensorEntry
from ckptstore.opening import opened_store
from ckptstore.restore.reader import CheckedReader
from ckptstore.runtime import run_sync
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.torch.agree import agree
from ckptstore.torch.identity import is_run_url, step_of
from ckptstore.torch.items import checked_item
from ckptstore.torch.metadata import Stored, metadata_of
from ckptstore.torch.reads import Box
from ckptstore.torch.registry import next_number, note_loaded
from ckptstore.torch.targets import Item, Target, tensor_targets, waves
from ckptstore.torch.tensors import dtype_name
from ckptstore.torch.threads import in_thread

GRACE_S: Final = 5.0
DIFFERENCES_SHOWN_MAX: Final = 5


class StorageReader(DcpStorageReader):
    """Loads a checkpoint of a run: ``dcp.load(state, storage_reader=StorageReader(url))``.

    ``url`` may end in a selector: ``@latest`` (the default), ``@STEP`` or ``@UID``. All ranks
    load the same checkpoint, also if another one is committed meanwhile. Every byte is checked
    before DCP sees it: straight in the tensors' memory where they are dense and on this host.
    After an error, what was to be loaded into holds anything.

    ``trusted_globals`` are names (``package.module.Name``) that non-tensor items may refer to
    beyond plain values; whatever else they name is refused with ``UntrustedCodeError``. Dtypes
    are never converted on the way.

    As with every DCP reader, errors arrive inside ``CheckpointException``.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        deadline_s: float | None = None,
        settings: Settings | None = None,
        trusted_globals: Iterable[str] = (),
    ) -> None:
        self.location = parse_run(url)
        self.selector = self.location.selector
        self.settings = settings or Settings()
        self.deadline_s = self.settings.deadline_s if deadline_s is None else deadline_s
        if self.deadline_s <= 0:
            raise UsageError(f"deadline_s must be positive: {self.deadline_s}")
        self.trusted_globals = frozenset(trusted_globals)
        self._run = str(self.location)
        self._started_s = 0.0
        self._failure: Exception | None = None
        self._attempt: Attempt | None = None
        self._stored: dict[MetadataIndex, Stored] = {}

    @property
    def checkpoint_id(self) -> str:
        return f"{self._run}@{self.selector}"

    @property
    def failure(self) -> Exception | None:
        """What kept the last load from finding the checkpoint; DCP tells its text only."""
        return self._failure

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that is being, or was, loaded, once it was found."""
        return self._attempt

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_run_url(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step from ``checkpoint_id``, which must not contradict the selector given."""
        if checkpoint_id is None:
            return
        selector = AtStep(step_of(checkpoint_id, self.location))
        if self.location.selector not in (Latest(), selector):
            raise UsageError(
                f"checkpoint_id {os.fspath(checkpoint_id)!r} contradicts "
                f"@{self.location.selector}; give one of them"
            )
        self.selector = selector

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ANN401
        """Find the checkpoint, the same one on every rank, and read what is in it.

        DCP takes every failure for "no global metadata", asks again for one rank's alone, and
        raises an error of its own if there is none. So then it gets some, empty, and the next
        step raises the cause.
        """
        if self._failure is not None and "rank" in kwargs:
            return Metadata({})
        self._failure = None
        self._started_s = time.monotonic()
        try:
            manifest = run_sync(self._find, timeout_s=self.deadline_s + GRACE_S)
            self._attempt = manifest.attempt
            with self._saying_what():
                return metadata_of(manifest, self.checkpoint_id)
        except Exception as error:
            self._failure = error
            raise

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        if self._failure is not None:
            raise self._failure
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._attempt is not None
        plan.storage_data = self._attempt.uid
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Make sure that all ranks load one checkpoint: a mixture would go unnoticed."""
        uids = {plan.storage_data: rank for rank, plan in enumerate(plans)}
        if len(uids) > 1:
            found = ", ".join(f"rank {rank} {uid}" for uid, rank in uids.items())
            raise CkptStoreError(
                f"{self.checkpoint_id}: the ranks found different checkpoints ({found}); all "
                "must have made the same loads before this one, or name the checkpoint by its uid"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the state dict; return when every byte of it was read and verified."""
        scratch_bytes_max = self.settings.transfer.in_flight_bytes_max
        with self._saying_what():
            tensors = [
                (item, planner.resolve_tensor(item).detach())
                for item in plan.items
                if item.type == LoadItemType.TENSOR
            ]
            _check_alike(self._stored, tensors)
            targets = list(self._targets(tensors, scratch_bytes_max))
            others = {
                item: Item(self._stored[item.storage_index])
                for item in plan.items
                if item.type == LoadItemType.BYTE_IO
            }
            left_s = self._started_s + self.deadline_s - time.monotonic()
            groups = waves([*targets, *others.values()], scratch_bytes_max=scratch_bytes_max)
            run_sync(lambda: self._read(groups, left_s), timeout_s=max(left_s, 0) + GRACE_S)
            for item, tensor in tensors:
                planner.commit_tensor(item, tensor)
            for item, other in others.items():
                name = item.storage_index.fqn
                planner.load_bytes(item, checked_item(name, other.data, self.trusted_globals))
        assert self._attempt is not None
        note_loaded(self._run, self._attempt.uid)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    async def _find(self) -> Manifest:
        deadline = Deadline.after(self.deadline_s)

        async def find() -> str:
            async with (
                deadline.enforce(f"{self.checkpoint_id}: find the checkpoint"),
                opened_store(self.location.store, self.settings) as store,
            ):
                commit = await find_checkpoint(store, self.location.run, self.selector)
                return msgspec.json.encode(commit).decode()

        serial = next_number("load", self._run, str(self.selector))
        topic = ("load", f"run {self._run}", f"@{self.selector}", f"#{serial}")
        # Nobody knows here which ranks take part, so the first to come is the one to find out.
        found = await agree(topic, find, leads=None, deadline=deadline)
        commit = msgspec.json.decode(found, type=Commit)
        doing = f"{self.checkpoint_id}: read the manifest"
        async with self._pinned_store(commit.attempt.uid, doing, deadline) as store:
            return await read_manifest(store, commit)

    async def _read(self, groups: Iterable[Sequence[Target]], left_s: float) -> None:
        assert self._attempt is not None
        async with self._pinned_store(self._attempt.uid, "load", Deadline.after(left_s)) as store:
            reader = CheckedReader(store, self.settings.transfer)
            for group in groups:
                await reader.read_wanted([target.want() for target in group])
                await in_thread(partial(_take_all, group))

    @asynccontextmanager
    async def _pinned_store(
        self, uid: str, doing: str, deadline: Deadline
    ) -> AsyncIterator[ObjectStore]:
        """Open the store, with retention kept away from the checkpoint.

        Twice a load, because between the two nobody would tell us that DCP gave up. If retention
        comes in between, the second time says so.
        """
        run, clock = self.location.run, SystemClock()
        async with (
            deadline.enforce(doing),
            opened_store(self.location.store, self.settings) as store,
            pinned(store, run, uid, clock=clock, holder="load", deadline=deadline),
        ):
            yield store

    def _targets(
        self, tensors: Iterable[tuple[ReadItem, torch.Tensor]], scratch_bytes_max: int
    ) -> Iterator[Target]:
        for item, tensor in tensors:
            stored = self._stored[item.storage_index]
            assert isinstance(stored.entry, TensorEntry)
            yield from tensor_targets(
                stored.shard,
                stored.entry,
                Box(tuple(item.storage_offsets), tuple(item.lengths)),
                tensor,
                scratch_bytes_max=scratch_bytes_max,
            )

    @contextmanager
    def _saying_what(self) -> Iterator[None]:
        """Let errors of ours say which checkpoint they are about."""
        try:
            yield
        except CkptStoreError as error:
            assert self._attempt is not None
            detail = error.detail if isinstance(error, StoreError) else str(error)
            detail = (
                f"{self._run} step {self._attempt.step} (attempt {self._attempt.uid}): {detail}"
            )
            error.args = (detail, *error.args[1:])
            if isinstance(error, StoreError):
                error.detail = detail
            raise


def _take_all(targets: Iterable[Target]) -> None:
    for target in targets:
        target.take()


def _check_alike(
    stored: dict[MetadataIndex, Stored], tensors: Iterable[tuple[ReadItem, torch.Tensor]]
) -> None:
    """Refuse, before anything is read, tensors that are not what was saved.

    DCP has compared the sizes of whole tensors by now, and nobody the dtypes.
    """
    differences: dict[str, str] = {}
    for item, tensor in tensors:
        entry = stored[item.storage_index].entry
        assert isinstance(entry, TensorEntry)
        if (dtype := dtype_name(tensor.dtype)) != entry.dtype:
            differences[entry.name] = f"{entry.name} was saved as {entry.dtype} and is {dtype} here"
        elif tensor.shape != item.lengths:
            differences[entry.name] = (
                f"{entry.name} is to receive {list(item.lengths)} and has {list(tensor.shape)} here"
            )
    if differences:
        shown = "; ".join(list(differences.values())[:DIFFERENCES_SHOWN_MAX])
        raise UsageError(
            f"{len(differences)} tensors of the state dict are not what was saved: {shown}. Load "
            "into tensors of the saved dtype, and convert them afterwards"
        )
