"""Let one rank find something out and tell the others, through the process group's own store.

Not by a collective: a save may run in a background thread, where it would meet training's own,
and one dead rank would hold all the others until the process group's timeout.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec
import torch.distributed as dist

from ckptstore import errors
from ckptstore.clock import Deadline
from ckptstore.errors import CkptStoreError, DeadlineExceededError

if TYPE_CHECKING:  # A torch built without distributed has no such module.
    from torch._C._distributed_c10d import Store

POLL_S_FIRST: Final = 0.005
POLL_S_MAX: Final = 0.5
LAST_WORD_S: Final = 1.0  # The leader may give up at the same moment, and it knows why.

_connected: tuple[weakref.ref[Store], Store] | None = None  # The group's store, and our clone.


class _Outcome(msgspec.Struct, frozen=True):
    """What the leading rank found, or the error that kept it from that."""

    found: str = ""
    error: str = ""
    detail: str = ""


async def agree(
    topic: tuple[str, ...],
    find: Callable[[], Awaitable[str]],
    *,
    leads: bool | None,
    deadline: Deadline,
) -> str:
    """Return on every rank what ``find`` returned on one of them, or raise what it raised.

    The ranks must call this with the same ``topic``, and with a new one each time. ``leads``
    says whether this rank is the one; if nobody knows, the first to come is (``None``). Ranks
    that wait for it do so until ``LAST_WORD_S`` past the deadline, and then say for whom.
    Without a process group the world is this process.
    """
    store = await group_store(deadline)
    if store is None:
        return await find()
    key = f"ckptstore/{hashlib.sha256(repr(topic).encode()).hexdigest()}"
    try:
        if leads is None:
            leads = store.add(f"{key}/asked", 1) == 1
        if leads:
            return await _lead(store, key, find)
        return await _follow(store, key, topic, deadline)
    except dist.DistError as error:
        raise CkptStoreError(
            f"{_name(topic)}: the process group's key-value store is gone, and with it the rank "
            f"or launcher that serves it: {error}"
        ) from error


async def _lead(store: Store, key: str, find: Callable[[], Awaitable[str]]) -> str:
    store.set(f"{key}/leader", f"rank {dist.get_rank()}")
    try:
        found = await find()
    except BaseException as error:  # Even a bug or an interrupt: the others wait to hear of it.
        outcome = _Outcome(error=type(error).__name__, detail=str(error) or repr(error))
        store.set(key, msgspec.json.encode(outcome).decode())
        raise
    store.set(key, msgspec.json.encode(_Outcome(found=found)).decode())
    return found


async def _follow(store: Store, key: str, topic: tuple[str, ...], deadline: Deadline) -> str:
    pause_s = POLL_S_FIRST
    while not store.check([key]):
        left_s = deadline.left_s + LAST_WORD_S
        if left_s <= 0:
            leader = f"{key}/leader"
            who = store.get(leader).decode() if store.check([leader]) else "the coordinator, rank 0"
            raise DeadlineExceededError(
                f"{_name(topic)}: nothing heard from {who} in {deadline.budget_s:g} s: "
                "it died, hangs, or never came here"
            )
        await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
        pause_s = min(1.5 * pause_s, POLL_S_MAX)
    outcome = msgspec.json.decode(store.get(key), type=_Outcome)
    if not outcome.error:
        return outcome.found
    kind = getattr(errors, outcome.error, None)
    if isinstance(kind, type) and issubclass(kind, CkptStoreError):
        raise kind(outcome.detail)
    raise CkptStoreError(f"{outcome.error}: {outcome.detail}")


async def group_store(deadline: Deadline) -> Store | None:
    """Return the process group's store over a connection of our own, if there is a group.

    Of our own, because a blocking wait by another thread holds a connection for its duration.
    It is made once, in a thread: connecting may take seconds when all ranks do it at a time.
    """
    global _connected
    if not (dist.is_available() and dist.is_initialized()):
        return None
    store: Store = dist.distributed_c10d._get_default_store()
    clone = getattr(store, "clone", None)  # Some stores, and torch before 2.5, have none.
    if clone is None:
        return store
    if _connected is None or _connected[0]() is not store:
        async with deadline.enforce("connect to the process group's key-value store"):
            _connected = weakref.ref(store), await asyncio.to_thread(clone)
    return _connected[1]


def _name(topic: tuple[str, ...]) -> str:
    return " ".join(topic)
