"""A checkpoint comes back as files: complete, verified, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors import safe_open

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import (
    ConflictError,
    IntegrityError,
    LocalResourceError,
    UsageError,
)
from ckptstore.fetch.restore import Format, Layout, Restored, restore_checkpoint
from ckptstore.fetch.selection import Selection
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import Latest
from ckptstore.manifest.model import Manifest
from ckptstore.testing.faults import Damage, Fault, FaultLayer
from ckptstore.types import ByteRange, Key
from tests.cli.files import names_in
from tests.cli.tensors import RUN, SMALL, Array, Box, RankState, save_tensors

ARRAYS = {
    "rows": Array("float32", (6, 5)),
    "columns": Array("bfloat16", (4, 6)),
    "grid": Array("int16", (4, 4, 3)),
    "bytes": Array("uint8", (37,)),
    "scalar": Array("float64", ()),
    "empty": Array("float32", (0, 3)),
}
RANKS = [
    RankState(
        boxes=[
            ("rows", Box((0, 0), (2, 5))),
            ("columns", Box((0, 0), (4, 2))),
            ("grid", Box((0, 0, 0), (2, 2, 3))),
            ("grid", Box((2, 2, 0), (2, 2, 3))),
            ("bytes", Box((0,), (37,))),
            ("scalar", Box((), ())),
            ("empty", Box((0, 0), (0, 3))),
        ],
        items={"step": b"not a tensor", "lr": b"x" * 40},
    ),
    RankState(
        boxes=[
            ("rows", Box((2, 0), (4, 5))),
            ("columns", Box((0, 2), (4, 4))),
            ("grid", Box((0, 2, 0), (2, 2, 3))),
            ("grid", Box((2, 0, 0), (2, 2, 3))),
            ("bytes", Box((0,), (37,))),  # A replica: either may be read.
        ],
        items={"rng": b"y"},
    ),
]


async def manifest_in(store: MemoryStore) -> Manifest:
    return await read_manifest(store, await find_checkpoint(store, RUN, Latest()))


async def saved() -> tuple[MemoryStore, Manifest]:
    store = MemoryStore()
    await save_tensors(store, ARRAYS, RANKS)
    return store, await manifest_in(store)


async def restored(
    manifest: Manifest,
    store: MemoryStore | FaultLayer,
    destination: Path,
    *,
    form: Format = Format.NATIVE,
    only: Sequence[str] = (),
    rank: int | None = None,
) -> Restored:
    return await restore_checkpoint(
        store,
        manifest,
        destination,
        layout=Layout(form=form),
        selection=Selection(patterns=tuple(only), rank=rank),
        settings=SMALL,
    )


def offsets_in(path: Path) -> dict[str, tuple[int, int]]:
    """Return where in a safetensors file each tensor starts and ends, as its header says."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header.pop("__metadata__")
    offsets = {name: entry["data_offsets"] for name, entry in header.items()}
    return {
        name: (8 + length + start, 8 + length + stop) for name, (start, stop) in offsets.items()
    }


def data_in(path: Path) -> dict[str, bytes]:
    """Return the bytes of every tensor in a safetensors file."""
    whole = path.read_bytes()
    return {name: whole[start:stop] for name, (start, stop) in offsets_in(path).items()}


async def test_the_shards_come_back_as_they_were_written(tmp_path: Path) -> None:
    store, manifest = await saved()
    result = await restored(manifest, store, tmp_path / "out")
    for record in manifest.records:
        for index, shard in enumerate(record.shards):
            suffix = shard.key.rpartition(".")[2]
            file = tmp_path / "out" / f"{record.rank:06d}-{index:04d}.{suffix}"
            assert file.read_bytes() == await store.get(shard.key)
    assert result.files == sum(len(record.shards) for record in manifest.records) + 1
    assert result.bytes == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert result.bytes_verified == manifest.commit.data_bytes
    assert (result.uid, result.step) == (manifest.attempt.uid, 1)


async def test_the_list_beside_the_shards_says_what_is_in_them(tmp_path: Path) -> None:
    store, manifest = await saved()
    await restored(manifest, store, tmp_path / "out")
    listed = json.loads((tmp_path / "out" / "ckptstore-manifest.json").read_text())
    assert (listed["run"], listed["step"], listed["world_size"]) == (RUN, 1, 2)
    for record, said in zip(manifest.records, listed["records"], strict=True):
        for tensor, entry in zip(record.tensors, said["tensors"], strict=True):
            file = tmp_path / "out" / said["shards"][entry["shard"]]["file"]
            data = file.read_bytes()[entry["start"] : entry["stop"]]
            assert data == ARRAYS[tensor.name].part(Box(tensor.offsets, tensor.sizes))


@pytest.mark.parametrize("only", [(), ("rows", "g*")])
async def test_chunks_of_several_ranks_become_whole_tensors(
    tmp_path: Path, only: tuple[str, ...]
) -> None:
    store, manifest = await saved()
    result = await restored(manifest, store, tmp_path / "out", form=Format.SAFETENSORS, only=only)
    file = tmp_path / "out" / "model.safetensors"
    wanted = {n: a for n, a in ARRAYS.items() if not only or n in ("rows", "grid")}
    assert data_in(file) == {name: array.data for name, array in wanted.items()}
    starts = {name: start for name, (start, _) in offsets_in(file).items()}
    assert [name for name in wanted if starts[name] % ARRAYS[name].item_bytes] == []
    with safe_open(file, framework="np") as opened:  # The stock reader takes it.
        assert set(opened.keys()) == set(wanted)
        assert opened.get_slice("rows").get_shape() == [6, 5]
    assert result.left_out == (() if only else ("lr", "rng", "step"))
    assert names_in(tmp_path / "out") == ["model.safetensors"]


async def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    store, manifest = await saved()
    faults = FaultLayer(store)
    result = await restored(
        manifest, faults, tmp_path / "out", form=Format.SAFETENSORS, only=["scalar"]
    )
    assert faults.calls["get_into"] == 1
    assert 8 <= result.bytes_verified <= 8 + 2 * SMALL.block_size_bytes


async def test_chosen_entries_are_written_anew_with_nothing_else(tmp_path: Path) -> None:
    store, manifest = await saved()
    await restored(manifest, store, tmp_path / "out", only=["columns", "lr"])
    assert names_in(tmp_path / "out") == [
        "000000-0001.safetensors",
        "000000-0007.bytes",
        "000001-0001.safetensors",
        "ckptstore-manifest.json",
    ]
    assert (tmp_path / "out" / "000000-0007.bytes").read_bytes() == b"x" * 40
    with safe_open(tmp_path / "out" / "000001-0001.safetensors", framework="np") as opened:
        assert list(opened.keys()) == ["columns"]
        sharding = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
    assert sharding == {"columns": {"saved_offsets": [0, 2]}}
    part = ARRAYS["columns"].part(Box((0, 2), (4, 4)))
    assert data_in(tmp_path / "out" / "000001-0001.safetensors") == {"columns": part}


async def test_one_rank_can_be_restored_alone(tmp_path: Path) -> None:
    store, manifest = await saved()
    await restored(manifest, store, tmp_path / "out", rank=1)
    tensors = [f"000001-{n:04d}.safetensors" for n in range(5)]
    others = ["000001-0005.bytes", "ckptstore-manifest.json"]
    assert names_in(tmp_path / "out") == [*tensors, *others]


@pytest.mark.parametrize(
    ("only", "rank", "form", "said"),
    [
        (["nothing.*"], None, Format.NATIVE, r"'nothing\.\*' matches nothing .*columns, empty"),
        (["rows", "typo"], None, Format.SAFETENSORS, "'typo' matches nothing"),
        ([], 2, Format.NATIVE, "ranks 0 to 1; there is no rank 2"),
        ([], 0, Format.SAFETENSORS, "--rank .* --format native only"),
        (["step"], None, Format.SAFETENSORS, "no tensors .* use --format native"),
    ],
)
async def test_asking_for_what_is_not_there_is_refused_before_the_first_byte(
    tmp_path: Path, only: list[str], rank: int | None, form: Format, said: str
) -> None:
    store, manifest = await saved()
    faults = FaultLayer(store)
    with pytest.raises(UsageError, match=said):
        await restored(manifest, faults, tmp_path / "out", form=form, only=only, rank=rank)
    assert not faults.calls["get_into"]
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("form", [Format.NATIVE, Format.SAFETENSORS])
async def test_damage_leaves_nothing_and_names_the_place(tmp_path: Path, form: Format) -> None:
    store, manifest = await saved()
    shard = manifest.records[1].shards[1]
    data = bytearray(await store.get(shard.key))
    data[-1] ^= 1
    await store.put(shard.key, bytes(data))
    with pytest.raises(IntegrityError, match="expected") as raised:
        await restored(manifest, store, tmp_path / "out", form=form)
    damage = raised.value.damage[0]
    assert (damage.object, damage.block) == (shard.key, (len(data) - 1) // 16)
    assert names_in(tmp_path) == []


async def test_damage_on_the_way_alone_is_read_again(tmp_path: Path) -> None:
    store, manifest = await saved()
    faults = FaultLayer(store)
    faults.script("get_into", Damage(at=3))
    await restored(manifest, faults, tmp_path / "out")
    faults.assert_all_used()


async def test_a_store_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    store, manifest = await saved()
    faults = FaultLayer(store)
    faults.script("get_into", *[Fault(LocalResourceError("as if"))] * 4)
    with pytest.raises(LocalResourceError, match="as if"):
        await restored(manifest, faults, tmp_path / "out")
    assert names_in(tmp_path) == []


async def test_a_cancelled_restore_keeps_what_it_has_and_the_next_fetches_the_rest(
    tmp_path: Path,
) -> None:
    store, manifest = await saved()
    stuck = asyncio.Event()
    last = max(shard.key for shard in manifest.shards)

    class Counting(FaultLayer):
        sticks = True
        fetched = 0

        async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
            if key == last and self.sticks:
                stuck.set()
                await asyncio.Event().wait()
            await super().get_into(key, byte_range, target)
            self.fetched += byte_range.size_bytes

    counting = Counting(store)
    task = asyncio.create_task(restored(manifest, counting, tmp_path / "out"))
    async with asyncio.timeout(10):
        await stuck.wait()
    (staging,) = names_in(tmp_path)
    assert staging.startswith(".out.ckptstore-partial-")
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert names_in(tmp_path) == [staging]
    assert staging in raised.value.__notes__[0]
    counting.sticks = False
    before = counting.fetched
    result = await restored(manifest, counting, tmp_path / "out")
    assert 0 < result.bytes_verified == counting.fetched - before
    assert result.bytes_verified + result.bytes_resumed == manifest.commit.data_bytes
    assert result.bytes_resumed >= before - SMALL.in_flight_bytes_max
    assert names_in(tmp_path) == ["out"]
    for shard in manifest.records[1].shards[:1]:
        assert (tmp_path / "out" / "000001-0000.safetensors").read_bytes() == await store.get(
            shard.key
        )


async def test_memory_stays_bounded_while_much_is_restored(tmp_path: Path) -> None:
    arrays = {"big": Array("uint8", (64, 64))}
    store = MemoryStore()
    await save_tensors(store, arrays, [RankState(boxes=[("big", Box((0, 0), (64, 64)))])])
    held: list[int] = []

    class Watching(FaultLayer):
        inside = 0

        async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
            self.inside += byte_range.size_bytes
            held.append(self.inside)
            await asyncio.sleep(0)
            await super().get_into(key, byte_range, target)
            self.inside -= byte_range.size_bytes

    await restored(await manifest_in(store), Watching(store), tmp_path / "out")
    assert 32 < max(held) <= SMALL.in_flight_bytes_max


async def test_a_destination_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    store, manifest = await saved()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(ConflictError, match="not empty; restore into a new directory"):
        await restored(manifest, store, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConflictError, match="is a file"):
        await restored(manifest, store, tmp_path / "file")


async def test_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    store, manifest = await saved()
    (tmp_path / "out").mkdir()
    await restored(manifest, store, tmp_path / "out")
    assert (tmp_path / "out" / "ckptstore-manifest.json").exists()
    assert names_in(tmp_path) == ["out"]
