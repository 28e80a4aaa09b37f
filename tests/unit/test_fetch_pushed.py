"""Pushed files come back under their names, wherever that is safe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ckptstore.errors import ConflictError, IntegrityError
from ckptstore.fetch.restore import restore_checkpoint
from ckptstore.fetch.selection import Selection
from tests.cli.files import Files, files_in, names_in, pushed
from tests.world import SETTINGS


async def restored(
    ranks: Sequence[Files], destination: Path, *, only: Sequence[str] = (), rank: int | None = None
) -> Files:
    store, manifest = await pushed(ranks)
    await restore_checkpoint(
        store,
        manifest,
        destination,
        selection=Selection(patterns=tuple(only), rank=rank),
        settings=SETTINGS.transfer,
    )
    return files_in(destination)


async def test_files_come_back_with_names_contents_and_what_may_be_run(tmp_path: Path) -> None:
    files = {"run.sh": b"#!/bin/sh", "deep/er/x": b"0123456789", "empty": b"", "file..txt": b"."}
    assert await restored([files], tmp_path / "out") == files
    assert os.access(tmp_path / "out" / "run.sh", os.X_OK)
    assert not (tmp_path / "out" / "empty").stat().st_mode & 0o111


async def test_only_the_files_that_match_come_back(tmp_path: Path) -> None:
    files = {"a/x.bin": b"1", "a/y.txt": b"2", "b/x.bin": b"3"}
    assert await restored([files], tmp_path / "out", only=["a/*", "*/x.bin"]) == files
    assert await restored([files], tmp_path / "two", only=["b/*"]) == {"b/x.bin": b"3"}


async def test_the_files_of_all_ranks_are_one_directory(tmp_path: Path) -> None:
    ranks = [{"config": b"same", "rank-0": b"0"}, {"config": b"same", "rank-1": b"1"}]
    assert await restored(ranks, tmp_path / "out") == {
        "config": b"same",
        "rank-0": b"0",
        "rank-1": b"1",
    }


async def test_a_file_that_ranks_do_not_agree_on_is_refused_unless_a_rank_is_chosen(
    tmp_path: Path,
) -> None:
    ranks = [{"config": b"mine"}, {"config": b"hers"}]
    with pytest.raises(ConflictError, match="config was pushed by several ranks .* --rank"):
        await restored(ranks, tmp_path / "out")
    assert await restored(ranks, tmp_path / "out", rank=1) == {"config": b"hers"}


@pytest.mark.parametrize(
    "names", [("con",), ("C:x",), ("A", "a"), ("e\u0301", "\u00e9"), ("d", "d/x")]
)
async def test_names_that_are_not_safe_here_are_refused_before_the_first_byte(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(IntegrityError, match="cannot be restored safely"):
        await restored([dict.fromkeys(names, b"x")], tmp_path / "out")
    assert names_in(tmp_path) == []
