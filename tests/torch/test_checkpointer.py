"""Checkpointer in one process: what is restored, what is raised, and when."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptstore.clock import SystemClock
from ckptstore.commit.pins import list_pinned
from ckptstore.errors import (
    CheckpointAbortedError,
    DeadlineExceededError,
    IntegrityError,
    PermissionDeniedError,
    UsageError,
)
from ckptstore.gc.policy import KeepBest, RetentionPolicy
from ckptstore.location import parse_run
from ckptstore.opening import opened_store
from ckptstore.runtime import run_sync
from ckptstore.save import save_checkpoint
from ckptstore.settings import Settings
from ckptstore.store import ObjectStore
from ckptstore.torch import Checkpointer, checkpointer
from ckptstore.torch.sigterm import SigtermGrace
from tests.torch.worlds import SMALL, checkpoints_of, fresh_url, manifest_of


def a_checkpointer(url: str, **options: Any) -> Checkpointer:  # noqa: ANN401
    return Checkpointer(url, settings=SMALL, **options)


def state_of(value: float, step: int = 0) -> dict[str, Any]:
    return {"model": {"w": torch.full((40, 5), value), "b": torch.tensor(value)}, "step": step}


def in_store(url: str, act: Callable[[ObjectStore], Any]) -> None:
    async def acting() -> None:
        async with opened_store(parse_run(url).store, Settings()) as store:
            await act(store)

    run_sync(acting, timeout_s=30)


def rot(url: str) -> None:
    """Flip a byte of the newest checkpoint's first shard."""
    key = manifest_of(url).shards[0].key

    async def flip(store: ObjectStore) -> None:
        data = bytearray(await store.get(key))
        data[-1] ^= 1
        await store.put(key, data)

    in_store(url, flip)


def test_what_was_saved_is_restored_with_its_step() -> None:
    url = fresh_url()
    with a_checkpointer(url) as one:
        assert one.restore(state_of(0.0)) is None
        for step in (1, 2, 3):
            one.save(step, state_of(float(step), step))
    state = state_of(0.0)
    with a_checkpointer(url) as other:
        assert other.restore(state) == 3
    assert torch.equal(state["model"]["w"], torch.full((40, 5), 3.0))
    assert state["step"] == 3
    assert [(info.step, info.state) for info in checkpoints_of(url)] == [
        (3, "committed"),
        (2, "committed"),
        (1, "committed"),
    ]


def test_the_state_may_change_as_soon_as_save_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    url, state = fresh_url(), state_of(1.0)
    gate = threading.Event()

    async def gated(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        await asyncio.to_thread(gate.wait, 30)
        return await save_checkpoint(*arguments, **options)

    monkeypatch.setattr(checkpointer, "save_checkpoint", gated)
    with a_checkpointer(url) as one:
        one.save(1, state)
        state["model"]["w"].fill_(99.0)
        gate.set()
    fresh = state_of(0.0)
    with a_checkpointer(url) as other:
        other.restore(fresh)
    assert torch.equal(fresh["model"]["w"], torch.full((40, 5), 1.0))


def test_staging_memory_is_used_again() -> None:
    with a_checkpointer(fresh_url()) as one:
        sizes = set()
        for step in range(3):
            one.save(step, state_of(float(step)))
            sizes.add(one._staging.size_bytes)
            one.wait()
        first = one._staging._buffers
        one.save(3, state_of(3.0))
        assert {b.data_ptr() for b in first.values()} == {
            b.data_ptr() for b in one._staging._buffers.values()
        }
    assert sizes == {40 * 5 * 4 + 4}


@pytest.mark.parametrize("next_call", ["save", "restore", "wait", "close"])
def test_a_failed_save_is_raised_by_the_next_call(next_call: str) -> None:
    one = a_checkpointer(fresh_url())
    one.save(1, {"w": torch.empty(3, device="meta")})
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: one.save(2, state_of(2.0)),
        "restore": lambda: one.restore(state_of(0.0)),
        "wait": one.wait,
        "close": one.close,
    }
    with pytest.raises(CheckpointAbortedError, match="step 1 rank 0"):
        calls[next_call]()
    one.save(3, state_of(3.0))  # And the one after that works.
    one.close()
    assert one.restore(state_of(0.0)) == 3
    one.close()


def test_a_failed_save_is_raised_when_the_block_is_left() -> None:
    with pytest.raises(CheckpointAbortedError), a_checkpointer(fresh_url()) as one:
        one.save(1, {"w": torch.empty(3, device="meta")})


def test_the_error_in_the_block_is_not_hidden_by_a_failed_save(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def job() -> None:
        with a_checkpointer(fresh_url()) as one:
            one.save(1, {"w": torch.empty(3, device="meta")})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert "the save in flight failed as well" in caplog.text


def test_a_damaged_checkpoint_is_an_error_unless_falling_back_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = fresh_url()
    with a_checkpointer(url) as one:
        one.save(1, state_of(1.0))
        one.save(2, state_of(2.0))
    rot(url)
    state = state_of(0.0)
    with a_checkpointer(url) as other:
        with pytest.raises(IntegrityError, match="block"):
            other.restore(state)
        with caplog.at_level(logging.WARNING):
            assert other.restore(state, fallback=True) == 1
    assert "falling back" in caplog.text
    assert torch.equal(state["model"]["w"], torch.full((40, 5), 1.0))


def test_when_all_are_damaged_falling_back_fails_too() -> None:
    url = fresh_url()
    with a_checkpointer(url) as one:
        one.save(1, state_of(1.0))
    rot(url)
    with a_checkpointer(url) as other, pytest.raises(IntegrityError):
        other.restore(state_of(0.0), fallback=True)


def test_a_store_that_cannot_tell_is_an_error_and_never_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> None:
        raise PermissionDeniedError("no listing for you")

    monkeypatch.setattr(checkpointer, "latest_commit", refuse)
    with a_checkpointer(fresh_url()) as one, pytest.raises(PermissionDeniedError):
        one.restore(state_of(0.0))


def test_retention_keeps_the_last_ones_and_what_the_job_went_on_from() -> None:
    url = fresh_url()
    with a_checkpointer(url, keep_last=2) as one:
        for step in range(6):
            one.save(step, state_of(float(step)))
    states = {info.step: info.state for info in checkpoints_of(url)}
    assert [step for step, state in states.items() if state == "committed"] == [5, 4]
    assert {state for step, state in states.items() if step < 4} == {"retired"}
    with a_checkpointer(url) as other:
        assert other.restore(state_of(0.0)) == 5


def test_retention_chooses_by_the_metrics_that_were_saved() -> None:
    url = fresh_url()
    policy = RetentionPolicy(keep_best=(KeepBest("loss", 1),))
    with a_checkpointer(url, retention=policy) as one:
        for step, loss in enumerate((3.0, 1.0, 2.0, 4.0)):
            one.save(step, state_of(loss), metrics={"loss": loss})
    kept = [info.step for info in checkpoints_of(url) if info.state == "committed"]
    assert kept == [3, 1]  # The newest stays in any case.


def pins_on(url: str) -> set[str]:
    found: set[str] = set()

    async def look(store: ObjectStore) -> None:
        found.update(await list_pinned(store, "llama", clock=SystemClock()))

    in_store(url, look)
    return found


def test_what_the_job_went_on_from_is_pinned_until_it_has_committed_something() -> None:
    url = fresh_url()
    with a_checkpointer(url) as first:
        first.save(1, state_of(1.0))
    (info,) = checkpoints_of(url)
    with a_checkpointer(url) as second:
        second.restore(state_of(0.0))
        assert pins_on(url) == {info.uid}
        second.save(2, {"w": torch.empty(3, device="meta")})
        with pytest.raises(CheckpointAbortedError):
            second.wait()
        assert pins_on(url) == {info.uid}  # It would still start again from there.
        second.save(3, state_of(3.0))
        second.wait()
    assert pins_on(url) == set()


def test_a_job_that_ends_without_a_save_leaves_no_pin() -> None:
    url = fresh_url()
    with a_checkpointer(url) as first:
        first.save(1, state_of(1.0))
    with a_checkpointer(url) as second:
        second.restore(state_of(0.0))
        second.restore(state_of(0.0))
    assert pins_on(url) == set()


def test_a_retention_that_fails_is_no_failed_save(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PermissionDeniedError("no listing for you")

    monkeypatch.setattr(checkpointer, "plan_collection", refuse)
    url = fresh_url()
    with a_checkpointer(url, keep_last=1) as one:
        one.save(1, state_of(1.0))
        one.save(2, state_of(2.0))
    assert "retention failed" in caplog.text
    assert [info.state for info in checkpoints_of(url)] == ["committed"] * 2


def test_two_retentions_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="not both"):
        a_checkpointer(fresh_url(), keep_last=1, retention=RetentionPolicy(keep_every=5))


def test_going_back_to_an_older_step_is_followed_by_latest() -> None:
    url = fresh_url()
    with a_checkpointer(url) as one:
        for step in (1, 2, 3):
            one.save(step, state_of(float(step)))
    rot(url)
    with a_checkpointer(url) as two:
        assert two.restore(state_of(0.0), fallback=True) == 2
        two.save(3, state_of(33.0))
    state = state_of(0.0)
    with a_checkpointer(url) as three:
        assert three.restore(state) == 3
    assert torch.equal(state["model"]["w"], torch.full((40, 5), 33.0))


def test_a_save_that_does_not_end_is_cancelled_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(checkpointer, "save_checkpoint", hang)
    monkeypatch.setattr(checkpointer, "GRACE_S", 0.0)
    one = a_checkpointer(fresh_url(), deadline_s=0.5)
    one.save(7, state_of(1.0))
    with pytest.raises(DeadlineExceededError, match="step 7"):
        one.close()


@pytest.mark.parametrize("url", ["s3://bucket", "memory://x/run@3", "ftp://x/run"])
def test_a_url_that_names_no_run_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Checkpointer(url)


@pytest.mark.parametrize("step", [-1, 1.5, "3"])
def test_a_step_that_is_none_is_refused(step: Any) -> None:  # noqa: ANN401
    with a_checkpointer(fresh_url()) as one, pytest.raises(UsageError, match="step"):
        one.save(step, state_of(1.0))


SIGTERM_JOB = """
import asyncio, os, signal, sys, torch
from ckptstore.torch import Checkpointer, checkpointer
url, hangs = sys.argv[1], sys.argv[2] == "hangs"
real = checkpointer.save_checkpoint
async def hang(*a, **k):
    await asyncio.Event().wait()
if hangs:
    checkpointer.save_checkpoint = hang
one = Checkpointer(url, sigterm_grace_s=0.1 if hangs else 60.0)
one.save(1, {"w": torch.ones(1000)})
os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""


@pytest.mark.parametrize(("how", "committed"), [("commits", True), ("hangs", False)])
def test_sigterm_leaves_the_save_in_flight_its_grace_and_then_ends_the_job(
    how: str, committed: bool, tmp_path: Path
) -> None:
    url = str(tmp_path / "store" / "run")
    job = subprocess.run(
        [sys.executable, "-c", SIGTERM_JOB, url, how],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert job.returncode == -signal.SIGTERM, job.stderr
    assert "not reached" not in job.stdout
    assert [info.state == "committed" for info in checkpoints_of(url)] == [committed]


def test_sigterm_goes_back_to_whoever_had_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        ended: Future[object] = Future()
        ended.set_result(None)
        grace = SigtermGrace(1.0, lambda: ended)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
        grace.restore()
    finally:
        signal.signal(signal.SIGTERM, before)
