"""The ways in which DCP calls a writer and a reader, with real processes as ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    async_save,
    save,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ckptstore.manifest.layout import parse_uid
from ckptstore.torch import StorageReader, StorageWriter
from tests.torch.ranks import run_ranks
from tests.torch.worlds import checkpoints_of, manifest_of
from tests.torch.worlds import load as load_alone

pytestmark = pytest.mark.distributed


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store" / "run")


def state_at(step: int, *, size: int = 10) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.full((size, 3), float(step))
    return {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None),
        "plain": torch.full((5,), step),
        "step": step,
    }


def load_whole(url: str) -> tuple[float, float, int]:
    """Load in this process alone, and return a number for each part of the state."""
    state: dict[str, Any] = {
        "sharded": torch.zeros(10, 3),
        "plain": torch.zeros(5, dtype=torch.int64),
        "step": -1,
    }
    load_alone(state, StorageReader(url))
    return float(state["sharded"].mean()), float(state["plain"].float().mean()), state["step"]


def save_with_cached_plans(rank: int, url: str) -> None:
    planner = DefaultSavePlanner(enable_plan_caching=True)
    for step in (1, 2, 3):
        save(state_at(step), storage_writer=StorageWriter(url, step=step), planner=planner)
    more = {**state_at(4), "more": torch.ones(2)}
    save(more, storage_writer=StorageWriter(url, step=4), planner=planner)


def test_cached_plans_save_every_step_s_own_values(url: str) -> None:
    run_ranks(2, save_with_cached_plans, url)
    assert [load_whole(f"{url}@{step}") for step in (1, 2, 3, 4)] == [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
        (4, 4, 4),
    ]
    assert {parse_uid(info.uid).incarnation for info in checkpoints_of(url)} == {1}


def save_each_alone(rank: int, url: str) -> None:
    """Every rank plans alone; each has a key of its own beside a common one."""
    state = {f"of rank {rank}": torch.full((3,), rank), "common": torch.ones(4), "item": rank}
    save(state, storage_writer=StorageWriter(url, step=1), use_collectives=False)


def test_without_collectives_no_rank_s_data_is_lost(url: str) -> None:
    run_ranks(2, save_each_alone, url)
    assert manifest_of(url).attempt.world_size == 2
    state = {f"of rank {rank}": torch.full((3,), -1) for rank in range(2)}
    state |= {"common": torch.zeros(4), "item": None}  # type: ignore[dict-item]
    load_alone(state, StorageReader(url))
    assert [state[f"of rank {rank}"].tolist() for rank in range(2)] == [[0] * 3, [1] * 3]
    assert state["item"] == 0  # Of what all ranks saved, the lowest rank's is taken.


def save_in_background(rank: int, url: str, mode: AsyncCheckpointerType) -> None:
    for step in (1, 2, 3):
        state = state_at(step)
        writer = StorageWriter(url, step=step)
        saving = async_save(state, storage_writer=writer, async_checkpointer_type=mode)
        state["sharded"].to_local().fill_(-1)  # Training goes on.
        state["plain"].fill_(-1)
        saving.result(60)  # type: ignore[union-attr]
    save(state_at(4), storage_writer=StorageWriter(url, step=4))
    load(state_at(0), storage_reader=StorageReader(f"{url}@2"))
    saving = async_save(
        state_at(3), storage_writer=StorageWriter(url, step=3), async_checkpointer_type=mode
    )
    saving.result(60)  # type: ignore[union-attr]
    _async_process_executor._CHECKPOINT_PROCESS = None  # Ends it.


@pytest.mark.parametrize("mode", AsyncCheckpointerType, ids=lambda mode: mode.value)
def test_saves_in_the_background_are_of_the_moment_they_were_asked_for(
    url: str, mode: AsyncCheckpointerType
) -> None:
    run_ranks(2, save_in_background, url, mode)
    assert [load_whole(f"{url}@{step}")[0] for step in (1, 2, 3, 4)] == [1, 2, 3, 4]
    # After a rollback, what was saved since is the latest, in whichever process it was.
    assert load_whole(url) == (3, 3, 3)


def look_at_latest(rank: int, url: str) -> str:
    """Rank 0 looks for the latest before, and rank 1 after another one is committed."""
    save(state_at(1), storage_writer=StorageWriter(url, step=1))
    reader = StorageReader(url)
    if rank == 0:
        reader.read_metadata()
        save({"a": 1}, storage_writer=StorageWriter(url, step=2), no_dist=True)
    dist.barrier()
    if rank == 1:
        reader.read_metadata()
    assert reader.attempt is not None
    return reader.attempt.uid


def test_all_ranks_find_the_same_latest(url: str) -> None:
    first, second = run_ranks(2, look_at_latest, url)
    assert first == second
    assert parse_uid(manifest_of(url).attempt.uid).step == 2


def save_and_load_alone(rank: int, url: str) -> int:
    """Only rank 1 does anything, beside a group that knows nothing of it."""
    if rank == 1:
        save({"a": torch.ones(3)}, storage_writer=StorageWriter(url, step=1), no_dist=True)
        state = {"a": torch.zeros(3)}
        load(state, storage_reader=StorageReader(url), no_dist=True)
        return int(state["a"].sum())
    return 0


def test_one_rank_alone_waits_for_nobody(url: str) -> None:
    assert run_ranks(2, save_and_load_alone, url) == [0, 3]
    assert manifest_of(url).attempt.world_size == 1


def save_in_a_subgroup(rank: int, url: str) -> int:
    group = dist.new_group([1, 2])
    dist.barrier()  # Whoever leaves while the others still connect takes them along.
    if rank == 0:
        return 0
    mesh = DeviceMesh.from_group(group, "cpu")
    state = {"a": distribute_tensor(torch.arange(9.0), mesh, [Shard(0)], src_data_rank=None)}
    save(state, storage_writer=StorageWriter(url, step=1), process_group=group)
    blank = {"a": distribute_tensor(torch.zeros(9), mesh, [Shard(0)], src_data_rank=None)}
    load(blank, storage_reader=StorageReader(url), process_group=group)
    return int(blank["a"].to_local().sum() == state["a"].to_local().sum())


def test_a_subgroup_saves_as_a_world_of_its_own(url: str) -> None:
    assert run_ranks(3, save_in_a_subgroup, url) == [0, 1, 1]
    assert manifest_of(url).attempt.world_size == 2


def fsdp_model(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 13), nn.Linear(13, 5))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def whole_sum(state: Any) -> list[float]:  # noqa: ANN401
    """Return the sum of every tensor, in order of names; the same in every world."""
    found: dict[str, float] = {}

    def walk(path: str, value: Any) -> None:  # noqa: ANN401
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path}.{key}", inner)
        elif isinstance(value, DTensor):
            found[path] = float(value.full_tensor().double().sum())
        elif isinstance(value, torch.Tensor):
            found[path] = float(value.double().sum())

    walk("", state)
    return [found[key] for key in sorted(found)]


def train_and_save(rank: int, url: str) -> list[float]:
    model, optimizer = fsdp_model(seed=0)
    for _ in range(2):
        model(torch.ones(4, 7)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, averages = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": averages}
    save(state, storage_writer=StorageWriter(url, step=1))
    return whole_sum(state)


def load_and_look(rank: int, url: str) -> list[float]:
    model, optimizer = fsdp_model(seed=1)
    weights, averages = get_state_dict(model, optimizer)
    load({"model": weights, "optim": averages}, storage_reader=StorageReader(url))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=averages)
    weights, averages = get_state_dict(model, optimizer)
    return whole_sum({"model": weights, "optim": averages})


def test_a_fully_sharded_model_goes_on_in_another_world(url: str) -> None:
    saved = run_ranks(2, train_and_save, url)
    loaded = run_ranks(3, load_and_look, url)
    assert saved == [saved[0]] * 2
    assert loaded == [saved[0]] * 3


SCRIPT = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from ckptstore.torch import StorageReader, StorageWriter

dist.init_process_group("gloo")
state = {"a": torch.full((4,), 7.0), "of all": {"step": 3}}
dcp.save(state, storage_writer=StorageWriter(sys.argv[1], step=3))
blank = {"a": torch.zeros(4), "of all": {"step": 0}}
dcp.load(blank, storage_reader=StorageReader(sys.argv[1]))
assert blank["of all"]["step"] == 3 and blank["a"].sum() == 28
dist.destroy_process_group()
"""


def test_it_works_under_torchrun(url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(script), url],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert manifest_of(url).attempt.world_size == 2
