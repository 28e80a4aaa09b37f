"""Real processes as ranks, over gloo, with the parent in the part of the launcher.

The parent serves the key-value store, as ``torchrun`` does, so that no rank is needed for it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.checkpoint.api import CheckpointException

GROUP_TIMEOUT_S: Final = 60.0
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",  # The first optimizer imports it, in seconds.
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.state_dict",
        "ckptstore.torch",
        "ckptstore.backends.local",
        "ckptstore.backends.s3.store",
        "tests.torch.ranks",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: with a value, an error, or neither, because it was killed.

    ``ended_s`` is in seconds since all ranks were started.
    """

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    exit_code: int | None = None
    ended_s: float = 0.0


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: object,
    timeout_s: float = 60.0,
) -> list[Any]:
    """Run ``function(rank, *args)`` on every rank and return what each returned."""
    outcomes = watch_ranks(world_size, function, *args, timeout_s=timeout_s)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, f"rank {rank}:\n{outcome.trace}"
        assert outcome.exit_code == 0, f"rank {rank} ended with {outcome.exit_code}"
    return [outcome.value for outcome in outcomes]


def watch_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: object,
    timeout_s: float = 60.0,
) -> list[Outcome]:
    """Run ``function(rank, *args)`` on every rank and return how each ended.

    Whoever is not done after ``timeout_s`` is killed, and has neither value nor error.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started_s = time.monotonic()
    ranks = []
    for rank in range(world_size):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(
            target=_rank, args=(rank, world_size, store.port, theirs, function, args)
        )
        process.start()
        theirs.close()
        ranks.append((process, ours))
    outcomes = []
    for process, pipe in ranks:
        message = _message(pipe, max(started_s + timeout_s - time.monotonic(), 0.0))
        ended_s = time.monotonic() - started_s
        process.join(10.0)
        if process.exitcode is None:
            process.kill()
            process.join(10.0)
        outcomes.append(Outcome(*message, exit_code=process.exitcode, ended_s=ended_s))
        process.close()
    return outcomes


def _message(pipe: Connection, timeout_s: float) -> tuple[Any, BaseException | None, str]:
    with pipe:
        try:
            return pipe.recv() if pipe.poll(timeout_s) else (None, None, "")
        except EOFError:  # It died without a word.
            return None, None, ""


def _rank(
    rank: int,
    world_size: int,
    port: int,
    pipe: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    store = TCPStore("127.0.0.1", port, is_master=False)
    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    with pipe:
        try:
            pipe.send((function(rank, *args), None, ""))
        except BaseException as error:
            pipe.send((None, _told(error), traceback.format_exc()))
    os._exit(0)  # Tearing a group down waits for ranks that may be dead.


def _told(error: BaseException) -> BaseException:
    """Return what this rank failed of, without what DCP wraps around it."""
    if isinstance(error, CheckpointException):
        return error.failures[min(error.failures)][0]
    return error


@contextmanager
def caught() -> Iterator[list[BaseException]]:
    """Collect what the block raises, also what is no ``Exception``."""
    errors: list[BaseException] = []
    try:
        yield errors
    except BaseException as error:
        errors.append(_told(error))
