"""Checkpointer on real ranks: no rank holds the others, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ckptstore.errors import CheckpointAbortedError, CkptStoreError, DeadlineExceededError
from ckptstore.torch import Checkpointer
from tests.torch.ranks import run_ranks, watch_ranks
from tests.torch.worlds import SMALL, checkpoints_of

pytestmark = pytest.mark.distributed
DEADLINE_S = 3.0


def sharded(value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(60.0).reshape(12, 5) + value
    return {
        "w": distribute_tensor(whole, mesh, [Shard(0)]),
        "same": torch.full((3,), value),
        "step": int(value),
    }


def saved_in_turn(rank: int, url: str) -> list[bool]:
    with Checkpointer(url, settings=SMALL) as ckpt:
        planned = []
        for step in (1, 2, 3):
            ckpt.save(step, sharded(float(step)))
            planned.append(ckpt._planning._mine)
        ckpt.save(4, sharded(4.0) | ({"extra": torch.ones(2)} if rank == 1 else {}))
    return [planned[0] is plan for plan in planned]


def restored(rank: int, url: str) -> tuple[int | None, bool, int]:
    state = sharded(0.0)
    step = Checkpointer(url, settings=SMALL).restore(state)
    assert isinstance(state["w"], DTensor)
    same = torch.equal(state["w"].full_tensor(), torch.arange(60.0).reshape(12, 5) + 4.0)
    return step, same and torch.equal(state["same"], torch.full((3,), 4.0)), state["step"]


def test_four_ranks_save_and_any_number_restores(tmp_path: Path) -> None:
    url = str(tmp_path / "store" / "run")
    unchanged = run_ranks(4, saved_in_turn, url)
    assert unchanged == [[True, True, True]] * 4  # The plan was agreed on once, and kept.
    for world_size in (1, 2, 3):
        assert run_ranks(world_size, restored, url) == [(4, True, 4)] * world_size


def lost(rank: int, url: str, victim: int, number: int) -> float:
    with Checkpointer(url, settings=SMALL) as first:
        first.save(1, sharded(1.0))
    ckpt = Checkpointer(url, settings=SMALL, deadline_s=DEADLINE_S)
    ckpt.save(2, sharded(2.0))
    if rank == victim:
        os.kill(os.getpid(), number)  # The save is in flight, in another thread.
    began_s = time.monotonic()
    with pytest.raises(CheckpointAbortedError, match=f"rank {victim}"):
        ckpt.wait()
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("victim", "number"), [(0, signal.SIGKILL), (3, signal.SIGKILL), (0, signal.SIGSTOP)]
)
def test_a_rank_that_is_lost_is_named_to_the_others_by_the_deadline(
    victim: int, number: int, tmp_path: Path
) -> None:
    url = str(tmp_path / "store" / "run")
    outcomes = watch_ranks(4, lost, url, victim, number, timeout_s=DEADLINE_S + 12)
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert (outcome.value, outcome.error) == (None, None)
        else:
            assert outcome.error is None, outcome.trace
            assert outcome.value <= DEADLINE_S + 2
    committed = [info.step for info in checkpoints_of(url) if info.state == "committed"]
    assert committed == [1]
    assert run_ranks(2, saved_in_turn, url) == [[True, True, True]] * 2


def absent(rank: int, url: str) -> None:
    ckpt = Checkpointer(url, settings=SMALL, deadline_s=1.5)
    if rank == 1:
        dist.barrier()
        return
    try:
        ckpt.save(1, sharded_alone())
    finally:
        dist.barrier()


def sharded_alone() -> dict[str, Any]:
    return {"w": torch.ones(3)}


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    outcomes = watch_ranks(3, absent, str(tmp_path / "store" / "run"))
    assert outcomes[1].error is None
    for outcome in (outcomes[0], outcomes[2]):
        assert isinstance(outcome.error, DeadlineExceededError)
        assert "rank 1 did not come to save within 1.5 s" in str(outcome.error)


def unplannable(rank: int, url: str) -> None:
    state = sharded_alone() | ({"w": Unplannable()} if rank == 1 else {})
    Checkpointer(url, settings=SMALL, deadline_s=20.0).save(1, state)


class Unplannable(dict[str, Any]):
    def items(self) -> Any:  # noqa: ANN401
        raise ZeroDivisionError("no plan for you")


def test_a_rank_that_cannot_plan_is_heard_by_all_at_once(tmp_path: Path) -> None:
    outcomes = watch_ranks(2, unplannable, str(tmp_path / "store" / "run"))
    for outcome in outcomes:
        assert isinstance(outcome.error, CkptStoreError)
        assert "rank 1: ZeroDivisionError: no plan for you" in str(outcome.error)
        assert outcome.ended_s < 15
