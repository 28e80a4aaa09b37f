"""Numbers of another type, cut into files as Hugging Face has them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import UsageError
from ckptstore.fetch.cast import Cast
from ckptstore.fetch.restore import Format, Layout, restore_checkpoint
from tests.cli.files import names_in
from tests.cli.tensors import SMALL, Array, Box, RankState, save_tensors
from tests.unit.test_fetch_restore import data_in, manifest_in

TORCH = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}
TORCH |= {"bfloat16": torch.bfloat16}


@given(
    st.lists(st.floats(width=32, allow_subnormal=True), max_size=20),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from(["bfloat16", "float32", "float64"]),
)
def test_numbers_become_what_torch_makes_of_them(
    numbers: list[float], source: str, target: str
) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float32).to(TORCH[source])
    data = memoryview(tensor.view(torch.uint8).numpy().tobytes())
    cast = bytes(Cast("x", source, target)(data))
    found = torch.frombuffer(bytearray(cast), dtype=TORCH[target]) if cast else torch.empty(0)
    torch.testing.assert_close(
        found.double(), tensor.to(TORCH[target]).double(), rtol=0, atol=0, equal_nan=True
    )


def test_a_number_that_would_become_infinite_is_refused() -> None:
    data = memoryview(numpy.array([1.0, 1e6], "<f4").tobytes())
    with pytest.raises(UsageError, match="w holds numbers beyond those of float16"):
        Cast("w", "float32", "float16")(data)
    infinite = memoryview(numpy.array([numpy.inf], "<f4").tobytes())
    assert bytes(Cast("w", "float32", "float16")(infinite)) == b"\x00\x7c"


ARRAYS = {
    "a": Array("float32", (8, 6)),
    "b": Array("bfloat16", (40,)),
    "count": Array("int64", (3,)),
    "z": Array("float32", (5,)),
}
RANKS = [
    RankState(boxes=[("a", Box((0, 0), (8, 2))), ("b", ARRAYS["b"].whole)]),
    RankState(boxes=[("a", Box((0, 2), (8, 4))), ("count", ARRAYS["count"].whole)]),
    RankState(boxes=[("z", ARRAYS["z"].whole)]),
]


async def exported(root: Path, **layout: str | int) -> Path:
    store = MemoryStore()
    await save_tensors(store, ARRAYS, RANKS)
    await restore_checkpoint(
        store,
        await manifest_in(store),
        root / "out",
        layout=Layout(form=Format.SAFETENSORS, **layout),  # type: ignore[arg-type]
        settings=SMALL,
    )
    return root / "out"


async def test_only_floats_are_cast_however_they_were_sharded(tmp_path: Path) -> None:
    out = await exported(tmp_path, dtype="bfloat16")
    with safe_open(out / "model.safetensors", framework="pt") as opened:
        for name, array in ARRAYS.items():
            dtype = getattr(torch, array.dtype)
            was = torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)
            wanted = was.to(torch.bfloat16) if dtype.is_floating_point else was
            torch.testing.assert_close(
                opened.get_tensor(name), wanted, rtol=0, atol=0, equal_nan=True
            )


async def test_files_are_no_larger_than_asked_and_the_index_says_which_has_what(
    tmp_path: Path,
) -> None:
    out = await exported(tmp_path, file_bytes_max=200)
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert names_in(out) == [*names, "model.safetensors.index.json"]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(a.data) for a in ARRAYS.values())
    assert index["weight_map"] == dict.fromkeys("a", names[0]) | dict.fromkeys(
        ("b", "count", "z"), names[1]
    )
    for name, file in index["weight_map"].items():
        assert data_in(out / file)[name] == ARRAYS[name].data


async def test_a_tensor_larger_than_a_file_may_be_has_one_of_its_own(tmp_path: Path) -> None:
    out = await exported(tmp_path, file_bytes_max=1)
    assert len(names_in(out)) == len(ARRAYS) + 1


def test_type_and_file_size_are_of_safetensors_only() -> None:
    with pytest.raises(UsageError, match="--format safetensors only"):
        Layout(form=Format.NATIVE, dtype="bfloat16")
