"""A rank of a job: a process that saves when it is told to, and may not live to tell."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import ClassVar, Final, TypeVar

from ckptstore.clock import Deadline, SystemClock
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.errors import CheckpointAbortedError, CheckpointInDoubtError, CkptStoreError
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.location import StoreLocation
from ckptstore.manifest.model import Attempt
from ckptstore.opening import opened_store, prepared_record
from ckptstore.save import save_checkpoint
from ckptstore.store import ObjectStore
from tests.crashes.plan import WORLD_SIZE, At, Moment
from tests.crashes.shards import SETTINGS, contents_of, shards_of

T = TypeVar("T")

ORDER_S_MAX: Final = 120.0
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
IN_DOUBT: Final = "in doubt"
BROKEN: Final = "broken"


@dataclass(frozen=True)
class Begin:
    """For rank 0: begin an attempt; without an incarnation, claim one first."""

    run: str
    step: int
    incarnation: int | None
    attempt_number: int
    nonce: str
    deadline_s: float


@dataclass(frozen=True)
class Crash:
    """Meet a signal of one's own at an exact request, of which there were ``requests`` before.

    ``whole_job`` sends it to every rank; ``suspends`` stops this rank's clock as well.
    """

    moment: Moment
    number: signal.Signals
    requests: int
    whole_job: bool = False
    suspends: bool = False


@dataclass(frozen=True)
class Save:
    attempt: Attempt
    deadline_s: float
    crash: Crash | None = None


@dataclass(frozen=True)
class Finish:
    """Close everything, say what is left, and end."""


@dataclass(frozen=True)
class Answer:
    """How a save ended on a rank."""

    ending: str
    text: str
    seconds: float
    requests: int = 0


@dataclass(frozen=True)
class Leftovers:
    """What a rank that closed its store still has, beyond what it started with."""

    descriptors: int
    tasks: int
    threads: int


class StrikeLayer(AroundLayer):
    """Count requests, and ``strike`` at a moment, just before or just after one of them."""

    passes_through: ClassVar[frozenset[str]] = frozenset({"list_objects", "list_uploads"})

    def __init__(
        self,
        inner: ObjectStore,
        moment: Moment | None,
        strike: Callable[[], None],
        *,
        requests: int = 0,
    ) -> None:
        super().__init__(inner)
        self._moment = moment
        self._strike = strike
        self._requests_expected = requests
        self.requests = 0

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        self.requests += 1
        moment = self._moment
        if moment is None or not self._has_come(moment, request):
            return await send()
        self._moment = None
        if not moment.landed:
            self._strike()
            return await send()
        answer = await send()
        self._strike()
        return answer

    def _has_come(self, moment: Moment, request: Request) -> bool:
        match moment.at:
            case At.VOTE:
                return request.verb == "put" and "/rank-" in request.key
            case At.DECISION:
                return request.verb == "put" and "/decisions/" in request.key
            case _:
                return self.requests > moment.fraction * self._requests_expected


class SuspendableLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can have stood still, like that of a machine that was suspended."""

    suspended_s = 0.0

    def time(self) -> float:
        return super().time() - self.suspended_s


def _strike_oneself(crash: Crash) -> None:
    before_s = time.monotonic()
    if crash.whole_job:
        os.killpg(0, crash.number)
    else:
        os.kill(os.getpid(), crash.number)
    loop = asyncio.get_running_loop()
    if crash.suspends and isinstance(loop, SuspendableLoop):
        loop.suspended_s += time.monotonic() - before_s


def serve_rank(pipe: Connection, rank: int, location: StoreLocation, group: int) -> None:
    """Do what the parent orders, until it says ``Finish`` or has said nothing for long."""
    os.setpgid(0, group)
    before = _held()
    with asyncio.Runner(loop_factory=SuspendableLoop) as runner:
        tasks = runner.run(_serve(pipe, rank, location))
    after = _held()
    pipe.send(Leftovers(after[0] - before[0], tasks, after[1] - before[1]))


def _held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


async def _serve(pipe: Connection, rank: int, location: StoreLocation) -> int:
    async with opened_store(location, SETTINGS) as store:
        while pipe.poll(ORDER_S_MAX):
            match pipe.recv():
                case Begin() as order:
                    pipe.send(await begun(store, order))
                case Save() as order:
                    pipe.send(await _saved(store, location, rank, order))
                case _:
                    break
    return len(asyncio.all_tasks()) - 1


async def begun(store: ObjectStore, order: Begin) -> Attempt:
    """Begin an attempt as rank 0 does."""
    clock = SystemClock()
    await prepared_record(store, clock=clock)
    incarnation = order.incarnation
    if incarnation is None:
        claim = await claim_incarnation(
            store, run=order.run, parent_uid=None, facts={}, clock=clock
        )
        incarnation = claim.number
    return await begin_attempt(
        store,
        run=order.run,
        step=order.step,
        incarnation=incarnation,
        attempt_number=order.attempt_number,
        world_size=WORLD_SIZE,
        deadline=Deadline.after(order.deadline_s),
        clock=clock,
        nonce=order.nonce,
    )


async def _saved(store: ObjectStore, location: StoreLocation, rank: int, order: Save) -> Answer:
    crash = order.crash
    if crash is None:
        counted = StrikeLayer(store, None, lambda: None)
    else:
        strike = partial(_strike_oneself, crash)
        counted = StrikeLayer(store, crash.moment, strike, requests=crash.requests)
    answer = await answer_of_save(counted, location, rank, order.attempt, order.deadline_s)
    return replace(answer, requests=counted.requests)


async def answer_of_save(
    store: ObjectStore, location: StoreLocation, rank: int, attempt: Attempt, deadline_s: float
) -> Answer:
    """Save on one rank, and return how that ended."""
    shards = shards_of(location, attempt.uid, rank)
    began_s = time.monotonic()
    ending, text = COMMITTED, ""
    try:
        await save_checkpoint(
            shards,
            contents_of(shards),
            attempt=attempt,
            rank=rank,
            store=store,
            record=await prepared_record(store, clock=SystemClock()),
            deadline=Deadline.after(deadline_s),
            settings=SETTINGS,
        )
    except CheckpointAbortedError as error:
        ending, text = ABORTED, str(error)
    except CheckpointInDoubtError as error:
        ending, text = IN_DOUBT, str(error)
    except CkptStoreError as error:
        ending, text = BROKEN, repr(error)
    return Answer(ending, text, time.monotonic() - began_s)
