"""``ckptstore ls``, ``show``, ``resolve`` and ``version``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ckptstore.backends.local import LocalStore
from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.manifest.codec import encode_rank_record
from ckptstore.manifest.layout import rank_record_key
from ckptstore.manifest.model import Attempt, Ready
from tests.cli.conftest import Cli
from tests.cli.tensors import Array, Box, RankState, save_tensors

pytestmark = pytest.mark.usefixtures("stored_as_it_is")

CLOCK = SystemClock()


def in_store(path: Path, *, step: int, deadline_s: float, ready: bool) -> Attempt:
    """Leave an attempt behind that nobody decided; with ``ready``, its one rank voted for it."""

    async def leave() -> Attempt:
        store = LocalStore(path)
        claim = await claim_incarnation(store, run="llama", parent_uid=None, facts={}, clock=CLOCK)
        attempt = await begin_attempt(
            store,
            run="llama",
            step=step,
            incarnation=claim.number,
            attempt_number=0,
            world_size=1,
            deadline=Deadline.after(deadline_s),
            clock=CLOCK,
        )
        if ready:
            vote = Ready(uid=attempt.uid, rank=0, world_size=1)
            await store.put(rank_record_key("llama", attempt.uid, 0), encode_rank_record(vote))
        await store.aclose()
        return attempt

    return asyncio.run(leave())


@pytest.fixture
def undecided(run: str, store: Path) -> list[Attempt]:
    """One that can be committed, one that is overdue, and one that is under way."""
    return [
        in_store(store, step=300, deadline_s=600, ready=True),
        in_store(store, step=400, deadline_s=0, ready=False),
        in_store(store, step=500, deadline_s=600, ready=False),
    ]


def test_ls_shows_a_run_the_newest_first(cli: Cli, run: str) -> None:
    ended = cli("ls", run)
    head, *rows = [line.split() for line in ended.out.splitlines()]
    assert head == ["RUN", "STEP", "STATE", "SIZE", "OBJECTS", "RANKS", "COMMITTED", "UID", "KEPT"]
    assert [row[:6] for row in rows] == [
        ["llama", "200", "committed", "250.0", "KiB", "3"],
        ["llama", "100", "committed", "250.0", "KiB", "3"],
    ]


def test_ls_tells_programs_every_field(
    cli: Cli, run: str, store: Path, undecided: list[Attempt]
) -> None:
    ended = cli("ls", store, "--json")
    lines = ended.of_type("checkpoint")
    assert [(line["step"], line["state"]) for line in lines] == [
        (500, "undecided"),
        (400, "undecided"),
        (300, "undecided"),
        (200, "committed"),
        (100, "committed"),
    ]
    newest = lines[3]
    fields = ["run", "bytes", "objects", "ranks"]
    assert [newest[field] for field in fields] == ["llama", 256_002, 3, 1]
    assert newest["uid"].startswith("i000002-s000000000200-")
    assert 0 <= CLOCK.unix_s() - newest["committed_at"] < 600
    assert ended.summary["checkpoints"] == 2


def test_ls_tells_a_store_from_a_run(cli: Cli, run: str, source: Path, store: Path) -> None:
    cli("push", source, f"{store}/other@7")
    runs = {line["run"] for line in cli("ls", store, "--json").of_type("checkpoint")}
    assert runs == {"llama", "other"}
    runs = {line["run"] for line in cli("ls", f"{store}/other", "--json").of_type("checkpoint")}
    assert runs == {"other"}


def test_ls_of_a_run_that_is_not_there_is_not_found(cli: Cli, run: str, store: Path) -> None:
    ended = cli("ls", f"{store}/lama")
    assert ended.code == 5
    assert "run lama has no committed checkpoint: nothing was ever saved under" in ended.err


def test_ls_of_one_checkpoint_leads_to_show(cli: Cli, run: str) -> None:
    ended = cli("ls", f"{run}@100")
    assert ended.code == 2
    assert f"ckptstore show {run}@100 shows one checkpoint" in ended.err


def test_show_tells_what_is_in_a_checkpoint(cli: Cli, run: str) -> None:
    ended = cli("show", run, "--objects")
    assert ended.code == 0
    assert "step       200" in ended.out
    assert "size       250.0 KiB in 3 objects" in ended.out
    assert "weights.bin" in ended.out
    assert "sub/config.json" in ended.out


def test_show_tells_programs_of_ranks_tensors_and_objects(cli: Cli, store: Path) -> None:
    array = Array("bfloat16", (4, 2))
    top, bottom = Box((0, 0), (1, 2)), Box((1, 0), (3, 2))
    ranks = [
        RankState(boxes=[("w[0]", top)], items={"step": b"123"}),
        RankState(boxes=[("w[0]", bottom)]),
    ]

    async def save() -> None:
        local = LocalStore(store)
        await save_tensors(local, {"w[0]": array}, ranks)
        await local.aclose()

    asyncio.run(save())
    ended = cli("show", f"{store}/net@1", "--tensors", "--objects", "--json")
    assert [line["rank"] for line in ended.of_type("rank")] == [0, 1]
    (tensor,) = ended.of_type("tensor")
    assert tensor == {
        "type": "tensor",
        "name": "w[0]",
        "dtype": "bfloat16",
        "shape": [4, 2],
        "bytes": 16,
        "chunks": [
            {"offsets": [0, 0], "sizes": [1, 2]},
            {"offsets": [1, 0], "sizes": [3, 2]},
        ],
    }
    assert [line["name"] for line in ended.of_type("item")] == ["step"]
    assert [line["holds"] for line in ended.of_type("object")] == [["w[0]"], ["step"], ["w[0]"]]
    assert (ended.summary["tensors"], ended.summary["items"], ended.summary["ranks"]) == (1, 1, 2)
    assert "w[0]  bfloat16  4x2" in cli("show", f"{store}/net@1", "--tensors").out


def test_resolve_settles_what_can_be_settled(cli: Cli, run: str, undecided: list[Attempt]) -> None:
    ended = cli("resolve", run, "--json")
    assert ended.code == 0
    states = {line["uid"]: line["state"] for line in ended.of_type("attempt")}
    assert [states[attempt.uid] for attempt in undecided] == ["committed", "aborted", "undecided"]
    summary = ended.summary
    assert (summary["committed"], summary["aborted"], summary["undecided"]) == (1, 1, 1)
    listed = cli("ls", run, "--json").of_type("checkpoint")
    assert [line["state"] for line in listed[:3]] == ["undecided", "aborted", "committed"]


def test_resolve_tells_people_what_it_did(cli: Cli, run: str, undecided: list[Attempt]) -> None:
    ended = cli("resolve", run)
    assert f"llama@300 ({undecided[0].uid}): committed" in ended.out
    assert f"llama@400 ({undecided[1].uid}): aborted: rank 0 did not vote in time" in ended.out
    assert f"llama@500 ({undecided[2].uid}): under way, for " in ended.out
    assert ended.out.endswith(f"resolved 2 attempts of {run}, 1 left undecided\n")


def test_version_names_what_it_is_made_of(cli: Cli) -> None:
    assert cli("version").out.startswith("ckptstore 0.")
    summary = cli("version", "--json").summary
    assert set(summary["libraries"]) >= {"awscrt", "msgspec"}
    ended = cli("--version")
    assert (ended.code, ended.out) == (0, cli("version").out.splitlines()[0] + "\n")
