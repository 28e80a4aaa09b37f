"""Agree on what each rank saves, without a collective, and only when it changed.

The ranks' plans travel through the process group's key-value store, so that a rank that died or
hangs is named at the deadline instead of holding all others until the group's own timeout. A
rank whose plan is the one of the save before says just that.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import random
from collections.abc import Sequence
from typing import Final

import msgspec
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.distributed_c10d import Store

from ckptstore.clock import Deadline
from ckptstore.errors import CkptStoreError, DeadlineExceededError
from ckptstore.torch.agree import agree, group_store
from ckptstore.torch.attempts import Beginning, Begun

UNCHANGED: Final = "="
FAILED: Final = "!"
POLL_S_FIRST: Final = 0.002
POLL_S_MAX: Final = 0.2


class Planning:
    """The plans of one ``Checkpointer``, remembered from save to save."""

    def __init__(self) -> None:
        self._local: SavePlan | None = None
        self._mine: SavePlan | None = None
        self._locals: list[SavePlan] = []  # The coordinator's: every rank's, and what came of it.
        self._globals: list[SavePlan] = []

    async def agreed(
        self, local: SavePlan | Exception, beginning: Beginning, rank: int, deadline: Deadline
    ) -> tuple[SavePlan, Begun]:
        """Return what this rank saves and the attempt, new and the same on all ranks.

        ``local`` is what this rank would save alone, or what kept it from knowing; that, a
        rank that does not come, and a store that fails are raised on every rank.
        """
        store = await group_store(deadline)
        where = f"run {beginning.location} step {beginning.step}"
        topic = ("checkpointer", where, f"save #{beginning.serial}")
        if store is None:
            if isinstance(local, Exception):
                raise local
            (self._mine,), begun = _global_plans([local]), await beginning.begun(deadline)
            return self._mine, begun
        prefix = "/".join(("ckptstore", "plan", *topic))
        store.set(f"{prefix}/{rank}", self._message(local))

        async def find() -> str:
            local_plans = await self._gathered(store, prefix, where, beginning.world_size, deadline)
            self._publish(store, prefix, local_plans)
            return msgspec.json.encode(await beginning.begun(deadline)).decode()

        found = await agree(topic, find, leads=beginning.coordinates, deadline=deadline)
        mine = store.get(f"{prefix}/{rank}/mine").decode()
        store.delete_key(f"{prefix}/{rank}/mine")
        if mine != UNCHANGED:
            self._mine = _unpacked(mine)
        if isinstance(local, SavePlan):
            self._local = local
        assert self._mine is not None
        return self._mine, msgspec.json.decode(found, type=Begun)

    def _message(self, local: SavePlan | Exception) -> str:
        if isinstance(local, Exception):
            return f"{FAILED}{type(local).__name__}: {local}"
        return UNCHANGED if local == self._local else _packed(local)

    async def _gathered(
        self, store: Store, prefix: str, where: str, world_size: int, deadline: Deadline
    ) -> list[SavePlan]:
        keys = [f"{prefix}/{rank}" for rank in range(world_size)]
        await _awaited(store, keys, where, deadline)
        messages = [store.get(key).decode() for key in keys]
        for key in keys:
            store.delete_key(key)
        failed = [
            f"rank {rank}: {message[1:]}"
            for rank, message in enumerate(messages)
            if message.startswith(FAILED)
        ]
        if failed:
            raise CkptStoreError(f"{where}: could not plan the save: {'; '.join(failed)}")
        return [
            self._locals[rank] if message == UNCHANGED else _unpacked(message)
            for rank, message in enumerate(messages)
        ]

    def _publish(self, store: Store, prefix: str, local_plans: list[SavePlan]) -> None:
        changed = local_plans != self._locals
        if changed:
            self._globals = _global_plans(local_plans)
            self._locals = local_plans
        for rank, plan in enumerate(self._globals):
            store.set(f"{prefix}/{rank}/mine", _packed(plan) if changed else UNCHANGED)


async def _awaited(store: Store, keys: Sequence[str], where: str, deadline: Deadline) -> None:
    pause_s = POLL_S_FIRST
    while not store.check(list(keys)):
        if deadline.passed:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise DeadlineExceededError(
                f"{where}: rank {', '.join(missing)} did not come to save within "
                f"{deadline.budget_s:g} s: dead, hung, or not calling save()"
            )
        await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), max(deadline.left_s, 0.0)))
        pause_s = min(1.5 * pause_s, POLL_S_MAX)


def _packed(plan: SavePlan) -> str:
    """Return a plan as text, pickled as DCP itself sends it between the ranks of a job."""
    return base64.b64encode(pickle.dumps(plan)).decode()


def _unpacked(text: str) -> SavePlan:
    plan: SavePlan = pickle.loads(base64.b64decode(text))
    return plan


def _global_plans(local_plans: list[SavePlan]) -> list[SavePlan]:
    """Return what each rank saves: what several of them hold is saved by one."""
    return DefaultSavePlanner().create_global_plan(local_plans)[0]
