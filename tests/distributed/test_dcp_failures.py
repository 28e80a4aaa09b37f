"""Ranks that fail, die or hang in the middle of a save, with real processes."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.futures import Future

from ckptstore.errors import CheckpointAbortedError, DeadlineExceededError
from ckptstore.manifest.layout import parse_uid
from ckptstore.torch import StorageWriter
from tests.torch.ranks import caught, run_ranks, watch_ranks
from tests.torch.worlds import checkpoints_of, manifest_of

pytestmark = pytest.mark.distributed

DEADLINE_S = 3.0
LONG_S = 60.0
BUSY_S = 5.0  # What a busy machine may add.


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A run with one good checkpoint, at step 1."""
    url = str(tmp_path / "store" / "run")
    run_ranks(2, save_step, url, 1)
    return url


def state_of() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).reshape(12, 2)
    return {"w": distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None), "n": 1}


def save_step(rank: int, url: str, step: int) -> None:
    save(state_of(), storage_writer=StorageWriter(url, step=step))


class Struck(DefaultSavePlanner):
    """Something happens to this rank when it hands out one of its data."""

    def __init__(self, strike: Callable[[], None], name: str) -> None:
        super().__init__()
        self._strike = strike
        self._name = name

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.index.fqn == self._name:
            self._strike()
        found: torch.Tensor | io.BytesIO = super().resolve_data(write_item)
        return found


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("the device is gone")


def hang() -> None:
    threading.Event().wait(10 * DEADLINE_S)


def save_struck(
    rank: int,
    url: str,
    struck: int,
    strike: Callable[[], None],
    name: str = "w",
    deadline_s: float = DEADLINE_S,
    **options: Any,  # noqa: ANN401
) -> tuple[list[BaseException], list[BaseException], float]:
    """Save step 2, and return what our own call raised, what DCP raised, and when.

    The two differ if a dead rank breaks the collective with which DCP gathers the errors.
    """
    writer = StorageWriter(url, step=2, deadline_s=deadline_s)
    write_data = writer.write_data
    ours: list[BaseException] = []

    def watched(plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return write_data(plan, planner)
        except BaseException as error:
            ours.append(error)
            raise

    writer.write_data = watched  # type: ignore[method-assign]
    planner = Struck(strike, name) if rank == struck else None
    started_s = time.monotonic()
    with caught() as errors:
        save(state_of(), storage_writer=writer, planner=planner, **options)
    return ours, errors, time.monotonic() - started_s


def only_step_1_is_there(url: str) -> None:
    infos = checkpoints_of(url)
    assert [(info.step, info.state) for info in infos] == [(2, "aborted"), (1, "committed")]
    assert parse_uid(manifest_of(url).attempt.uid).step == 1


def the_next_save_works(url: str) -> None:
    run_ranks(2, save_step, url, 2)
    assert parse_uid(manifest_of(url).attempt.uid).step == 2


@pytest.mark.parametrize("struck", [0, 1])
@pytest.mark.parametrize("use_collectives", [True, False])
def test_a_rank_that_fails_ends_the_save_for_all_at_once(
    url: str, struck: int, use_collectives: bool
) -> None:
    save_it = save_struck if use_collectives else save_without_collectives
    outcomes = run_ranks(3, save_it, url, struck, fail, "w", LONG_S)
    for _, errors, took_s in outcomes:
        (error,) = errors
        assert isinstance(error, CheckpointAbortedError)
        assert f"was aborted: rank {struck}: " in str(error)
        assert "tensor w: its data failed: RuntimeError('the device is gone')" in str(error)
        assert took_s < LONG_S / 2
    only_step_1_is_there(url)


def save_without_collectives(rank: int, *args: Any) -> Any:  # noqa: ANN401
    return save_struck(rank, *args, use_collectives=False)


@pytest.mark.parametrize("struck", [0, 1])
def test_the_survivors_of_a_killed_rank_hear_of_it_by_the_deadline(url: str, struck: int) -> None:
    outcomes = watch_ranks(3, save_struck, url, struck, die)
    assert outcomes[struck].exit_code == -signal.SIGKILL
    for survivor in (outcome for rank, outcome in enumerate(outcomes) if rank != struck):
        (ours, (raised,), took_s) = survivor.value
        assert isinstance(ours[0], CheckpointAbortedError), survivor
        silence = "did not vote" if struck else "no decision from rank 0"
        assert f"{silence} in time" in str(ours[0])
        assert not isinstance(raised, DeadlineExceededError)
        assert took_s < DEADLINE_S + BUSY_S
    only_step_1_is_there(url)
    the_next_save_works(url)


def test_a_coordinator_killed_before_it_begins_is_named_by_the_deadline(url: str) -> None:
    outcomes = watch_ranks(2, save_without_a_coordinator, url)
    assert outcomes[0].exit_code == -signal.SIGKILL
    error, took_s = outcomes[1].value
    assert isinstance(error, DeadlineExceededError)
    assert "step 2" in str(error)
    assert "the coordinator, rank 0" in str(error)
    assert took_s < DEADLINE_S + BUSY_S
    assert [info.step for info in checkpoints_of(url)] == [1]


def save_without_a_coordinator(rank: int, url: str) -> tuple[BaseException, float]:
    writer = StorageWriter(url, step=2, deadline_s=DEADLINE_S)
    if rank == 0:
        writer.write_data = lambda *_: die()  # type: ignore[method-assign, assignment]
    started_s = time.monotonic()
    with caught() as errors:
        save(state_of(), storage_writer=writer, use_collectives=False)
    return errors[0], time.monotonic() - started_s


@pytest.mark.parametrize("name", ["w", "n"])
def test_a_rank_that_hangs_is_left_behind_at_the_deadline(url: str, name: str) -> None:
    outcomes = watch_ranks(2, save_without_collectives, url, 1, hang, name)
    for outcome in outcomes:
        ours, _, took_s = outcome.value
        assert isinstance(ours[0], CheckpointAbortedError), outcome
        assert re.search("was aborted: rank 1(: Deadline| did not vote)", str(ours[0]))
        assert took_s < DEADLINE_S + BUSY_S
    only_step_1_is_there(url)


class Planless(DefaultSavePlanner):
    def create_local_plan(self) -> SavePlan:
        raise RuntimeError("no plan")


def save_after_a_rank_could_not_plan(rank: int, url: str) -> str:
    """Rank 1 fails before it writes anything, so rank 0 waits for it until the deadline."""
    planner = Planless() if rank == 1 else None
    with caught() as errors:
        save(
            state_of(),
            storage_writer=StorageWriter(url, step=2, deadline_s=DEADLINE_S),
            planner=planner,
            use_collectives=False,
        )
    save(state_of(), storage_writer=StorageWriter(url, step=2))
    return str(errors[0])


def test_ranks_that_stopped_at_different_points_still_find_each_other_again(url: str) -> None:
    first, second = run_ranks(2, save_after_a_rank_could_not_plan, url)
    assert "rank 1 did not vote in time" in first
    assert second == "no plan"
    assert [info.state for info in checkpoints_of(url)] == ["committed", "aborted", "committed"]
