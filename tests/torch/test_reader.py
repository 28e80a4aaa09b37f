"""What a reader promises, in a world of one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace as replace_fields
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from ckptstore import opening
from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import (
    CheckpointNotFoundError,
    CkptStoreError,
    DeadlineExceededError,
    IntegrityError,
    PermissionDeniedError,
    UntrustedCodeError,
    UsageError,
)
from ckptstore.manifest.layout import retired_key
from ckptstore.manifest.model import (
    ItemEntry,
    Manifest,
    Ready,
    TensorEntry,
)
from ckptstore.runtime import run_sync
from ckptstore.testing.faults import Damage, Fault, FaultLayer, Silence
from ckptstore.torch import StorageReader, StorageWriter
from ckptstore.torch.metadata import metadata_of
from ckptstore.types import ByteRange, Key, parse_key
from tests.torch.test_items import Trap
from tests.torch.worlds import SMALL, fresh_url, load, manifest_of, random_bits, save

STATE = {"a": torch.arange(100.0), "n": 1}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> FaultLayer:
    layer = FaultLayer(MemoryStore())
    monkeypatch.setattr(opening, "named_memory_store", lambda name: layer)
    return layer


@pytest.fixture
def url() -> str:
    """A run with a checkpoint at step 7 in it."""
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7, settings=SMALL))
    return url


def into(**changed: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"a": torch.zeros(100), "n": 0, **changed}


def test_the_selector_says_which_checkpoint(url: str) -> None:
    save({"a": torch.ones(100), "n": 2}, StorageWriter(url, step=8))
    uid = manifest_of(f"{url}@7").attempt.uid
    found = [
        load(into(), StorageReader(f"{url}{selector}"))["n"]
        for selector in ("", "@latest", "@8", "@7", f"@{uid}", f"@{uid[-8:]}")
    ]
    assert found == [2, 2, 2, 1, 1, 1]


def test_what_is_not_there_is_said_with_what_is(url: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"llama has no .*@9; .*near it: 7"):
        load(into(), StorageReader(f"{url}@9"))
    with pytest.raises(CheckpointNotFoundError, match="nothing was ever saved"):
        load(into(), StorageReader(fresh_url()))


def test_a_store_that_refuses_is_never_an_empty_run(faults: FaultLayer) -> None:
    refusal = PermissionDeniedError("access denied", verb="list_objects", key="k")
    faults.script("list_objects", Fault(refusal))
    with pytest.raises(PermissionDeniedError, match="access denied"):
        load(into(), StorageReader(fresh_url()))
    faults.assert_all_used()


def test_a_reader_can_be_used_again_after_a_failure(faults: FaultLayer) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7))
    reader = StorageReader(url)
    faults.script("list_objects", Fault(PermissionDeniedError("denied", verb="list", key="k")))
    with pytest.raises(PermissionDeniedError):
        load(into(), reader)
    assert load(into(), reader)["n"] == 1


def test_a_silent_store_ends_the_load_at_the_deadline(faults: FaultLayer) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7))
    for verb in ("list_objects", "get", "get_into"):
        faults.script(verb, Silence())
        with pytest.raises(DeadlineExceededError, match=r"llama.*not done within 0\.\d* s"):
            load(into(), StorageReader(url, deadline_s=0.3))
    faults.assert_all_used()


@pytest.mark.usefixtures("stored_as_it_is")
@pytest.mark.parametrize("kind", ["safetensors", "bytes"])
def test_a_flipped_bit_is_never_handed_out(faults: FaultLayer, kind: str) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7))
    (shard,) = (shard for shard in manifest_of(url).shards if shard.key.endswith(kind))
    faults.script("get_into", Damage(at=4), Damage(at=4), key=f"prefix/{shard.key}")
    with pytest.raises(IntegrityError) as caught:
        load(into(), StorageReader(url))
    faults.assert_all_used()
    uid = manifest_of(url).attempt.uid
    for text in (url, "step 7", uid, shard.key):
        assert text in str(caught.value)
    assert caught.value.damage[0].object == shard.key


def test_a_bit_that_was_flipped_on_the_way_only_is_read_again(faults: FaultLayer) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7))
    faults.script("get_into", Damage(at=4))
    assert load(into(), StorageReader(url))["a"].sum() == 4950
    faults.assert_all_used()


def test_tensors_that_differ_are_named_before_anything_is_read(url: str) -> None:
    target = torch.zeros(100, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match=r"step 7 .* 1 tensors .*a was saved as float32 and is bf"):
        load(into(a=target), StorageReader(url))
    assert target.sum() == 0
    with pytest.raises(ValueError, match=r"Size mismatch.*for a"):
        load(into(a=torch.zeros(99)), StorageReader(url))


def test_a_planner_that_gives_a_tensor_of_another_size_is_found_out(url: str) -> None:
    class Short(DefaultLoadPlanner):
        def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
            return torch.zeros(99)

    with pytest.raises(UsageError, match=r"a is to receive \[100\] and has \[99\]"):
        load(into(), StorageReader(url), planner=Short())


def test_a_planner_may_load_into_tensors_of_its_own(url: str) -> None:
    class Later(DefaultLoadPlanner):
        def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
            return torch.empty(100)

        def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
            self.original_state_dict["a"] = tensor * 2

    assert load(into(a=torch.zeros(100)), StorageReader(url), planner=Later())["a"].sum() == 9900


def test_gradients_do_not_keep_a_parameter_from_being_filled(url: str) -> None:
    parameter = torch.nn.Parameter(torch.zeros(100))
    parameter.grad = torch.ones(100)
    load(into(a=parameter), StorageReader(url))
    assert parameter.detach().sum() == 4950
    assert parameter.requires_grad


def test_code_in_an_item_is_refused_and_not_run(tmp_path: Path) -> None:
    url, trap = fresh_url(), tmp_path / "sprung"
    save({"good": 1, "sched": Trap(trap)}, StorageWriter(url, step=7))
    state: dict[str, Any] = {"good": None, "sched": None}
    with pytest.raises(UntrustedCodeError, match=r"step 7 .*'sched' names posix\.mkdir"):
        load(state, StorageReader(url))
    assert not trap.exists()
    load(state, StorageReader(url, trusted_globals=[f"{os.name}.mkdir"]))
    assert trap.exists()


def test_retention_is_kept_away_while_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    seen: list[list[str]] = []

    class Watched(FaultLayer):
        async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
            seen.append([info.key async for info in store.list_objects("prefix/runs/llama/pins/")])
            await super().get_into(key, byte_range, target)

    monkeypatch.setattr(opening, "named_memory_store", lambda name: Watched(store))
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7))
    load(into(), StorageReader(url))
    uid = manifest_of(url).attempt.uid
    assert seen
    assert [f"/pins/{uid}/" in key for keys in seen for key in keys] == [True] * len(seen)
    assert not any("/pins/" in key for key in store._objects)


def test_a_checkpoint_that_retention_took_in_the_middle_of_a_load_is_said_to_be_gone(
    faults: FaultLayer,
) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=7))
    save(STATE, StorageWriter(url, step=8))
    uid = manifest_of(f"{url}@7").attempt.uid

    class Overtaken(DefaultLoadPlanner):
        def create_local_plan(self) -> LoadPlan:
            mark = parse_key(f"prefix/{retired_key('llama', uid)}")
            run_sync(lambda: faults.put(mark, b""), timeout_s=10)
            return super().create_local_plan()

    with pytest.raises(CheckpointNotFoundError, match=rf"step 7 .*{uid}"):
        load(into(), StorageReader(f"{url}@7"), planner=Overtaken())


def test_ranks_that_found_different_checkpoints_do_not_load_a_mixture(url: str) -> None:
    save(STATE, StorageWriter(url, step=8))
    plans = []
    for selector in ("@7", "@8"):
        reader = StorageReader(f"{url}{selector}")
        reader.read_metadata()
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    with pytest.raises(CkptStoreError, match=r"rank 0 \S+, rank 1 \S+\); all must"):
        reader.prepare_global_plan(plans)


def test_read_metadata_raises_the_cause_to_whoever_calls_it(url: str) -> None:
    with pytest.raises(CheckpointNotFoundError):
        StorageReader(f"{url}@9").read_metadata()
    assert list(StorageReader(url).read_metadata(rank=0).state_dict_metadata) == ["a", "n"]


@pytest.mark.parametrize("scratch_bytes_max", [64, 1 << 20])
def test_scratch_memory_is_bounded_and_enough(scratch_bytes_max: int) -> None:
    url = fresh_url()
    state = {f"t{i}": random_bits(torch.int16, 9, 7, 5, seed=i) for i in range(4)}
    save(state, StorageWriter(url, step=1, settings=SMALL))
    transfer = replace(SMALL.transfer, in_flight_bytes_max=scratch_bytes_max)
    reader = StorageReader(url, settings=replace(SMALL, transfer=transfer))
    found = {name: torch.zeros(5, 9, 7, dtype=torch.int16).permute(1, 2, 0) for name in state}
    load(dict(found), reader)
    assert all(torch.equal(found[name], state[name]) for name in state)


def manifest_with(*ranks: tuple[TensorEntry | ItemEntry, ...]) -> Manifest:
    """A manifest that no store holds, of ranks that saved these entries."""
    source = manifest_of_one()
    attempt = replace_fields(source.attempt, world_size=len(ranks))
    (shard,) = source.shards
    records = tuple(
        Ready(
            uid=attempt.uid,
            rank=rank,
            world_size=len(ranks),
            shards=(replace_fields(shard, key=shard.key.replace("000000-", f"{rank:06d}-")),),
            tensors=tuple(entry for entry in entries if isinstance(entry, TensorEntry)),
            items=tuple(entry for entry in entries if isinstance(entry, ItemEntry)),
        )
        for rank, entries in enumerate(ranks)
    )
    refs = source.commit.records * len(ranks)
    return Manifest(replace_fields(source.commit, attempt=attempt, records=refs), records)


def manifest_of_one() -> Manifest:
    url = fresh_url()
    save({"a": torch.zeros(4)}, StorageWriter(url, step=1))
    return manifest_of(url)


def tensor_entry(offset: int = 0, *, dtype: str = "float32", whole: int = 4) -> TensorEntry:
    return TensorEntry(
        shard=0,
        start=4096,
        stop=4100,
        name="a",
        dtype=dtype,
        shape=(whole,),
        offsets=(offset,),
        sizes=(1,),
    )


ITEM = ItemEntry(shard=0, start=0, stop=1, name="a")


def test_of_what_several_ranks_saved_the_lowest_rank_s_is_taken() -> None:
    ranks = ((tensor_entry(0),), (tensor_entry(0), tensor_entry(1)))
    metadata = metadata_of(manifest_with(*ranks), "x")
    tensor = metadata.state_dict_metadata["a"]
    assert isinstance(tensor, TensorStorageMetadata)
    assert [list(chunk.offsets) for chunk in tensor.chunks] == [[0], [1]]
    taken = [stored.shard.key.rpartition("/")[2][:6] for stored in metadata.storage_data.values()]
    assert taken == ["000000", "000001"]
    items = metadata_of(manifest_with((ITEM,), (ITEM,)), "x").storage_data
    assert [stored.shard.key.rpartition("/")[2][:6] for stored in items.values()] == ["000000"]


@pytest.mark.parametrize(
    "ranks",
    [
        ((tensor_entry(0),), (tensor_entry(1, dtype="int32"),)),
        ((tensor_entry(0),), (tensor_entry(1, whole=5),)),
        ((tensor_entry(0),), (ITEM,)),
        ((ITEM,), (tensor_entry(0),)),
    ],
)
def test_different_things_under_one_name_are_refused(
    ranks: tuple[tuple[TensorEntry | ItemEntry, ...], ...],
) -> None:
    with pytest.raises(CkptStoreError, match="a is .* on rank 1 and .* on a lower rank"):
        metadata_of(manifest_with(*ranks), "x")


def test_a_dtype_of_a_newer_torch_is_said_to_be_one() -> None:
    with pytest.raises(UsageError, match="no dtype 'float3'"):
        metadata_of(manifest_with((tensor_entry(dtype="float3"),)), "x")
