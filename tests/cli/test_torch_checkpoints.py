"""What torch saved, the command line restores so that torch and stock readers open it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from ckptstore.backends.memory import MemoryStore
from ckptstore.fetch.restore import restore_checkpoint
from ckptstore.fetch.selection import Selection
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import Latest
from ckptstore.torch import StorageWriter
from tests.cli.conftest import Cli
from tests.cli.files import names_in
from tests.cli.tensors import RUN, SMALL, Array, Box, RankState, save_tensors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state() -> dict[str, object]:
    return {
        "model": {
            "weight": torch.arange(24, dtype=torch.float32).reshape(4, 6),
            "bias": torch.ones(3, dtype=torch.bfloat16),
            "mask": torch.tensor([True, False, True]),
        },
        "optimizer": {"state": [{"m": torch.zeros(2)}, {"m": torch.ones(2)}]},
        "step": 7,
    }


@pytest.fixture
def saved(store: Path) -> str:
    state_dict_saver.save(state(), storage_writer=StorageWriter(str(store / "net"), step=3))
    return f"{store}/net"


def loaded(directory: Path) -> dict[str, torch.Tensor]:
    into = {
        "model.weight": torch.zeros(4, 6),
        "model.bias": torch.zeros(3, dtype=torch.bfloat16),
    }
    state_dict_loader.load(into, storage_reader=HuggingFaceStorageReader(str(directory)))
    return into


def check(found: dict[str, torch.Tensor]) -> None:
    model = state()["model"]
    assert isinstance(model, dict)
    for name in ("weight", "bias"):
        assert torch.equal(found[f"model.{name}"], model[name])


def test_a_restored_directory_opens_in_torch(cli: Cli, saved: str, tmp_path: Path) -> None:
    assert cli("restore", saved, tmp_path / "out").code == 0
    check(loaded(tmp_path / "out"))


def test_a_part_of_it_opens_in_torch(cli: Cli, saved: str, tmp_path: Path) -> None:
    assert cli("restore", saved, tmp_path / "out", "--only", "model.[wb]*").code == 0
    check(loaded(tmp_path / "out"))
    assert names_in(tmp_path / "out") == ["000000-0000.safetensors", "ckptstore-manifest.json"]


def test_whole_tensors_open_in_safetensors(cli: Cli, saved: str, tmp_path: Path) -> None:
    ended = cli("restore", saved, tmp_path / "out", "--format", "safetensors")
    assert ended.code == 0
    assert "left out what is not a tensor: step; --format native keeps it" in ended.err
    found = load_file(tmp_path / "out" / "model.safetensors")
    check(found)
    assert found["model.mask"].tolist() == [True, False, True]


def test_a_torch_file_has_the_state_as_it_was(cli: Cli, saved: str, tmp_path: Path) -> None:
    assert cli("restore", saved, tmp_path / "out", "--format", "torch").code == 0
    found = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert found.keys() == state().keys()
    assert found["step"] == 7
    assert found["optimizer"]["state"][1]["m"].tolist() == [1, 1]
    check({f"model.{name}": tensor for name, tensor in found["model"].items()})


async def test_chunks_of_several_ranks_open_in_torch(tmp_path: Path) -> None:
    array = Array("bfloat16", (4, 6))
    ranks = [
        RankState(boxes=[("w", Box((0, 0), (4, 2)))]),
        RankState(boxes=[("w", Box((0, 2), (4, 4)))]),
    ]
    store = MemoryStore()
    await save_tensors(store, {"w": array}, ranks)
    manifest = await read_manifest(store, await find_checkpoint(store, RUN, Latest()))
    await restore_checkpoint(
        store,
        manifest,
        tmp_path / "out",
        selection=Selection(patterns=("w",)),
        settings=SMALL,
    )
    into = {"w": torch.zeros(4, 6, dtype=torch.bfloat16)}
    state_dict_loader.load(into, storage_reader=HuggingFaceStorageReader(str(tmp_path / "out")))
    assert bytes(into["w"].reshape(-1).view(torch.uint8).tolist()) == array.data
