"""What goes in comes out, bit for bit, in a world of one."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from ckptstore import opening
from ckptstore.backends.memory import MemoryStore
from ckptstore.settings import Settings, TransferSettings
from ckptstore.testing.faults import FaultLayer
from ckptstore.torch import StorageReader, StorageWriter
from ckptstore.torch.tensors import dtype_name
from ckptstore.types import MIB
from tests.torch.test_safetensors import DTYPES, NAMELESS
from tests.torch.worlds import SMALL, bits, fresh_url, load, manifest_of, random_bits, save


def zeros_like(state: Any) -> Any:  # noqa: ANN401
    """Return the state with all tensors zeroed, in memory of their own."""
    match state:
        case dict():
            return {key: zeros_like(value) for key, value in state.items()}
        case list():
            return [zeros_like(value) for value in state]
        case torch.Tensor():
            return torch.empty_strided(state.shape, state.stride(), dtype=state.dtype).copy_(
                torch.zeros(state.shape, dtype=torch.uint8).to(state.dtype)
            )
        case _:
            return None


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*DTYPES, *NAMELESS[:2]], ids=dtype_name)
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    shapes = [(), (1,), (7,), (0,), (0, 3), (5, 3), (2, 3, 4), (1, 300)]
    state = {str(shape): random_bits(dtype, *shape) for shape in shapes}
    url = fresh_url()
    save(state, StorageWriter(url, step=1, settings=SMALL))
    loaded = load(zeros_like(state), StorageReader(url, settings=SMALL))
    for name, tensor in state.items():
        assert bits(loaded[name]) == bits(tensor), name


def test_raw_bytes_of_a_dtype_that_cannot_even_be_copied_come_back() -> None:
    tensor = random_bits(torch.float4_e2m1fn_x2, 5, 3)
    url = fresh_url()
    save({"a": tensor}, StorageWriter(url, step=1, settings=SMALL))
    found = torch.empty(5, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    load({"a": found}, StorageReader(url, settings=SMALL))
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_layouts_in_memory_do_not_matter() -> None:
    base = random_bits(torch.float32, 8, 6, 4)
    state = {
        "view": base[2:5],
        "transposed": base.permute(2, 0, 1),
        "strided": base[:, ::2, 1:3],
        "the same memory again": base,
        "conjugated": random_bits(torch.complex64, 40).conj(),
        "parameter": torch.nn.Parameter(random_bits(torch.float32, 90)),
    }
    url = fresh_url()
    save(state, StorageWriter(url, step=1, settings=SMALL))
    assert manifest_of(url).commit.data_bytes < 4096 + 4 * (96 + 192 + 96 + 192 + 80 + 90) + 1
    into = zeros_like(state)
    into["transposed"] = torch.zeros(8, 6, 4).permute(2, 0, 1)
    into["strided"] = torch.zeros(8, 6, 4)[:, ::2, 1:3]
    into["parameter"] = torch.nn.Parameter(torch.zeros(90))
    load(into, StorageReader(url, settings=SMALL))
    for name, tensor in state.items():
        assert bits(into[name]) == bits(tensor), name


def test_nested_states_and_other_values_come_back() -> None:
    state: dict[str, Any] = {
        "model": {"layer.0.weight": random_bits(torch.bfloat16, 5, 3)},
        "optimizer": {
            "state": {0: {"exp_avg": random_bits(torch.float32, 5, 3), "step": torch.tensor(3.0)}},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.95), "names": ["a", "b"]}],
        },
        "rng": torch.get_rng_state(),
        "epoch": 3,
        "name": "run-7",
        "nothing": None,
    }
    url = fresh_url()
    save(state, StorageWriter(url, step=1, settings=SMALL))
    loaded = load(zeros_like(state), StorageReader(url, settings=SMALL))
    assert bits(loaded["model"]["layer.0.weight"]) == bits(state["model"]["layer.0.weight"])
    average = state["optimizer"]["state"][0]["exp_avg"]
    assert bits(loaded["optimizer"]["state"][0]["exp_avg"]) == bits(average)
    assert loaded["optimizer"]["groups"] == state["optimizer"]["groups"]
    assert torch.equal(loaded["rng"], state["rng"])
    assert [loaded[key] for key in ("epoch", "name", "nothing")] == [3, "run-7", None]


def test_a_state_can_be_rebuilt_from_the_checkpoint_alone() -> None:
    state: dict[str, Any] = {"a": {"b": [random_bits(torch.float32, 3), 5]}}
    state["c"] = random_bits(torch.int64, 2)
    url = fresh_url()
    save(state, StorageWriter(url, step=1))
    with pytest.warns(UserWarning, match=r"torch\.distributed is unavailable"):
        found = _load_state_dict_from_keys(storage_reader=StorageReader(url))
    assert torch.equal(found["a"]["b"][0], state["a"]["b"][0])
    assert found["a"]["b"][1] == 5
    assert torch.equal(found["c"], state["c"])


def test_nothing_at_all_can_be_saved_and_loaded() -> None:
    url = fresh_url()
    save({}, StorageWriter(url, step=1))
    assert manifest_of(url).shards == ()
    assert load({}, StorageReader(url)) == {}


def test_a_planner_may_convert_what_it_saves() -> None:
    class Halves(DefaultSavePlanner):
        """As torch's own documentation shows it, except that it is called lazily here."""

        def create_local_plan(self) -> Any:  # noqa: ANN401
            plan = super().create_local_plan()
            for item in plan.items:
                if item.tensor_data is not None:
                    item.tensor_data.properties.dtype = torch.float16
            return plan

        def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
            found = super().resolve_data(write_item)
            return found.to(torch.float16) if isinstance(found, torch.Tensor) else found

    url = fresh_url()
    weights = {"a": torch.arange(300.0), "b": torch.arange(7.0)}
    save(weights, StorageWriter(url, step=1, settings=SMALL), planner=Halves())
    into = {name: torch.zeros_like(tensor, dtype=torch.float16) for name, tensor in weights.items()}
    load(into, StorageReader(url, settings=SMALL))
    assert all(torch.equal(into[name], weights[name].half()) for name in weights)


def test_twenty_thousand_small_tensors_take_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultLayer(MemoryStore())
    monkeypatch.setattr(opening, "named_memory_store", lambda name: store)
    state: dict[str, Any] = {f"layers.{i}.bias": torch.full((16,), float(i)) for i in range(20_000)}
    url = fresh_url()
    save({"warm": torch.zeros(1)}, StorageWriter(url, step=0))
    store.calls.clear()
    began_s = time.process_time()
    save(state, StorageWriter(url, step=1))
    assert sum(store.calls.values()) <= 12, dict(store.calls)
    assert len(manifest_of(url).shards) == 1
    store.calls.clear()
    loaded = load(zeros_like(state), StorageReader(url))
    assert sum(store.calls.values()) <= 12, dict(store.calls)
    assert time.process_time() - began_s < 30  # Of CPU, nearly all of it DCP's own.
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def peak_growth_bytes(work: Any) -> int:  # noqa: ANN401
    """Return by how much this process grew at most while it did ``work``."""
    Path("/proc/self/clear_refs").write_text("5")

    def value(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    before = value("VmRSS")
    work()
    return value("VmHWM") - before


def test_a_large_tensor_is_never_held_twice(tmp_path: Path) -> None:
    size_bytes = 256 * MIB
    settings = Settings(transfer=TransferSettings(in_flight_bytes_max=32 * MIB))
    state: dict[str, Any] = {
        "plain": torch.ones(size_bytes // 8),
        "strided": torch.ones(1024, size_bytes // 8192).T,
    }
    into: dict[str, Any] = {
        "plain": torch.full((size_bytes // 8,), 2.0),
        "strided": torch.full((1024, size_bytes // 8192), 2.0).T,
    }
    save({"warm": torch.ones(5)}, StorageWriter(tmp_path / "run", step=0))

    def write() -> None:
        save(state, StorageWriter(tmp_path / "run", step=1, settings=settings))

    def read() -> None:
        load(into, StorageReader(tmp_path / "run", settings=settings))

    assert peak_growth_bytes(write) < size_bytes / 2
    assert peak_growth_bytes(read) < size_bytes / 2
    assert all(torch.equal(into[name], state[name]) for name in state)
