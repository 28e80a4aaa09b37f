from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ckptstore.clock import Deadline
from ckptstore.errors import CheckpointNotFoundError, CkptStoreError, DeadlineExceededError
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.torch import agree as module
from ckptstore.torch.agree import agree

TOPIC = ("save", "run llama", "step 7", "#0")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    """A process group's store; every task here plays a rank."""
    store = HashStore()
    connected(monkeypatch, store)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    return store


def connected(patch: pytest.MonkeyPatch, store: object) -> None:
    async def group_store(deadline: Deadline) -> object:
        return store

    patch.setattr(module, "group_store", group_store)


def finds(text: str, after_s: float = 0.0) -> Callable[[], Awaitable[str]]:
    async def find() -> str:
        await asyncio.sleep(after_s)
        return text

    return find


async def fails() -> str:
    raise CheckpointNotFoundError("nothing there")


async def ranks(
    find: Callable[[], Awaitable[str]], leads: list[bool | None]
) -> list[str | BaseException]:
    deadline = Deadline.after(60)
    asking = (agree(TOPIC, find, leads=lead, deadline=deadline) for lead in leads)
    return await asyncio.gather(*asking, return_exceptions=True)


def test_every_rank_hears_what_the_leader_found(group: HashStore) -> None:
    assert run_virtual(ranks(finds("uid", 5), [False, True, False])) == ["uid"] * 3


def test_the_first_to_come_leads_if_nobody_is_named(group: HashStore) -> None:
    found = iter(["first", "second"])

    async def find() -> str:
        return next(found)

    assert run_virtual(ranks(find, [None, None, None])) == ["first"] * 3


def test_every_rank_raises_what_the_leader_raised(group: HashStore) -> None:
    errors = run_virtual(ranks(fails, [False, True]))
    assert [type(error) for error in errors] == [CheckpointNotFoundError] * 2
    assert [str(error) for error in errors] == ["nothing there"] * 2


def test_a_bug_of_the_leader_is_heard_too(group: HashStore) -> None:
    async def bug() -> str:
        raise KeyError("x")

    mine, heard = run_virtual(ranks(bug, [True, False]))
    assert isinstance(mine, KeyError)
    assert type(heard) is CkptStoreError
    assert "KeyError" in str(heard)


def test_an_interrupted_leader_does_not_leave_the_others_waiting(group: HashStore) -> None:
    async def interrupted() -> str:
        deadline = Deadline.after(60)
        leader = asyncio.ensure_future(
            agree(TOPIC, finds("never", 1000), leads=True, deadline=deadline)
        )
        await asyncio.sleep(1)
        leader.cancel()
        with pytest.raises(CkptStoreError, match="Cancelled"):
            await agree(TOPIC, fails, leads=False, deadline=deadline)
        return f"after {asyncio.get_running_loop().time():.0f} s"

    assert run_virtual(interrupted()) == "after 1 s"


def test_a_silent_leader_is_waited_for_until_the_deadline_and_named(group: HashStore) -> None:
    async def waiting() -> float:
        with pytest.raises(DeadlineExceededError, match=r"step 7 #0: .* coordinator, rank 0 in 60"):
            await agree(TOPIC, fails, leads=False, deadline=Deadline.after(60))
        return asyncio.get_running_loop().time()

    assert run_virtual(waiting()) == pytest.approx(60, abs=1)


def test_a_leader_that_began_is_named_by_its_rank(group: HashStore) -> None:
    async def waiting() -> None:
        leader = asyncio.ensure_future(
            agree(TOPIC, finds("late", 100), leads=None, deadline=Deadline.after(60))
        )
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceededError, match="nothing heard from rank 3 in 60 s"):
            await agree(TOPIC, fails, leads=None, deadline=Deadline.after(60))
        await leader

    run_virtual(waiting())


def test_another_topic_is_another_agreement(group: HashStore) -> None:
    async def twice() -> list[str]:
        deadline = Deadline.after(60)
        return [
            await agree(topic, finds(text), leads=True, deadline=deadline)
            for topic, text in ((TOPIC, "a"), ((*TOPIC[:3], "#1"), "b"))
        ]

    assert run_virtual(twice()) == ["a", "b"]


def test_a_store_that_is_gone_is_an_error_of_ours(group: HashStore) -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("connection reset")

    async def ask() -> None:
        await agree(TOPIC, fails, leads=False, deadline=Deadline.after(60))

    with pytest.MonkeyPatch.context() as patch:
        connected(patch, Gone())
        with pytest.raises(CkptStoreError, match="key-value store is gone"):
            run_virtual(ask())


def test_without_a_group_the_world_is_this_process() -> None:
    assert run_virtual(ranks(finds("uid"), [False])) == ["uid"]
