"""One measurement in a process of its own: a task comes in on standard input, its cost goes out."""

from __future__ import annotations

import os
import sys

import msgspec

from benchmarks.measure import Cost, measured
from benchmarks.peers import PEERS
from benchmarks.peers.base import Task


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    print(msgspec.json.encode(measure(task)).decode())


def measure(task: Task) -> Cost:
    """Warm the peer up on another, small object, and return what the real one costs."""
    with PEERS[task.workload][task.peer].open(task) as go:
        go("warm-up", task.warm_up_bytes)
        with measured() as cost:
            go("object", task.size_bytes)
    return cost


if __name__ == "__main__":
    main()
