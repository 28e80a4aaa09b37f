"""Run peers in turn, each measurement in a process of its own, and keep all that was measured."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.child import Measurement, counted
from benchmarks.config import Conf, Series
from benchmarks.peers import PEERS
from benchmarks.peers.base import MIB, REGION, WAIT_S_MAX, Task
from benchmarks.peers.programs import rclone_program
from benchmarks.sink import DRAIN

BUCKET: Final = "bench"
MEMORY: Final = "/dev/shm"
STOP_S_MAX: Final = 5.0


class Failure(msgspec.Struct):
    """A peer that is not there, or could not do it. It is listed, never dropped."""

    series: str
    peer: str
    reason: str


class Taken(msgspec.Struct):
    series: str
    measurement: Measurement


class Stores:
    """The stores that are measured against; each is started when it is first wanted."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._urls: dict[str, str] = {}
        cores = sorted(os.sched_getaffinity(0))
        self.client_core, self.server_core = cores[0], cores[-1]

    def endpoint(self, store: str) -> str:
        """Return where a store listens; the empty string for directories."""
        if store not in self._urls:
            opened = {"sink": self._sink, "seaweedfs": self._seaweedfs}.get(store)
            self._urls[store] = opened() if opened else ""
        return self._urls[store]

    def _sink(self) -> str:
        command = [sys.executable, "-m", "benchmarks.sink", "--core", str(self.server_core)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._closing.callback(_end, process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{int(process.stdout.readline())}"

    def _seaweedfs(self) -> str:
        from localstack.kinds import KINDS
        from localstack.servers import Server

        home = Path(self._closing.enter_context(tempfile.TemporaryDirectory())) / "seaweedfs"
        server = Server(KINDS["seaweedfs"], home)
        self._closing.callback(server.stop)
        _put(f"{server.url}/{BUCKET}", b"")
        return server.url


def run(conf: Conf) -> Iterator[tuple[str, list[Taken], list[Failure]]]:
    """Measure series after series, peers alternating, and yield each with what came of it."""
    with ExitStack() as closing:
        stores = Stores(closing)
        for series in conf.series:
            yield series.name, *_series(series, series.rounds or conf.rounds, stores)


def _series(series: Series, rounds: int, stores: Stores) -> tuple[list[Taken], list[Failure]]:
    taken: list[Taken] = []
    failures = [
        Failure(series.name, peer, reason)
        for peer in series.peers
        if (reason := absent(series.workload, peer))
    ]
    out = {failure.peer for failure in failures}
    for turn in range(rounds):
        for size_bytes, tensors in series.cases():
            for peer in [peer for peer in series.peers if peer not in out]:
                found = _measured(series, peer, size_bytes, tensors, stores)
                _say(series, peer, turn, found)
                if isinstance(found, Failure):
                    failures.append(found)
                    out.add(peer)
                else:
                    taken.append(Taken(series.name, found))
    return taken, failures


def absent(workload: str, peer: str) -> str:
    """Return why a peer cannot take part, or the empty string."""
    for need in PEERS[workload][peer].needs:
        there = rclone_program() if need == "rclone" else find_spec(need)
        if there is None:
            return f"{need} is not installed; the bench extra brings it"
    return ""


def _measured(
    series: Series, peer: str, size_bytes: int, tensors: int, stores: Stores
) -> Measurement | Failure:
    endpoint = stores.endpoint(series.store)
    within = None if series.store == "disk" else MEMORY
    with tempfile.TemporaryDirectory(prefix="ckptstore-bench-", dir=within) as directory:
        task = Task(
            workload=series.workload,
            peer=peer,
            size_bytes=size_bytes,
            warm_up_bytes=min(int(series.warm_up_mib * MIB), max(size_bytes // 2, 1)),
            endpoint=endpoint,
            bucket=_bucket(series),
            directory=directory,
            part_size_bytes=series.part_size_mib * MIB,
            in_flight=series.in_flight,
            tensors=tensors,
            core=stores.client_core if series.one_core else None,
            counted=series.store == "sink",
        )
        _prepare(task)
        return _in_a_child(series, task)


def _bucket(series: Series) -> str:
    if series.store in ("disk", "memory"):
        return ""
    return DRAIN if series.workload == "upload" else BUCKET


def _prepare(task: Task) -> None:
    """Empty the sink, and the caches of the disk; put there what is to be downloaded."""
    if task.counted:
        counted(task.endpoint, forget=True)
    if task.workload == "download":
        _put(f"{task.endpoint}/{task.bucket}/warm-up", bytes(task.warm_up_bytes))
        _put(f"{task.endpoint}/{task.bucket}/object", bytes(task.size_bytes))
    os.sync()


def _in_a_child(series: Series, task: Task) -> Measurement | Failure:
    variables = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": task.endpoint,
    }
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.child"],
        input=msgspec.json.encode(task),
        capture_output=True,
        env=variables,
        timeout=WAIT_S_MAX,
    )
    if child.returncode:
        said = child.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        return Failure(series.name, task.peer, f"failed: {said[-1]}")
    return msgspec.json.decode(child.stdout.splitlines()[-1], type=Measurement)


def _say(series: Series, peer: str, turn: int, found: Measurement | Failure) -> None:
    text = f"{series.name}, {peer}, turn {turn + 1}: "
    if isinstance(found, Failure):
        text += found.reason
    else:
        cost = found.cost
        text += f"{cost.cpu_s:.3f} s of CPU in {cost.wall_s:.3f} s"
    print(text, file=sys.stderr, flush=True)


def _put(url: str, data: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT"), timeout=60):
        pass


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(STOP_S_MAX)
