"""One measurement in a process of its own: a task comes in on standard input, its cost goes out."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.measure import Cost, measured
from benchmarks.peers import PEERS
from benchmarks.peers.base import Task

ANSWER_S_MAX: Final = 30.0


class Measurement(msgspec.Struct, kw_only=True):
    task: Task
    cost: Cost
    requests: dict[str, int] = {}  # As the sink counted them; other stores do not.
    stored_bytes: int = 0  # In a directory; other stores do not tell.


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    print(msgspec.json.encode(measure(task)).decode())


def measure(task: Task) -> Measurement:
    """Warm the peer up on another, small object, and return what the real one costs."""
    requests: dict[str, int] = {}
    with PEERS[task.workload][task.peer].open(task) as go:
        go("warm-up", task.warm_up_bytes)
        if task.counted:
            counted(task.endpoint)
        with measured() as cost:
            go("object", task.size_bytes)
        if task.counted:
            requests = counted(task.endpoint)
    return Measurement(task=task, cost=cost, requests=requests, stored_bytes=_stored(task))


def counted(endpoint: str, *, forget: bool = False) -> dict[str, int]:
    """Return what the sink has counted since it was asked last."""
    url = f"{endpoint}/-/counts{'?forget' if forget else ''}"
    request = urllib.request.Request(url, method="POST")
    with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
        return msgspec.json.decode(answer.read(), type=dict[str, int])


def _stored(task: Task) -> int:
    if task.endpoint:
        return 0
    files = (path for path in Path(task.directory).rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if "warm-up" not in path.parts)


if __name__ == "__main__":
    main()
