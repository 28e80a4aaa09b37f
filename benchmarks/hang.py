"""Servers that do not answer, and when each way to save or restore ends.

    python -m benchmarks.hang [--only save]

A proxy that misbehaves stands between us and the sink. What is printed: how long after the
deadline each call ended, with which exit code, and what it left behind once it had ended.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.peers.base import MIB
from benchmarks.sink import Sink
from ckptstore.cli.exit_codes import code_of
from ckptstore.cli.main import execute
from ckptstore.errors import CkptStoreError
from ckptstore.testing.proxy import Drip, Fault, FaultProxy, Reply, Stall, Way
from ckptstore.torch import Checkpointer, StorageReader, StorageWriter

DEADLINE_S: Final = 4.0
LATE_S_MAX: Final = 2.0
STATE_BYTES: Final = 48 * MIB  # Three parts.
URL: Final = "s3://bucket/store/run"
SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"
FAULTS: Final[dict[str, Fault]] = {
    "never answers": Stall(),
    "stops reading": Stall(MIB, Way.REQUEST),
    "a byte a second": Drip(1.0),
    "503 for ever": Reply(503, SLOW_DOWN),
}
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@dataclass(frozen=True)
class Bench:
    """What the calls work with: a state, its files, where a restore may put them, the server."""

    state: dict[str, Any]
    source: Path
    scratch: Path
    sink: Sink


@dataclass(frozen=True)
class Ended:
    """How a call ended, how long after its deadline, and what of it was still there then."""

    call: str
    fault: str
    where: str
    code: int
    late_s: float
    left: tuple[str, ...]

    @property
    def kept_its_word(self) -> bool:
        return self.late_s <= LATE_S_MAX and self.code in (7, 8) and not self.left


def dcp_save(bench: Bench) -> int:
    writer = StorageWriter(URL, step=2, deadline_s=DEADLINE_S)
    return _coded(lambda: save(bench.state, storage_writer=writer, no_dist=True))


def checkpointer_save(bench: Bench) -> int:
    def work() -> None:
        with Checkpointer(URL, deadline_s=DEADLINE_S, sigterm_grace_s=None) as checkpointer:
            checkpointer.save(2, bench.state)

    return _coded(work)


def push(bench: Bench) -> int:
    return command("push", bench.source, f"{URL}-pushed@2")


def dcp_load(bench: Bench) -> int:
    reader = StorageReader(URL, deadline_s=DEADLINE_S)
    return _coded(lambda: load(bench.state, storage_reader=reader, no_dist=True))


def checkpointer_restore(bench: Bench) -> int:
    def work() -> None:
        with Checkpointer(URL, deadline_s=DEADLINE_S, sigterm_grace_s=None) as checkpointer:
            checkpointer.restore(bench.state)

    return _coded(work)


def restore(bench: Bench) -> int:
    return command("restore", f"{URL}-pushed", bench.scratch / "restored")


def command(*arguments: object) -> int:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return execute([*map(str, arguments), "--deadline", f"{DEADLINE_S:g}s", "--quiet"])


SAVES: Final = (dcp_save, checkpointer_save, push)
RESTORES: Final = (dcp_load, checkpointer_restore, restore)
# What goes bad: all of the store, or only where the bulk of the data is.
CASES: Final = list(product((*SAVES, *RESTORES), FAULTS, ("data", "all")))


def possible(call: Callable[[Bench], int], fault: str, where: str) -> bool:
    """Whether it can come to that: only a request with a large body can stop being read."""
    return fault != "stops reading" or (call in SAVES and where == "data")


@contextmanager
def served() -> Iterator[tuple[FaultProxy, Bench]]:
    """Yield a proxy to a sink that has step 1 of both runs, and what to call with."""
    environment, sink = dict(os.environ), Sink()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryDirectory() as scratch,
        FaultProxy(f"http://127.0.0.1:{listener.getsockname()[1]}") as proxy,
    ):
        threading.Thread(target=_serve, args=(sink, listener), name="sink", daemon=True).start()
        os.environ.update(ENVIRONMENT, AWS_ENDPOINT_URL=proxy.url)
        bench = Bench(
            {"weights": torch.ones(STATE_BYTES, dtype=torch.uint8)},
            Path(scratch) / "source",
            Path(scratch),
            sink,
        )
        bench.source.mkdir()
        (bench.source / "weights").write_bytes(bytes(STATE_BYTES))
        try:
            with warnings.catch_warnings(action="ignore"):  # Of torch, that it is alone.
                save(bench.state, storage_writer=StorageWriter(URL, step=1), no_dist=True)
                if code := command("push", bench.source, f"{URL}-pushed@1"):
                    raise RuntimeError(f"the first push ended with {code}")
                yield proxy, bench
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            os.environ.clear()
            os.environ.update(environment)


def tried(
    proxy: FaultProxy, bench: Bench, call: Callable[[Bench], int], fault: str, where: str
) -> Ended:
    before = _held(bench)
    method, path = ("", "") if where == "all" else ("PUT" if call in SAVES else "GET", "/data/")
    proxy.script(FAULTS[fault], method=method, path=path, times=None)
    began_s = time.monotonic()
    code = call(bench)
    late_s = time.monotonic() - began_s - DEADLINE_S
    left = sorted(_held(bench) - before)
    proxy.assert_all_used()
    proxy.clear()
    return Ended(call.__name__, fault, where, code, late_s, tuple(left))


def _coded(work: Callable[[], object]) -> int:
    try:
        work()
    except CheckpointException as error:
        return code_of(error.failures[0][0])
    except CkptStoreError as error:
        return code_of(error)
    return 0


def _serve(sink: Sink, listener: socket.socket) -> None:
    with suppress(OSError):  # It was shut down.
        sink.serve(listener)


def _held(bench: Bench) -> set[str]:
    """Return what there is of ours: threads, connections to the proxy, open uploads."""
    held = {
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if thread.name.startswith("ckptstore") and thread.name != "ckptstore-loop"
    }
    port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, *_ = line.split()
        if state == "01" and int(there.rpartition(":")[2], 16) == port:
            held.add(f"connection {here}")
    return held | {f"upload {upload_id}" for upload_id in bench.sink.uploads_open}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only calls whose name holds this text")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"| call | the server | of | deadline s | late s | exit code | left |\n|{7 * '---|'}")
    broken = 0
    with served() as (proxy, bench):
        for call, fault, where in CASES:
            if arguments.only in call.__name__ and possible(call, fault, where):
                ended = tried(proxy, bench, call, fault, where)
                broken += not ended.kept_its_word
                print(
                    f"| {ended.call} | {fault} | {where} | {DEADLINE_S:g} | {ended.late_s:.1f} | "
                    f"{ended.code} | {', '.join(ended.left) or 'nothing'} |",
                    flush=True,
                )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
