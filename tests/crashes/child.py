"""Forked processes, each with a pipe to its parent, and never a wait without an end."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

FORK: Final = multiprocessing.get_context("fork")
REAP_S_MAX: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """A process that runs ``function(pipe, *args)`` and does not outlive its parent.

    The parent must not have threads: a fork takes their locks along, but not them.
    """

    def __init__(self, function: Callable[..., None], *args: object) -> None:
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not forked"
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_run, args=(function, theirs, args))
        self.process.start()
        theirs.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. The process is ours until it is reaped, so it hits nobody else."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def ended(self, timeout_s: float) -> int | None:
        """Return the exit code, if the process ends in time."""
        self.process.join(timeout_s)
        return self.process.exitcode

    def close(self) -> None:
        """Kill it if it still runs, and let go of the pipe."""
        if self.process.exitcode is None:
            self.signal(signal.SIGKILL)
        self.process.join(REAP_S_MAX)
        self.process.close()
        self.pipe.close()


def wait_for(children: list[Child], timeout_s: float) -> list[Child]:
    """Return those that said something, or ended, as soon as there are any."""
    by_handle: dict[Any, Child] = {child.pipe: child for child in children}
    by_handle |= {child.process.sentinel: child for child in children}
    ready = wait(list(by_handle), max(timeout_s, 0.0))
    return [child for child in children if child.pipe in ready or child.process.sentinel in ready]


def message(child: Child) -> object:
    """Return what the child said, or ``None`` if it ended without a word."""
    try:
        return child.pipe.recv() if child.pipe.poll(0) else None
    except (EOFError, ConnectionResetError):
        return None


def in_child(function: Callable[..., T], *args: object, timeout_s: float) -> T:
    """Return ``function(*args)``, run in a process that is forked for it."""
    child = Child(_answer, function, *args)
    try:
        wait_for([child], timeout_s)
        answer = message(child)
        if answer is None:
            code = child.ended(0.0)
            raise RuntimeError(f"{function.__name__}: no answer within {timeout_s:g} s ({code})")
        value, trouble = cast("tuple[T, str]", answer)
        if trouble:
            raise RuntimeError(trouble)
        return value
    finally:
        child.close()


def _answer(pipe: Connection, function: Callable[..., Any], *args: object) -> None:
    try:
        pipe.send((function(*args), ""))
    except Exception:
        pipe.send((None, traceback.format_exc()))


def _run(function: Callable[..., None], pipe: Connection, args: tuple[object, ...]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    function(pipe, *args)
