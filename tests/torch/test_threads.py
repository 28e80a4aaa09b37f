from __future__ import annotations

import asyncio
import threading

import pytest

from ckptstore.torch.threads import in_thread


async def test_work_is_done_in_another_thread_and_its_result_comes_back() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()


async def test_what_work_raises_comes_back_too() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_work_that_hangs_is_left_behind_and_does_not_keep_the_process() -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        threads.append(threading.current_thread())
        release.wait(60)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(hang)
    (thread,) = threads
    assert thread.is_alive()
    assert thread.daemon
    release.set()
    await asyncio.to_thread(thread.join, 10)


def test_work_that_outlives_its_loop_ends_quietly() -> None:
    """A warning about an exception in a thread would be an error here."""
    release, threads = threading.Event(), list[threading.Thread]()

    def outlive() -> None:
        threads.append(threading.current_thread())
        release.wait(60)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await in_thread(outlive)

    asyncio.run(leave())
    release.set()
    threads[0].join(10)
    assert not threads[0].is_alive()
