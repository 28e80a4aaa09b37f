"""``ckptstore verify``: every kind of damage is found, named and told apart from not knowing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.backends.memory import named_memory_store
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("stored_as_it_is")


def newest_objects(store: Path, run: str = "llama") -> list[Path]:
    """Return the data objects of the newest checkpoint, in the order of their numbers."""
    uids = sorted(path.name for path in (store / "runs" / run / "attempts").iterdir())
    return sorted(path for path in store.rglob("*.file") if path.parent.name == uids[-1])


def flip(path: Path, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_sound_run_is_ok_and_only_its_newest_is_read(cli: Cli, run: str) -> None:
    ended = cli("verify", run)
    assert ended.code == 0
    assert ended.out.startswith("ok: llama@200 (i000002-")
    assert ended.out.endswith("1 intact, 0 places damaged, 0 objects unverifiable\n")


def test_a_sound_run_is_ok_to_programs(cli: Cli, run: str) -> None:
    ended = cli("verify", f"{run}@100", "--json")
    assert ended.of_type("checkpoint")[0]["step"] == 100
    assert ended.summary == {
        "type": "summary",
        "exit_code": 0,
        "ok": True,
        "checkpoints": 1,
        "objects": 3,
        "bytes_verified": 256_002,
        "damaged": [],
        "unverifiable": [],
        "bytes_unknown": 0,
    }


def test_a_store_means_the_newest_of_every_run_and_all_means_all(
    cli: Cli, run: str, source: Path, store: Path
) -> None:
    cli("push", source, f"{store}/other@7")
    newest = cli("verify", store, "--json").of_type("checkpoint")
    assert [(one["run"], one["step"]) for one in newest] == [("llama", 200), ("other", 7)]
    every = cli("verify", store, "--all", "--json").of_type("checkpoint")
    assert sorted((one["run"], one["step"]) for one in every) == [
        ("llama", 100),
        ("llama", 200),
        ("other", 7),
    ]
    assert len(cli("verify", run, "--all", "--json").of_type("checkpoint")) == 2


def damage_data(store: Path) -> Path:
    flip(newest_objects(store)[2], 200_000)
    return newest_objects(store)[2]


def truncate(store: Path) -> Path:
    path = newest_objects(store)[2]
    path.write_bytes(path.read_bytes()[:1000])
    return path


def lengthen(store: Path) -> Path:
    path = newest_objects(store)[2]
    path.write_bytes(path.read_bytes() + b"more")
    return path


def remove(store: Path) -> Path:
    path = newest_objects(store)[2]
    path.unlink()
    return path


def put_another_in_its_place(store: Path) -> Path:
    path = newest_objects(store)[2]
    path.write_bytes(bytes(path.stat().st_size))
    return path


def damage_rank_record(store: Path) -> Path:
    (path,) = (newest_attempt(store)).glob("rank-*.json.zst")
    flip(path, 20)
    return path


def remove_rank_record(store: Path) -> Path:
    (path,) = (newest_attempt(store)).glob("rank-*.json.zst")
    path.unlink()
    return path


def take_rank_record_of_another(store: Path) -> Path:
    (path,) = (newest_attempt(store)).glob("rank-*.json.zst")
    (other,) = (sorted(newest_attempt(store).parent.iterdir())[0]).glob("rank-*.json.zst")
    path.write_bytes(other.read_bytes())
    return path


def damage_decision(store: Path) -> Path:
    path = min((store / "runs" / "llama" / "decisions").iterdir())
    flip(path, 50)
    return path


def newest_attempt(store: Path) -> Path:
    return max((store / "runs" / "llama" / "attempts").iterdir())


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (damage_data, "[0-9a-f]{16}"),
        (truncate, "1000 bytes"),
        (lengthen, "256004 bytes"),
        (remove, "missing"),
        (put_another_in_its_place, "[0-9a-f]{16}"),
        (damage_rank_record, "[0-9a-f]{64}"),
        (remove_rank_record, "missing"),
        (take_rank_record_of_another, "[0-9a-f]{64}"),
        (damage_decision, "record .*"),
    ],
)
def test_every_kind_of_damage_is_named(
    cli: Cli,
    run: str,
    store: Path,
    spoil: Callable[[Path], Path],
    found: str,
    everything: bool,
) -> None:
    spoiled = spoil(store).relative_to(store).as_posix()
    ended = cli("verify", run, "--json", *(["--all"] if everything else []))
    assert ended.code == 4
    assert ended.summary["ok"] is False
    (damage,) = ended.summary["damaged"]
    assert damage.keys() == {"object", "block", "offset", "expected", "found"}
    assert damage["object"] == spoiled
    assert re.fullmatch(found, damage["found"]), damage
    said = cli("verify", run, *(["--all"] if everything else []))
    assert said.code == 4
    assert f"{spoiled}: block {damage['block']} at byte {damage['offset']}: expected" in said.out
    if everything:  # The damage of one does not hide the other.
        assert "ok: llama@100" in said.out


def test_the_place_of_damage_is_the_block(cli: Cli, run: str, store: Path) -> None:
    path = newest_objects(store)[2]
    path.write_bytes(bytes(path.stat().st_size))
    (damage,) = cli("verify", run, "--json").summary["damaged"]
    assert (damage["block"], damage["offset"]) == (0, 0)


@pytest.mark.parametrize("spoil", [truncate, lengthen, remove])
def test_quick_finds_what_sizes_tell(
    cli: Cli, run: str, store: Path, spoil: Callable[[Path], Path]
) -> None:
    spoil(store)
    ended = cli("verify", run, "--quick", "--json")
    assert ended.code == 4
    assert len(ended.summary["damaged"]) == 1
    assert ended.summary["bytes_verified"] == 0


def test_what_quick_cannot_judge_is_unverifiable_and_not_ok(cli: Cli, run: str) -> None:
    ended = cli("verify", run, "--quick", "--json")
    assert ended.code == 3
    assert ended.summary["ok"] is False
    assert len(ended.summary["unverifiable"]) == 3
    assert "verify without --quick" in cli("verify", run, "--quick").out


def test_quick_believes_the_checksums_of_a_store_that_keeps_them(cli: Cli, source: Path) -> None:
    url = "memory://quick/llama"
    assert cli("push", source, f"{url}@1").code == 0
    assert cli("verify", url, "--quick").code == 0
    store = named_memory_store("quick")

    async def spoil() -> None:
        keys = [info.key async for info in store.list_objects("data/")]
        data = bytearray(await store.get(keys[-1]))
        data[0] ^= 1
        await store.put(keys[-1], bytes(data))

    asyncio.run(spoil())
    assert cli("verify", url, "--quick").code == 4


def test_a_store_without_any_commit_has_nothing_to_verify(cli: Cli, run: str, store: Path) -> None:
    for path in (store / "runs" / "llama" / "decisions").iterdir():
        path.unlink()
    for path in (store / "runs" / "llama" / "incarnations").iterdir():
        path.unlink()
    ended = cli("verify", store)
    assert ended.code == 5
    assert "holds no committed checkpoint to verify" in ended.err


def test_all_of_one_checkpoint_makes_no_sense(cli: Cli, run: str) -> None:
    ended = cli("verify", f"{run}@100", "--all")
    assert ended.code == 2
    assert "leave the @ away" in ended.err


def test_a_retired_checkpoint_is_not_verified_any_more(cli: Cli, run: str, store: Path) -> None:
    uid = cli("show", f"{run}@100", "--json").summary["uid"]
    (store / "runs" / "llama" / "retired").mkdir()
    (store / "runs" / "llama" / "retired" / uid).touch()
    (one,) = cli("verify", run, "--all", "--json").of_type("checkpoint")
    assert one["step"] == 200
    states = [line["state"] for line in cli("ls", run, "--json").of_type("checkpoint")]
    assert states == ["committed", "retired"]
