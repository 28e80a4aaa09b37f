"""What a piece of work cost this process, and the processes that it started and that ended."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

_RESET_PEAK: Final = "5"  # See proc(5), clear_refs.


class Cost(msgspec.Struct):
    wall_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    peak_extra_bytes: int = 0  # Above what was resident before; of a program, all of it.

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@contextmanager
def measured() -> Iterator[Cost]:
    """Yield what the block costs; it is filled in when the block ends."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    cost = Cost()
    before_bytes = _status_bytes("VmRSS")
    user_s, system_s = _cpu_s()
    start_s = time.perf_counter()
    yield cost
    cost.wall_s = time.perf_counter() - start_s
    user_after_s, system_after_s = _cpu_s()
    cost.user_s, cost.system_s = user_after_s - user_s, system_after_s - system_s
    children_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    cost.peak_extra_bytes = max(_status_bytes("VmHWM") - before_bytes, children_bytes)


def _cpu_s() -> tuple[float, float]:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime for usage in usages), sum(usage.ru_stime for usage in usages)


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"the kernel says nothing of {name}")
