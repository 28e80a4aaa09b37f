"""A little time for the save in flight when the scheduler says that the job must go."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from types import FrameType
from typing import Any

from ckptstore.errors import CkptStoreError
from ckptstore.runtime import cancel_and_wait

logger = logging.getLogger(__name__)


class SigtermGrace:
    """On SIGTERM, let the save in flight commit or else abort it; then do what was done before.

    Signals reach the main thread alone, so made in another one this does nothing.
    """

    def __init__(self, grace_s: float | None, in_flight: Callable[[], Future[Any] | None]) -> None:
        self._in_flight = in_flight
        self._grace_s = grace_s or 0.0
        self._before: Any = None
        self._installed = (
            grace_s is not None and threading.current_thread() is threading.main_thread()
        )
        if self._installed:
            self._before = signal.signal(signal.SIGTERM, self._handle)

    def restore(self) -> None:
        """Give SIGTERM back, if it is still ours to give."""
        if self._installed and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._before)
        self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        saving = self._in_flight()
        if saving is not None:
            self._end(saving)
        self.restore()
        if callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self, saving: Future[Any]) -> None:
        logger.warning("SIGTERM: the save in flight has %g s to commit", self._grace_s)
        try:
            saving.result(self._grace_s)
        except TimeoutError:
            logger.warning("SIGTERM: the save in flight is aborted: its time is up")
            cancel_and_wait(saving)
        except (CkptStoreError, CancelledError) as error:
            logger.warning("SIGTERM: the save in flight failed: %s", error)
