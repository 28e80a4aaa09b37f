"""A checkpoint as one file for ``torch.load``."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import pytest
import torch

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import SettingsError, UntrustedCodeError, UsageError
from ckptstore.fetch.restore import Format, Layout, restore_checkpoint
from ckptstore.fetch.selection import Selection
from ckptstore.fetch.torch_file import nested
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import Latest
from tests.cli.files import names_in, pushed
from tests.cli.tensors import RUN, SMALL, Array, Box, RankState, save_tensors

ARRAYS = {
    "split": Array("bfloat16", (4, 6)),
    "scalar": Array("float64", ()),
    "empty": Array("float32", (0, 3)),
    "flags": Array("uint8", (5,)),
}


class NotPlain:
    """What would run code of ours to be loaded."""


def stored(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


async def restored(destination: Path, *, only: tuple[str, ...] = ()) -> dict[str, object]:
    store = MemoryStore()
    first = RankState(
        boxes=[
            ("split", Box((0, 0), (4, 2))),
            ("scalar", ARRAYS["scalar"].whole),
            ("empty", ARRAYS["empty"].whole),
        ],
        items={"step": stored(7), "odd": stored(NotPlain())},
    )
    second = RankState(
        boxes=[("split", Box((0, 2), (4, 4))), ("flags", ARRAYS["flags"].whole)],
    )
    await save_tensors(store, ARRAYS, [first, second])
    manifest = await read_manifest(store, await find_checkpoint(store, RUN, Latest()))
    result = await restore_checkpoint(
        store,
        manifest,
        destination,
        layout=Layout(form=Format.TORCH),
        selection=Selection(patterns=only),
        settings=SMALL,
    )
    file = destination / "checkpoint.pt"
    assert result.bytes == file.stat().st_size
    state: dict[str, object] = torch.load(file, weights_only=True)
    return state


async def test_tensors_of_several_ranks_and_items_come_back_as_they_were(tmp_path: Path) -> None:
    state = await restored(tmp_path / "out", only=("s*", "e*", "f*"))
    assert state.pop("step") == 7
    assert state.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        tensor = state[name]
        assert isinstance(tensor, torch.Tensor)
        assert tensor.shape == array.shape
        assert str(tensor.dtype) == f"torch.{array.dtype}"
        found = tensor.reshape(-1).view(torch.uint8) if math.prod(array.shape) else tensor
        assert bytes(found.tolist()) == array.data


async def test_an_item_that_could_run_code_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UntrustedCodeError, match="'odd' .* --only, or use --format native"):
        await restored(tmp_path / "out")
    assert names_in(tmp_path) == []


async def test_without_torch_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    await save_tensors(store, ARRAYS, [RankState(boxes=[("flags", ARRAYS["flags"].whole)])])
    manifest = await read_manifest(store, await find_checkpoint(store, RUN, Latest()))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SettingsError, match=r"pip install 'ckptstore\[torch\]'"):
        await restore_checkpoint(
            store, manifest, tmp_path / "out", layout=Layout(form=Format.TORCH)
        )


def test_values_go_back_to_where_their_paths_lead() -> None:
    flat = {"a.b": 1, "l.0": 2, "l.1.x": 3, "alone": 4, "gap.1": 5, "d": {}}
    paths: dict[str, tuple[str | int, ...]] = {
        "a.b": ("a", "b"),
        "l.0": ("l", 0),
        "l.1.x": ("l", 1, "x"),
        "gap.1": ("gap", 1),
    }
    assert nested(flat, paths) == {
        "a": {"b": 1},
        "l": [2, {"x": 3}],
        "alone": 4,
        "gap": {1: 5},
        "d": {},
    }


async def test_files_are_no_torch_checkpoint(tmp_path: Path) -> None:
    store, manifest = await pushed([{"file": b"x"}])
    with pytest.raises(UsageError, match="holds files and no tensors; use --format native"):
        await restore_checkpoint(
            store, manifest, tmp_path / "out", layout=Layout(form=Format.TORCH)
        )
