"""Keep what a job went on from until it has a checkpoint of its own."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import Final

from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.pins import pinned
from ckptstore.errors import CkptStoreError
from ckptstore.location import RunLocation
from ckptstore.opening import opened_store
from ckptstore.runtime import run_sync, start
from ckptstore.settings import Settings

logger = logging.getLogger(__name__)

RELEASE_S_MAX: Final = 10.0


class Holding:
    """A pin from a restore until the first commit.

    In between, the restored checkpoint is what the job would start again from, and nothing in
    the store says so yet: its incarnation is claimed when it first saves.
    """

    def __init__(self, location: RunLocation, settings: Settings) -> None:
        self._location = location
        self._settings = settings
        self._held: Future[None] | None = None
        self._over = asyncio.Event()

    def hold(self, uid: str, *, deadline_s: float) -> None:
        """Return once retention is kept away from the checkpoint; let go of the one before.

        Raises ``CheckpointNotFoundError`` if retention was faster.
        """
        self.let_go()
        self._over = asyncio.Event()
        pinning: Future[None] = Future()
        self._held = start(lambda: self._hold(uid, deadline_s, self._over, pinning))
        self._held.add_done_callback(lambda held: _pass_on(held, pinning))
        pinning.result(deadline_s)

    def let_go(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        run_sync(self.over, timeout_s=RELEASE_S_MAX)
        try:
            held.result(RELEASE_S_MAX)
        except (CkptStoreError, TimeoutError) as error:
            logger.info("%s: a pin was not taken away and will expire: %s", self._location, error)

    async def over(self) -> None:
        """Say, on the private loop, that the checkpoint is not needed any more."""
        self._over.set()

    async def _hold(
        self, uid: str, deadline_s: float, over: asyncio.Event, pinning: Future[None]
    ) -> None:
        pin_deadline = Deadline.after(deadline_s)
        async with (
            opened_store(self._location.store, self._settings) as store,
            pinned(
                store,
                self._location.run,
                uid,
                clock=SystemClock(),
                holder="job",
                deadline=pin_deadline,
            ),
        ):
            pinning.set_result(None)
            await over.wait()


def _pass_on(held: Future[None], pinning: Future[None]) -> None:
    if not pinning.done():
        error = None if held.cancelled() else held.exception()
        pinning.set_exception(error or CkptStoreError("the pin was given up"))
