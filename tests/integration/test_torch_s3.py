"""The main job on real servers: four ranks save, two restore, and a lost rank commits nothing."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ckptstore.errors import CheckpointAbortedError
from ckptstore.torch import Checkpointer, StorageReader, StorageWriter
from localstack.servers import variables
from tests.integration.buckets import Bucket
from tests.torch.ranks import run_ranks, watch_ranks
from tests.torch.worlds import checkpoints_of

pytestmark = [pytest.mark.integration, pytest.mark.distributed]
DEADLINE_S = 12.0
ROWS, COLUMNS = 1200, 8000  # 36 MiB of float32: more than one part.


def sharded(value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + value
    return {"w": distribute_tensor(whole, mesh, [Shard(0)]), "step": int(value)}


def saved(rank: int, url: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # Ranks are forked from a server that does not know it.
    save(sharded(1.0), storage_writer=StorageWriter(url, step=1, deadline_s=60))


def loaded(rank: int, url: str, environment: dict[str, str]) -> tuple[bool, int]:
    os.environ.update(environment)
    state = sharded(0.0)
    load(state, storage_reader=StorageReader(url, deadline_s=60))
    assert isinstance(state["w"], DTensor)
    whole = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 1.0
    return torch.equal(state["w"].full_tensor(), whole), state["step"]


def lost(rank: int, url: str, environment: dict[str, str], victim: int) -> str:
    os.environ.update(environment)
    ckpt = Checkpointer(url, deadline_s=DEADLINE_S)
    ckpt.save(2, sharded(2.0))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(CheckpointAbortedError) as caught:
        ckpt.wait()
    return str(caught.value)


def test_four_ranks_save_two_restore_and_a_lost_one_commits_nothing(
    bucket: Bucket, server_name: str
) -> None:
    url = f"s3://{bucket.name}/ckpts/llama"
    environment = variables(server_name, bucket.endpoint_url)
    run_ranks(4, saved, url, environment)
    assert run_ranks(2, loaded, url, environment) == [(True, 1)] * 2
    victim = 0 if server_name == "localstack" else 2  # The coordinator, and another.
    for rank, outcome in enumerate(watch_ranks(4, lost, url, environment, victim)):
        assert outcome.error is None, outcome.trace
        assert rank == victim or f"rank {victim}" in outcome.value
    assert [info.state for info in checkpoints_of(url)].count("committed") == 1
    assert run_ranks(2, loaded, url, environment) == [(True, 1)] * 2
    assert uploads_open(bucket) <= 1  # The victim may have left the one it was sending.


def uploads_open(bucket: Bucket) -> int:
    return len(bucket.raw.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []))
