"""The private loop: answers, errors, time limits, forks."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from ckptstore.errors import DeadlineExceededError
from ckptstore.runtime import run_sync


def test_it_returns_what_the_coroutine_returns_and_raises_what_it_raises() -> None:
    async def answer() -> int:
        return 42

    async def fail() -> int:
        raise ZeroDivisionError

    assert run_sync(answer, timeout_s=10) == 42
    with pytest.raises(ZeroDivisionError):
        run_sync(fail, timeout_s=10)


def test_a_timeout_of_the_coroutine_itself_is_not_taken_for_ours() -> None:
    async def fail() -> None:
        raise TimeoutError("inner")

    with pytest.raises(TimeoutError, match="inner"):
        run_sync(fail, timeout_s=10)


def test_a_coroutine_that_does_not_end_is_cancelled() -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(DeadlineExceededError, match=r"0\.01 s"):
        run_sync(hang, timeout_s=0.01)
    assert cancelled.wait(10)


async def test_it_works_inside_a_running_loop() -> None:
    async def name() -> str:
        return threading.current_thread().name

    assert run_sync(name, timeout_s=10) == "ckptstore-loop"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    async def pid() -> int:
        return os.getpid()

    assert run_sync(pid, timeout_s=10) == os.getpid()
    child = os.fork()
    if child == 0:
        own = run_sync(pid, timeout_s=10) == os.getpid()
        os._exit(0 if own else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_private_loop_is_uvloops_where_that_is_installed() -> None:
    pytest.importorskip("uvloop")

    async def kind() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run_sync(kind, timeout_s=10).startswith("uvloop")
