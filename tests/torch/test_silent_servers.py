"""Against servers that do not answer, every call ends by its deadline and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.hang import (
    Bench,
    checkpointer_restore,
    checkpointer_save,
    dcp_load,
    dcp_save,
    push,
    restore,
    served,
    tried,
)
from ckptstore.testing.proxy import FaultProxy


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[FaultProxy, Bench]]:
    with served() as opened:
        yield opened


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("call", "fault", "where"),
    [
        (dcp_save, "stops reading", "data"),
        (dcp_save, "a byte a second", "all"),
        (checkpointer_save, "never answers", "data"),
        (push, "503 for ever", "data"),
        (dcp_load, "never answers", "data"),
        (checkpointer_restore, "503 for ever", "data"),
        (restore, "a byte a second", "data"),
    ],
)
def test_it_ends_by_its_deadline_and_leaves_nothing(
    bench: tuple[FaultProxy, Bench], call: Callable[[Bench], int], fault: str, where: str
) -> None:
    ended = tried(*bench, call, fault, where)
    assert ended.kept_its_word, ended
