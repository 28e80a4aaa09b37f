"""A directory is watched: each finished checkpoint is pushed, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import LocalResourceError
from ckptstore.push.directory import Pushed
from ckptstore.push.finished import find_finished
from ckptstore.push.watch import watch_directory
from ckptstore.store import ObjectStore
from ckptstore.testing.faults import Fault, FaultLayer
from tests.cli.files import write_files
from tests.world import RUN, SETTINGS

DCP = {"__0_0.distcp": b"data", ".metadata": b"m"}


class StopWatching(Exception):
    pass


async def watched(
    root: Path, store: ObjectStore, *between: Callable[[], object]
) -> list[tuple[int, bool]]:
    """Look, and do these things one by one between the looks; return what was pushed."""
    todo = iter(between)
    published: list[tuple[int, bool]] = []

    async def pause() -> None:
        action = next(todo, None)
        if action is None:
            raise StopWatching
        action()

    async def watch() -> None:
        async for one in watch_directory(root, store, run=RUN, pause=pause, settings=SETTINGS):
            published.append((one.local.step, isinstance(one.outcome, Pushed)))  # noqa: PERF401

    with pytest.raises(StopWatching):
        await watch()
    return published


def nothing() -> None:
    pass


def finished(root: Path) -> Sequence[str]:
    return [local.path.name for local in find_finished(root)]


async def test_what_is_finished_and_still_is_pushed_once(tmp_path: Path) -> None:
    write_files(tmp_path / "step-7", DCP)
    store = MemoryStore()
    assert await watched(tmp_path, store, nothing, nothing, nothing) == [(7, True)]


async def test_what_still_changes_waits(tmp_path: Path) -> None:
    write_files(tmp_path / "step-7", DCP)

    def grow() -> None:
        with (tmp_path / "step-7" / "__0_0.distcp").open("ab") as file:
            file.write(b"more")

    assert await watched(tmp_path, MemoryStore(), grow, grow) == []
    assert await watched(tmp_path, MemoryStore(), grow, nothing) == [(7, True)]


async def test_a_new_watcher_does_not_push_again_what_the_run_has(tmp_path: Path) -> None:
    write_files(tmp_path / "step-7", DCP)
    store = MemoryStore()
    assert await watched(tmp_path, store, nothing) == [(7, True)]
    more = lambda: write_files(tmp_path / "step-8", DCP)  # noqa: E731
    assert await watched(tmp_path, store, more, nothing) == [(8, True)]


async def test_what_fails_is_tried_again(tmp_path: Path) -> None:
    write_files(tmp_path / "step-7", DCP)
    faults = FaultLayer(MemoryStore())
    faults.script("list_objects", Fault(LocalResourceError("as if")))
    assert await watched(tmp_path, faults, nothing, nothing) == [(7, False), (7, True)]
    faults.assert_all_used()


def test_a_model_is_finished_when_all_of_its_index_is_there(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    path = write_files(
        tmp_path / "checkpoint-500",
        {
            "model.safetensors.index.json": json.dumps(index).encode(),
            "m-1.safetensors": b"1",
        },
    )
    assert finished(tmp_path) == []
    (path / "m-2.safetensors").write_bytes(b"2")
    assert finished(tmp_path) == ["checkpoint-500"]
    (path / "model.safetensors.index.json").write_text('{"weight_map"')
    assert finished(tmp_path) == []


def test_a_checkpoint_of_deepspeed_is_finished_when_latest_has_come_to_it(tmp_path: Path) -> None:
    for step in (100, 200):
        write_files(tmp_path / f"global_step{step}", {"mp_rank_00_model_states.pt": b"x"})
    assert finished(tmp_path) == []
    (tmp_path / "latest").write_text("global_step100\n")
    assert finished(tmp_path) == ["global_step100"]
    (tmp_path / "latest").write_text("global_step200")
    assert finished(tmp_path) == ["global_step100", "global_step200"]


@pytest.mark.parametrize("name", ["tmp-checkpoint-7", "step-7.tmp", ".step-7", "no-number"])
def test_what_is_being_written_or_has_no_step_is_not_one(tmp_path: Path, name: str) -> None:
    write_files(tmp_path / name, DCP)
    assert finished(tmp_path) == []
