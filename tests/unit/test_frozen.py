"""A store of format version 1, written once, byte by byte: every release must read it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptstore.commit.catalog import list_checkpoints, list_runs
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import AtStep, Latest, parse_store
from ckptstore.manifest.model import Manifest
from ckptstore.opening import existing_record, opened_store
from ckptstore.restore.verify import verify_shards
from ckptstore.settings import Settings
from ckptstore.torch import Checkpointer

FROZEN = Path(__file__).parent.parent / "frozen" / "v1"


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Return a copy, so that no test can thaw it."""
    return str(shutil.copytree(FROZEN, tmp_path / "v1"))


def test_its_records_say_what_they_said(store_url: str) -> None:
    async def read() -> tuple[list[str], list[tuple[int, str, str, int, int]], Manifest]:
        location = parse_store(store_url)
        async with opened_store(location, Settings()) as store:
            assert (await existing_record(store, location)).create_only
            infos = await list_checkpoints(store, "state")
            manifest = await read_manifest(store, await find_checkpoint(store, "files", AtStep(7)))
            return (
                await list_runs(store),
                [(info.step, info.uid, info.state, info.bytes, info.objects) for info in infos],
                manifest,
            )

    runs, infos, manifest = asyncio.run(read())
    assert runs == ["files", "state"]
    assert infos == [
        (2000, "i000001-s000000002000-a00-f96c0db9", "aborted", 0, 0),
        (1000, "i000001-s000000001000-a00-14f7c4cb", "committed", 6646, 2),
    ]
    (record,) = manifest.records
    assert [entry.path for entry in record.files] == ["a.txt", "empty", "sub/b.bin"]
    assert [shard.size_bytes for shard in record.shards] == [6, 0, 9000]


@pytest.mark.parametrize("run", ["files", "state"])
def test_its_data_is_whole(store_url: str, run: str) -> None:
    async def verify() -> bool:
        async with opened_store(parse_store(store_url), Settings()) as store:
            manifest = await read_manifest(store, await find_checkpoint(store, run, Latest()))
            report = await verify_shards(store, manifest.shards, settings=Settings().transfer)
            return report.ok

    assert asyncio.run(verify())


def test_its_state_loads_bit_for_bit(store_url: str) -> None:
    state: dict[str, Any] = {
        "model": {"w": torch.zeros(3, 4, dtype=torch.bfloat16), "b": torch.tensor(0.0)},
        "lr": 0.0,
        "names": ["", ""],
    }
    with Checkpointer(f"{store_url}/state") as checkpointer:
        assert checkpointer.restore(state) == 1000
    model = state["model"]
    assert torch.equal(model["w"], torch.arange(12, dtype=torch.bfloat16).reshape(3, 4))
    assert torch.equal(model["b"], torch.tensor(0.5))
    assert (state["lr"], state["names"]) == (0.1, ["a", "b"])
