"""What four ranks saved is loaded by one, two and three, sharded in other ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from ckptstore.torch import StorageReader, StorageWriter
from ckptstore.torch.reads import Box
from ckptstore.torch.targets import narrowed
from ckptstore.torch.tensors import dtype_named
from tests.torch.ranks import run_ranks
from tests.torch.worlds import SMALL, bits, manifest_of, random_bits
from tests.world import only_stored_as_it_is

SHAPES = {"even": (16, 12), "uneven": (7, 5), "few rows": (2, 300), "cube": (5, 6, 7)}
DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64)


def whole(name: str, dtype: torch.dtype) -> torch.Tensor:
    return random_bits(dtype, *SHAPES[name], seed=len(name))


def ways_to_shard(world_size: int) -> dict[str, tuple[Any, list[Placement]]]:
    """Return meshes and placements by name; names are the same in every world."""
    line = init_device_mesh("cpu", (world_size,))
    rows = 2 if world_size % 2 == 0 else 1
    grid = init_device_mesh("cpu", (rows, world_size // rows))
    return {
        "rows": (line, [Shard(0)]),
        "columns": (line, [Shard(1)]),
        "replicated": (line, [Replicate()]),
        "grid": (grid, [Shard(0), Shard(1)]),
        "replicated rows": (grid, [Replicate(), Shard(0)]),
    }


def sharded_state(world_size: int, *, blank: bool, turn: int) -> dict[str, Any]:
    """Return the state, sharded; ``turn`` makes a tensor be sharded in another way."""
    ways = list(ways_to_shard(world_size).values())
    state: dict[str, Any] = {}
    for index, (name, dtype) in enumerate((name, dtype) for name in SHAPES for dtype in DTYPES):
        for way in range(len(ways)):
            mesh, placements = ways[(way + turn) % len(ways)]
            tensor = whole(name, dtype)
            tensor = torch.zeros(tensor.shape).to(dtype) if blank else tensor
            sharded = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
            state[f"{name}.{index}.{way}"] = sharded
    plain = random_bits(torch.float32, 50)
    state["plain"] = torch.zeros_like(plain) if blank else plain
    state["items"] = {"epoch": 0 if blank else 3, "names": ("",) if blank else ("a", "b")}
    return state


def save_sharded(rank: int, url: str, world_size: int) -> None:
    save(
        sharded_state(world_size, blank=False, turn=0),
        storage_writer=StorageWriter(url, step=1, settings=SMALL),
    )


def load_sharded(rank: int, url: str, world_size: int, turn: int) -> list[str]:
    """Load and return the names of what is wrong."""
    found = sharded_state(world_size, blank=True, turn=turn)
    load(found, storage_reader=StorageReader(url, settings=SMALL))
    expected = sharded_state(world_size, blank=False, turn=turn)
    wrong = [
        name
        for name, tensor in expected.items()
        if isinstance(tensor, DTensor) and bits(tensor.to_local()) != bits(found[name].to_local())
    ]
    wrong += [] if bits(found["plain"]) == bits(expected["plain"]) else ["plain"]
    return wrong + ([] if found["items"] == expected["items"] else ["items"])


@pytest.fixture(scope="module")
def saved_by_four(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("store") / "run")
    run_ranks(4, save_sharded, url, 4)
    return url


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "turn"), [(1, 0), (2, 1), (3, 2), (4, 0)])
def test_any_world_loads_what_another_saved(saved_by_four: str, world_size: int, turn: int) -> None:
    assert run_ranks(world_size, load_sharded, saved_by_four, world_size, turn) == [[]] * world_size


def test_a_rank_records_the_paths_of_what_it_saved_itself(saved_by_four: str) -> None:
    for record in manifest_of(saved_by_four).records:
        names = {entry.name for entry in record.tensors} | {item.name for item in record.items}
        assert record.paths is not None
        assert record.paths.keys() == names


@only_stored_as_it_is
def test_any_reader_of_the_format_opens_every_shard(saved_by_four: str) -> None:
    manifest = manifest_of(saved_by_four)
    root = Path(saved_by_four).parent
    seen = 0
    for record in manifest.records:
        for entry in record.tensors:
            if entry.name == "plain":
                continue
            name, dtype = entry.name.split(".")[0], dtype_named(entry.dtype)
            box = Box(entry.offsets, entry.sizes)
            with safe_open(root / record.shards[entry.shard].key, framework="pt") as file:
                assert bits(file.get_tensor(entry.name)) == bits(narrowed(whole(name, dtype), box))
            seen += 1
    assert seen > 4 * len(SHAPES) * len(DTYPES)


@only_stored_as_it_is
def test_torch_s_own_reader_of_the_format_loads_it_all(saved_by_four: str, tmp_path: Path) -> None:
    for shard in manifest_of(saved_by_four).shards:
        if shard.key.endswith(".safetensors"):
            source = Path(saved_by_four).parent / shard.key
            (tmp_path / source.name).symlink_to(source)
    state: dict[str, Any] = {
        f"{name}.{index}.{way}": torch.zeros(SHAPES[name]).to(dtype)
        for index, (name, dtype) in enumerate((name, dtype) for name in SHAPES for dtype in DTYPES)
        for way in range(5)
    }
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path)))
    for name, tensor in state.items():
        assert bits(tensor) == bits(whole(name.split(".")[0], tensor.dtype)), name
