"""Begin an attempt, once for all ranks, and let them all know which."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import msgspec
import torch

from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.location import RunLocation
from ckptstore.manifest.model import Attempt, StoreRecord
from ckptstore.opening import opened_store, prepared_record
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.torch.agree import agree
from ckptstore.torch.registry import Lineage, known_incarnation, next_number, note_claimed

ATTEMPT_MAX = 99  # The number only says in which order; what makes a uid unique is its nonce.


class Begun(msgspec.Struct, frozen=True):
    """What every rank must know to take part in an attempt."""

    attempt: Attempt
    record: StoreRecord


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What is needed to begin. ``serial`` counts the saves of this step, alike on all ranks.

    ``world_size`` is known to the coordinator.
    """

    location: RunLocation
    step: int
    serial: int
    lineage: Lineage
    coordinates: bool
    world_size: int
    settings: Settings

    async def agreed(self, deadline: Deadline) -> Begun:
        """Return the attempt; it is new, and the same on all ranks.

        The coordinator begins it and tells the others, or tells them why it could not: every
        rank then raises that. It does not travel in DCP's plan, because a cached plan would
        bring back the first one.
        """

        async def find() -> str:
            return msgspec.json.encode(await self.begun(deadline)).decode()

        if self.coordinates and self.world_size == 1:
            found = await find()
        else:
            topic = ("save", f"run {self.location}", f"step {self.step}", f"#{self.serial}")
            found = await agree(topic, find, leads=self.coordinates, deadline=deadline)
        return msgspec.json.decode(found, type=Begun)

    async def begun(self, deadline: Deadline) -> Begun:
        """Begin the attempt, alone. For the coordinator."""
        async with (
            deadline.enforce(f"run {self.location} step {self.step}: begin"),
            opened_store(self.location.store, self.settings) as store,
        ):
            return await self._begin(store, deadline)

    async def _begin(self, store: ObjectStore, deadline: Deadline) -> Begun:
        clock = SystemClock()
        record = await prepared_record(store, clock=clock)
        run = str(self.location)
        incarnation = known_incarnation(run, self.lineage)
        if incarnation is None:
            claim = await claim_incarnation(
                store,
                run=self.location.run,
                parent_uid=self.lineage.parent_uid,
                facts={
                    "host": platform.node(),
                    "torch": str(torch.__version__),
                    "world_size": str(self.world_size),
                },
                clock=clock,
            )
            incarnation = claim.number
        note_claimed(run, self.lineage.loads, incarnation)
        number = next_number("attempt", run, str(incarnation), str(self.step))
        attempt = await begin_attempt(
            store,
            run=self.location.run,
            step=self.step,
            incarnation=incarnation,
            attempt_number=min(number, ATTEMPT_MAX),
            world_size=self.world_size,
            deadline=deadline,
            clock=clock,
        )
        return Begun(attempt, record)
