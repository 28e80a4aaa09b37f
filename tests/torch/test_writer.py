"""What a writer promises, in a world of one."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from ckptstore import opening
from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import (
    CheckpointAbortedError,
    CheckpointInDoubtError,
    CheckpointNotFoundError,
    CkptStoreError,
    DeadlineExceededError,
    PermissionDeniedError,
    UsageError,
)
from ckptstore.manifest.layout import parse_uid
from ckptstore.manifest.model import Span
from ckptstore.testing.faults import Fault, FaultLayer, Silence
from ckptstore.torch import StorageReader, StorageWriter, registry
from ckptstore.torch.writer import StoredAt
from ckptstore.types import Key
from tests.torch.worlds import SMALL, checkpoints_of, fresh_url, load, manifest_of, save

STATE = {"a": torch.arange(100.0), "n": 1}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> FaultLayer:
    """The store that every memory:// URL leads to, and what is to befall it."""
    layer = FaultLayer(MemoryStore())
    monkeypatch.setattr(opening, "named_memory_store", lambda name: layer)
    return layer


class FailingPlanner(DefaultSavePlanner):
    """Cannot give one tensor's data."""

    def __init__(self, name: str, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.name = name

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.index.fqn == self.name:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        found: torch.Tensor | io.BytesIO = super().resolve_data(write_item)
        return found


@pytest.mark.parametrize("step", [-1, 10**12, 1.5, "7", True])
def test_a_step_that_cannot_be_one_is_refused_at_once(step: Any) -> None:  # noqa: ANN401
    with pytest.raises(UsageError, match="step"):
        StorageWriter("memory://x/run", step=step)


@pytest.mark.parametrize(
    "url", ["", "s3://bucket", "ftp://x/run", Path("s3://bucket/run"), "memory://x/run@7"]
)
def test_a_url_that_leads_nowhere_is_refused_at_once(url: str | Path) -> None:
    with pytest.raises(UsageError):
        StorageWriter(url, step=1)


def test_a_deadline_that_has_passed_already_is_refused() -> None:
    for make in (
        lambda: StorageWriter("memory://x/r", step=1, deadline_s=0),
        lambda: StorageReader("memory://x/r", deadline_s=-1),
    ):
        with pytest.raises(UsageError, match="deadline_s"):
            make()


@pytest.mark.parametrize("text", ["1000", "step-1000", "step_1000", "memory://x/run@1000"])
def test_a_checkpoint_id_may_say_the_step(text: str) -> None:
    writer = StorageWriter("memory://x/run")
    writer.reset(text)
    assert writer.checkpoint_id == "memory://x/run@1000"
    reader = StorageReader("memory://x/run")
    reader.reset(text)
    assert reader.checkpoint_id == "memory://x/run@1000"


@pytest.mark.parametrize(
    "text", ["", "latest", "epoch-3", "memory://y/run@1000", "a/step-1000", "-1"]
)
def test_a_checkpoint_id_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        StorageWriter("memory://x/run").reset(text)


def test_a_checkpoint_id_must_not_contradict_the_step() -> None:
    writer = StorageWriter("memory://x/run", step=1)
    writer.reset("step-1")
    writer.reset(None)
    with pytest.raises(UsageError, match="contradicts step=1"):
        writer.reset("step-2")
    with pytest.raises(UsageError, match="contradicts @1"):
        StorageReader("memory://x/run@1").reset("2")


def test_one_writer_may_serve_many_steps_named_by_checkpoint_id() -> None:
    url = fresh_url()
    writer = StorageWriter(url)
    for step in (3, 4):
        save({"a": torch.full((2,), step)}, writer, checkpoint_id=f"step-{step}")
    assert load({"a": torch.zeros(2, dtype=torch.int64)}, StorageReader(url), checkpoint_id="3")[
        "a"
    ].tolist() == [3, 3]


def test_a_save_without_a_step_is_refused() -> None:
    with pytest.raises(UsageError, match="which step"):
        save(STATE, StorageWriter(fresh_url()))


def test_writers_and_readers_travel_by_pickle() -> None:
    url = fresh_url()
    save(STATE, pickle.loads(pickle.dumps(StorageWriter(url, step=1, settings=SMALL))))
    reader = pickle.loads(pickle.dumps(StorageReader(url, trusted_globals=("a.b",))))
    assert reader.trusted_globals == {"a.b"}
    assert load({"a": torch.zeros(100), "n": 0}, reader)["n"] == 1
    pickle.dumps(reader)  # Also once it was used.


def test_urls_of_runs_are_what_dcp_may_take_for_ours() -> None:
    for kind in (StorageWriter, StorageReader):
        assert kind.validate_checkpoint_id("s3://bucket/run")
        assert not kind.validate_checkpoint_id("ftp://bucket/run")


def test_what_is_returned_says_which_attempt_was_committed() -> None:
    url = fresh_url()
    meta = save(STATE, StorageWriter(url, step=1)).storage_meta
    assert meta is not None
    assert (meta.checkpoint_id, meta.save_id) == (f"{url}@1", checkpoints_of(url)[0].uid)


def test_results_say_where_the_manifest_says_things_are() -> None:
    """DCP only carries them about, but who uses them must not be misled."""
    url = fresh_url()
    writer = StorageWriter(url, step=1, settings=SMALL)
    seen: list[WriteResult] = []
    finish = writer.finish

    def finish_and_look(metadata: Metadata, results: list[list[WriteResult]]) -> None:
        seen.extend(results[0])
        finish(metadata, results)

    writer.finish = finish_and_look  # type: ignore[method-assign]
    save({**STATE, "b": torch.ones(3, dtype=torch.bfloat16)}, writer)
    (record,) = manifest_of(url).records
    entries: dict[str, Span] = {entry.name: entry for entry in record.tensors}
    entries |= {entry.name: entry for entry in record.items}
    assert len(seen) == 3
    for result in seen:
        entry = entries[result.index.fqn]
        place = StoredAt(record.shards[entry.shard].key, entry.start, entry.stop)
        assert (result.storage_data, result.size_in_bytes) == (place, entry.stop - entry.start)


@pytest.mark.parametrize("name", ["a", "n"])
def test_data_that_fails_aborts_the_attempt_and_says_which(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=1))
    with pytest.raises(CheckpointAbortedError, match=rf"step 2 .*{name}: .*illegal memory access"):
        save(STATE, StorageWriter(url, step=2), planner=FailingPlanner(name))
    # It is logged as well, because a collective that breaks may keep it from being raised.
    assert any("illegal memory" in r.message for r in caplog.records if r.name.startswith("ckpt"))
    assert [info.state for info in checkpoints_of(url)] == ["aborted", "committed"]
    assert parse_uid(manifest_of(url).attempt.uid).step == 1


def test_a_plan_that_lies_about_a_tensor_is_found_out() -> None:
    class Liar(DefaultSavePlanner):
        def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
            return torch.zeros(99)

    with pytest.raises(CheckpointAbortedError, match=r"the plan says float32 \[100\].*\[99\]"):
        save({"a": torch.zeros(100)}, StorageWriter(fresh_url(), step=1), planner=Liar())


@pytest.mark.parametrize(
    ("attached", "why"), [("per-rank data", "attaches a str"), ({"a": (b"x",)}, "strings or int")]
)
def test_what_no_record_can_hold_is_refused_at_the_save(attached: Any, why: str) -> None:  # noqa: ANN401
    class Attaching(DefaultSavePlanner):
        def finish_plan(self, new_plan: SavePlan) -> SavePlan:
            plan = super().finish_plan(new_plan)
            return SavePlan(plan.items, plan.storage_data, attached)

    with pytest.raises(CheckpointAbortedError, match=why):
        save({"a": torch.zeros(1)}, StorageWriter(fresh_url(), step=1), planner=Attaching())


def test_cached_plans_do_not_bring_back_the_first_attempt() -> None:
    url = fresh_url()
    planner = DefaultSavePlanner(enable_plan_caching=True)
    planner._cached_plans_key = url  # The cache is torch's, and lives as long as the process.
    metadata = [
        save(
            {"a": torch.full((9,), step), "n": step}, StorageWriter(url, step=step), planner=planner
        )
        for step in range(3)
    ]
    assert len({info.uid for info in checkpoints_of(url)}) == len(metadata) == 3
    for step in range(3):
        into: dict[str, Any] = {"a": torch.zeros(9, dtype=torch.int64), "n": None}
        load(into, StorageReader(f"{url}@{step}"))
        assert (into["a"].tolist(), into["n"]) == ([step] * 9, step)


def test_the_same_step_can_be_saved_again_and_the_newer_one_counts() -> None:
    url = fresh_url()
    for value in (1.0, 2.0):
        save({"a": torch.full((3,), value)}, StorageWriter(url, step=7))
    assert load({"a": torch.zeros(3)}, StorageReader(url))["a"].tolist() == [2.0] * 3
    assert load({"a": torch.zeros(3)}, StorageReader(f"{url}@7"))["a"].tolist() == [2.0] * 3


def test_a_process_stays_in_its_incarnation_until_it_loads_something() -> None:
    url = fresh_url()
    for step in (1, 2, 3):
        save(STATE, StorageWriter(url, step=step))
    load({"a": torch.zeros(100)}, StorageReader(f"{url}@2"))
    save({"a": torch.ones(100)}, StorageWriter(url, step=3))
    uids = [parse_uid(info.uid) for info in checkpoints_of(url)]
    assert [(uid.incarnation, uid.step) for uid in uids] == [(2, 3), (1, 3), (1, 2), (1, 1)]
    assert load({"a": torch.zeros(100)}, StorageReader(url))["a"].sum() == 100


def test_a_writer_made_before_the_load_knows_of_it_too() -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=1))
    writer = StorageWriter(url, step=2)
    load({"a": torch.zeros(100)}, StorageReader(url))
    save(STATE, writer)
    uids = [parse_uid(info.uid) for info in checkpoints_of(url)]
    assert [(uid.incarnation, uid.step) for uid in uids] == [(2, 2), (1, 1)]


def test_a_rollback_is_what_latest_follows_even_before_the_next_save(faults: FaultLayer) -> None:
    url = fresh_url()
    for step in (1, 2):
        save({"a": torch.full((3,), float(step))}, StorageWriter(url, step=step))
    load({"a": torch.zeros(3)}, StorageReader(f"{url}@1"))
    with pytest.raises(CheckpointAbortedError):
        save(STATE, StorageWriter(url, step=2), planner=FailingPlanner("a"))
    assert load({"a": torch.zeros(3)}, StorageReader(url))["a"].tolist() == [1.0] * 3


def test_a_writer_takes_its_incarnation_along_into_another_process() -> None:
    """Else the two would fence each other's checkpoints off."""
    url = fresh_url()
    save(STATE, StorageWriter(url, step=1))
    sent = pickle.dumps(StorageWriter(url, step=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_claimed", {})
        patch.setattr(registry, "_loaded", {})
        save(STATE, pickle.loads(sent))
    uids = [parse_uid(info.uid) for info in checkpoints_of(url)]
    assert [(uid.incarnation, uid.step) for uid in uids] == [(1, 2), (1, 1)]


def test_results_of_another_save_are_not_finished() -> None:
    url = fresh_url()
    writer = StorageWriter(url, step=1)
    save(STATE, writer)
    other = Key("data/00/llama/i000001-s000000000001-a00-ffffffff/000001-0000.safetensors")
    result = WriteResult(MetadataIndex("a"), 4, StoredAt(other, 0, 4))
    with pytest.raises(CkptStoreError, match=r"rank 1 wrote .*ffffffff.*two saves ran at once"):
        writer.finish(Metadata({}), [[], [result]])


def test_a_store_that_refuses_is_reported_as_it_is(faults: FaultLayer) -> None:
    faults.script("get", Fault(PermissionDeniedError("access denied", verb="get", key="k")))
    with pytest.raises(PermissionDeniedError, match="access denied"):
        save(STATE, StorageWriter(fresh_url(), step=1))
    faults.assert_all_used()


def test_a_silent_store_ends_the_save_at_the_deadline(faults: FaultLayer) -> None:
    faults.script("get", Silence())
    with pytest.raises(DeadlineExceededError, match=r"step 1: begin: not done within 0\.\d* s"):
        save(STATE, StorageWriter(fresh_url(), step=1, deadline_s=0.3))
    faults.assert_all_used()


def test_a_store_that_falls_silent_over_the_decision_leaves_the_save_in_doubt(
    faults: FaultLayer,
) -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=1))
    faults.script("list_objects", Silence())
    with pytest.raises(CheckpointInDoubtError, match=r"step 2 .*own vote: ready"):
        save(STATE, StorageWriter(url, step=2, deadline_s=1))
    faults.assert_all_used()
    assert load({"a": torch.zeros(100)}, StorageReader(f"{url}@1"))["a"].sum() == 4950


def test_planning_that_fails_leaves_no_attempt_behind() -> None:
    url = fresh_url()
    save(STATE, StorageWriter(url, step=1))
    with pytest.raises(ValueError, match="duplicated flatten key"):
        save({"a.b": 1, "a": {"b": 2}}, StorageWriter(url, step=2))
    assert len(checkpoints_of(url)) == 1
    with pytest.raises(CheckpointNotFoundError):
        load({}, StorageReader(f"{url}@2"))
