"""A restore that was cut short goes on: what is on the disk is checked, the rest is fetched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import ConflictError, IntegrityError, LocalResourceError
from ckptstore.fetch.journal import Journal
from ckptstore.fetch.restore import Care, Format, Layout, Restored, restore_checkpoint
from ckptstore.manifest.model import Manifest
from ckptstore.testing.faults import Fault, FaultLayer
from tests.cli.files import files_in, names_in
from tests.cli.tensors import SMALL, Array, Box, RankState, save_tensors
from tests.unit.test_fetch_restore import manifest_in

ARRAYS = {
    "rows": Array("float32", (16, 8)),
    "zeros": Array("uint8", (1,)),
}
RANK = RankState(boxes=[("rows", Box((0, 0), (16, 8))), ("zeros", Box((0,), (1,)))])


async def saved() -> tuple[MemoryStore, Manifest]:
    store = MemoryStore()
    await save_tensors(store, ARRAYS, [RANK])
    return store, await manifest_in(store)


async def restored(
    store: MemoryStore | FaultLayer,
    manifest: Manifest,
    destination: Path,
    *,
    form: Format = Format.NATIVE,
    care: Care | None = None,
) -> Restored:
    return await restore_checkpoint(
        store, manifest, destination, layout=Layout(form=form), care=care, settings=SMALL
    )


async def cut_short(
    store: MemoryStore, manifest: Manifest, destination: Path, form: Format = Format.NATIVE
) -> Path:
    """Restore until the store fails for good, and return what that left."""
    faults = FaultLayer(store)
    last = max(shard.key for shard in manifest.shards)
    faults.script("get_into", Fault(LocalResourceError("as if")), key=last)
    with pytest.raises(LocalResourceError, match="as if"):
        await restored(faults, manifest, destination, form=form)
    faults.assert_all_used()
    (left,) = destination.parent.glob(f".{destination.name}.ckptstore-partial-*")
    return left


@pytest.mark.parametrize("form", [Format.NATIVE, Format.SAFETENSORS])
async def test_bytes_that_are_there_are_not_fetched_again(tmp_path: Path, form: Format) -> None:
    store, manifest = await saved()
    await cut_short(store, manifest, tmp_path / "out", form)
    result = await restored(store, manifest, tmp_path / "out", form=form)
    whole = await restored(store, manifest, tmp_path / "whole", form=form)
    assert result.bytes_resumed > 0
    assert result.bytes_verified < whole.bytes_verified
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert names_in(tmp_path) == ["out", "whole"]


async def test_what_was_spoilt_meanwhile_is_fetched_again(tmp_path: Path) -> None:
    store, manifest = await saved()
    left = await cut_short(store, manifest, tmp_path / "out")
    file = max((left / "files").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    result = await restored(store, manifest, tmp_path / "out")
    assert result.bytes_resumed > 0
    for shard in manifest.shards:
        name = shard.key.rpartition("/")[2]
        assert (tmp_path / "out" / name).read_bytes() == await store.get(shard.key)


@pytest.mark.parametrize("spoilt", [b"", b"0 zz\n\xff\xff 1", b"0 0000000000000000\n" * 9])
async def test_a_journal_that_lies_costs_bytes_and_nothing_else(
    tmp_path: Path, spoilt: bytes
) -> None:
    store, manifest = await saved()
    left = await cut_short(store, manifest, tmp_path / "out")
    (left / "journal").write_bytes(spoilt)
    result = await restored(store, manifest, tmp_path / "out")
    assert result.bytes_resumed == 0
    assert result.bytes_verified == manifest.commit.data_bytes


async def test_another_selection_does_not_touch_what_was_left(tmp_path: Path) -> None:
    store, manifest = await saved()
    left = await cut_short(store, manifest, tmp_path / "out")
    await restored(store, manifest, tmp_path / "out", form=Format.SAFETENSORS)
    assert names_in(tmp_path) == [left.name, "out"]


async def test_two_restores_of_the_same_do_not_meet(tmp_path: Path) -> None:
    store, manifest = await saved()
    left = await cut_short(store, manifest, tmp_path / "out")
    with Journal(left / "journal"), pytest.raises(ConflictError, match="another process"):
        await restored(store, manifest, tmp_path / "out")
    assert names_in(tmp_path) == [left.name]


async def test_a_disk_that_gives_back_other_bytes_is_found_by_reading_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = await saved()
    await restored(store, manifest, tmp_path / "sound", care=Care(reread=True))
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda file, size, at: pread(file, size, at)[:-1] + b"!" if size > 1 else b"!"
    )
    with pytest.raises(IntegrityError, match="the disk gave back other bytes"):
        await restored(store, manifest, tmp_path / "out", care=Care(reread=True))
    assert names_in(tmp_path) == ["sound"]


async def test_a_directory_is_replaced_only_once_the_new_one_is_whole(tmp_path: Path) -> None:
    store, manifest = await saved()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("precious")
    faults = FaultLayer(store)
    faults.script("get_into", Fault(LocalResourceError("as if")))
    with pytest.raises(LocalResourceError):
        await restored(faults, manifest, tmp_path / "out", care=Care(replace=True))
    assert (tmp_path / "out" / "old").read_text() == "precious"
    await restored(store, manifest, tmp_path / "out", care=Care(replace=True))
    assert "old" not in names_in(tmp_path / "out")
    assert names_in(tmp_path) == ["out"]


async def test_what_was_to_be_replaced_is_put_back_after_a_crash(tmp_path: Path) -> None:
    """It died between the two renames, and then the checkpoint turns out to be damaged."""
    store, manifest = await saved()
    left = await cut_short(store, manifest, tmp_path / "out")
    (left / "replaced").mkdir()
    (left / "replaced" / "old").write_text("precious")
    await store.put(manifest.shards[0].key, b"damaged")
    (left / "journal").unlink()
    with pytest.raises(IntegrityError):
        await restored(store, manifest, tmp_path / "out", care=Care(replace=True))
    assert (tmp_path / "out" / "old").read_text() == "precious"
    assert names_in(tmp_path) == ["out"]


async def test_zeros_can_be_holes(tmp_path: Path) -> None:
    from tests.cli.files import pushed

    store, manifest = await pushed([{"zeros": bytes(1 << 20), "some": bytes(4096) + b"x"}])
    settings = type(SMALL)(block_size_bytes=2, part_size_bytes=1 << 20, in_flight_bytes_max=1 << 22)
    await restore_checkpoint(
        store, manifest, tmp_path / "out", care=Care(sparse=True), settings=settings
    )
    status = (tmp_path / "out" / "zeros").stat()
    assert (status.st_size, status.st_blocks) == (1 << 20, 0)
    assert (tmp_path / "out" / "zeros").read_bytes() == bytes(1 << 20)
    assert (tmp_path / "out" / "some").read_bytes() == bytes(4096) + b"x"
