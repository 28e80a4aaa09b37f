"""``ckptstore diff``: from checksums where they tell, from the bytes where they do not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckptstore.backends.local import LocalStore
from tests.cli.conftest import Cli, Ended
from tests.cli.tensors import RUN, Array, Box, RankState, save_tensors


@dataclass(frozen=True, slots=True)
class Filled(Array):
    """An array of one number."""

    value: float = 1.0

    @property
    def data(self) -> bytes:
        return struct.pack("<f", self.value) * self.shape[0]


def whole(arrays: Mapping[str, Array], parts: int = 1, **items: bytes) -> RankState:
    boxes = []
    for name, array in arrays.items():
        step = array.shape[0] // parts
        rest = array.shape[1:]
        for part in range(parts):
            offsets = (part * step, *(0 for _ in rest))
            boxes.append((name, Box(offsets, (step, *rest))))
    return RankState(boxes=boxes, items=items or None)


def save(store: Path, step: int, arrays: Mapping[str, Array], state: RankState) -> None:
    async def saving() -> None:
        local = LocalStore(store)
        await save_tensors(local, arrays, [state], step=step)
        await local.aclose()

    asyncio.run(saving())


def changes(ended: Ended) -> dict[str, str]:
    return {line["name"]: line["change"] for line in ended.of_type("difference")}


@pytest.fixture
def two(store: Path) -> tuple[str, str]:
    same = {"same": Array("float32", (16, 4)), "frozen": Array("bfloat16", (8,))}
    before = same | {
        "gone": Array("int8", (4,)),
        "typed": Array("float32", (4,)),
        "moved": Filled("float32", (64,)),
    }
    after = same | {
        "new": Array("int8", (4,)),
        "typed": Array("bfloat16", (4,)),
        "moved": Filled("float32", (64,), 1.5),
    }
    save(store, 1, before, whole(before, step=b"a"))
    save(store, 2, after, whole(after, step=b"b"))
    return f"{store}/{RUN}@1", f"{store}/{RUN}@2"


def test_every_kind_of_change_is_told_from_the_manifests_alone(
    cli: Cli, two: tuple[str, str], store: Path
) -> None:
    for path in (store / "data").rglob("*.safetensors"):
        path.unlink()  # No data is read.
    ended = cli("diff", *two, "--json")
    assert ended.code == 0
    assert changes(ended) == {
        "gone": "removed",
        "new": "added",
        "typed": "changed",
        "moved": "changed",
        "step": "changed",
    }
    summary = ended.summary
    assert (summary["same"], summary["bytes_verified"]) == (2, 0)
    (typed,) = [line for line in ended.of_type("difference") if line["name"] == "typed"]
    assert (typed["before"]["dtype"], typed["after"]["dtype"]) == ("float32", "bfloat16")
    assert "float32 -> bfloat16" in cli("diff", *two).out


def test_with_values_the_size_of_a_change_is_told(cli: Cli, two: tuple[str, str]) -> None:
    ended = cli("diff", *two, "--values", "--json")
    norms = {line["name"]: line["relative_norm"] for line in ended.of_type("difference")}
    assert norms["moved"] == pytest.approx(0.5)
    assert ended.summary["bytes_verified"] > 0


def test_differences_have_an_exit_code_when_asked_for(cli: Cli, two: tuple[str, str]) -> None:
    assert cli("diff", *two, "--exit-code").code == 20
    assert cli("diff", two[0], two[0], "--exit-code").code == 0


def test_what_checksums_cannot_tell_is_unknown_until_it_is_read(cli: Cli, store: Path) -> None:
    """Two items share a block: one of them changed."""
    arrays = {"a": Array("int8", (2,))}
    save(store, 1, arrays, whole(arrays, x=b"1", y=b"1"))
    save(store, 2, arrays, whole(arrays, x=b"1", y=b"2"))
    two = f"{store}/{RUN}@1", f"{store}/{RUN}@2"
    assert changes(cli("diff", *two, "--json")) == {"x": "unknown", "y": "unknown"}
    assert changes(cli("diff", *two, "--values", "--json")) == {"y": "changed"}


def test_other_sharding_is_no_change_and_not_taken_for_sameness(cli: Cli, store: Path) -> None:
    arrays = {"a": Array("int8", (8, 2))}
    save(store, 1, arrays, whole(arrays))
    save(store, 2, arrays, whole(arrays, parts=2))
    ended = cli("diff", f"{store}/{RUN}@1", f"{store}/{RUN}@2", "--json")
    assert changes(ended) == {"a": "unknown"}
