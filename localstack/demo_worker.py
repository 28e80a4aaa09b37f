"""One rank of the demonstration: trains a small sharded model and saves every few steps."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ckptstore.errors import CkptStoreError
from ckptstore.torch import Checkpointer

SAVE_EVERY = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_url")
    parser.add_argument("out", type=Path, help="a directory for what this rank has to say")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--deadline", type=float, default=10.0)
    parser.add_argument("--die-at", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    report: dict[str, Any] = {}
    try:
        train(arguments, rank, report)
    except (CkptStoreError, RuntimeError) as error:
        report["error"] = f"{type(error).__name__}: {error}"
    (arguments.out / f"rank-{rank}.json").write_text(json.dumps(report))
    os._exit(0)  # The process group of a job that lost a rank cannot be taken down in order.


def train(arguments: argparse.Namespace, rank: int, report: dict[str, Any]) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Checkpointer(arguments.run_url, deadline_s=arguments.deadline) as checkpointer:
        restored = checkpointer.restore(state_of(model, optimizer)) or 0
        report["restored"], report["digest"] = restored, {restored: digest(model, optimizer)}
        for step in range(restored + 1, arguments.steps + 1):
            torch.manual_seed(1000 * step + rank)
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            if step % SAVE_EVERY == 0:
                report["digest"][step] = digest(model, optimizer)
                checkpointer.save(step, state_of(model, optimizer))
                if step == arguments.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)  # While the save is in flight.
        checkpointer.wait()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state; an optimizer that has not stepped yet gets the state it will have."""
    for parameter in model.parameters():
        if parameter not in optimizer.state:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the SHA-256 of all of the state, gathered from all ranks."""
    state = state_of(model, optimizer)
    tensors = [*state["model"].values()]
    for one in state["optimizer"].values():
        tensors += one.values()
    sha = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        sha.update(whole.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


if __name__ == "__main__":
    main()
