"""Run a verb to its exit code: deadline, signals, errors."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.options import Shared
from ckptstore.cli.output import Output
from ckptstore.cli.units import parse_seconds
from ckptstore.clock import Deadline
from ckptstore.settings import RequestSettings, S3Settings, Settings

GRACE_S_MAX: Final = 30.0  # For cleaning up once the deadline has passed, or a signal came.


def run(name: str, options: Shared, verb: Callable[[Command], Awaitable[int]]) -> int:
    """Run the verb and return what the process should end with; every error is said."""
    output = Output(name, as_json=options.json, quiet=options.quiet, verbosity=options.verbose)
    output.header()
    interrupt = _Interrupt()
    try:
        settings = _settings(options)
        output.stats_s = parse_seconds(options.stats)
        with (
            _logged(options),
            _end_at_all_costs(settings.deadline_s + GRACE_S_MAX) as go_on,
            interrupt.handled(),
            asyncio.Runner() as runner,
        ):
            return runner.run(_supervised(verb, output, settings, interrupt, go_on))
    except asyncio.CancelledError:
        code = interrupt.code
        output.failure(f"{name} was interrupted and cleaned up after itself", code=code)
    except Exception as error:  # Whatever it is, it is said in one way.
        code = exit_codes.code_of(error)
        output.error(error)
    output.summary("", exit_code=code)
    return code


async def _supervised(
    verb: Callable[[Command], Awaitable[int]],
    output: Output,
    settings: Settings,
    interrupt: _Interrupt,
    go_on: Callable[[], object],
) -> int:
    with interrupt.watching():
        deadline = Deadline.after(settings.deadline_s)
        return await verb(Command(output=output, settings=settings, deadline=deadline, go_on=go_on))


class _Interrupt:
    """The first signal cancels the verb, which cleans up; the second one ends the process.

    So does the end of the time for cleaning up: a thread that a hung disk holds never ends.
    """

    def __init__(self) -> None:
        self.code = exit_codes.SIGINT
        self._came = False
        self._cleaning: threading.Timer | None = None
        self._cancel: Callable[[], object] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let signals cancel the running task; one that came before does so now."""
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._came:
            self._cancel()
        try:
            yield
        finally:
            self._cancel = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._cleaning is not None:
                self._cleaning.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.code = _SIGNALS[signal.Signals(number)]
        if self._came:
            os._exit(self.code)
        self._came = True
        self._cleaning = _end_later(GRACE_S_MAX, self.code)
        if self._cancel is not None:
            self._cancel()


_SIGNALS: Final = {
    signal.SIGINT: exit_codes.SIGINT,
    signal.SIGTERM: exit_codes.SIGTERM,
}


@contextmanager
def _end_at_all_costs(after_s: float) -> Iterator[Callable[[], object]]:
    """End the process if the block is not done by then: a hung disk heeds no deadline.

    Gives what a block calls that has no end.
    """
    timer = _end_later(after_s, exit_codes.DEADLINE)
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _end_later(after_s: float, code: int) -> threading.Timer:
    def end() -> None:
        sys.stderr.write("error: it could not be ended in good order; something hangs\n")
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
    return timer


def _settings(options: Shared) -> Settings:
    return Settings(
        request=RequestSettings(in_flight_max=options.concurrency),
        s3=S3Settings(profile=options.profile, endpoint_url=options.endpoint_url),
        deadline_s=parse_seconds(options.deadline),
    )


@contextmanager
def _logged(options: Shared) -> Iterator[None]:
    levels = (logging.WARNING, logging.INFO, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("ckptstore")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if options.quiet else levels[min(options.verbose, 2)])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
