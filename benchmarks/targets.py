"""What we promised to cost at most, held against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from benchmarks.child import Measurement
from benchmarks.peers.base import MIB
from benchmarks.results_file import Results, cpu_s_per_gib

Number: TypeAlias = Callable[[Measurement], float]

OURS = "ckptstore"
EXTRA_MIB_MAX = 128 + 64  # The budget in flight of these measurements, and 64 MiB.


class Target(msgspec.Struct, frozen=True):
    what: str
    bound: float
    found: float

    @property
    def met(self) -> bool:
        return self.found <= self.bound


def targets(results: Results) -> list[Target]:
    """Return every promise that these results can tell about."""
    return [Target(*found) for found in _found(results)]


def _found(results: Results) -> Iterator[tuple[str, float, float]]:
    ratios: tuple[tuple[str, float, str, str, str, Number], ...] = (
        ("CPU of an upload : raw sockets", 1.5, "upload of 1 GiB", OURS, "raw sockets", _cpu),
        ("CPU of an upload : obstore", 0.55, "upload of 1 GiB", OURS, "obstore", _cpu),
        ("CPU of a download : raw sockets", 1.8, "download of 1 GiB", OURS, "raw sockets", _cpu),
        ("CPU of a DCP save : s3torchconnector", 0.333, "DCP save of 1 GiB", OURS, _S3T, _cpu),
        ("CPU of a DCP load : s3torchconnector", 0.25, "DCP load of 1 GiB", OURS, _S3T, _cpu),
        ("time of a DCP save, SeaweedFS", 1.0, "DCP save of 1 GiB, SeaweedFS", OURS, _S3T, _wall),
        ("time of a DCP load, SeaweedFS", 1.0, "DCP load of 1 GiB, SeaweedFS", OURS, _S3T, _wall),
        ("time of a local save, disk", 1.0, "local save of 1 GiB, disk", OURS, _FSW, _wall),
        ("time of a local save, memory", 1.0, "local save of 1 GiB, memory", OURS, _FSW, _wall),
        ("time of a local load, disk", 0.667, "local load of 1 GiB, disk", OURS, _FSR, _wall),
        ("time of a local load, memory", 0.667, "local load of 1 GiB, memory", OURS, _FSR, _wall),
        ("return of a save : memcpy", 1.5, "background save of 1 GiB", OURS, "memcpy", _wall),
    )
    for what, bound, series, ours, other, number in ratios:
        mine, theirs = results.median(series, ours, number), results.median(series, other, number)
        if mine is not None and theirs:
            yield what, bound, mine / theirs
    small = "of 20,000 tensors of 64 bytes"
    absolutes: tuple[tuple[str, float, str, Number], ...] = (
        (f"seconds to save {small[3:]}", 1.0, f"save {small}", _wall),
        (f"seconds to load {small[3:]}", 1.0, f"load {small}", _wall),
        (f"stored size : raw size {small}", 1.5, f"save {small}", _overhead),
        (f"requests to save {small[3:]}", 10, f"requests of a save {small}", _requests),
        ("extra memory of a save, MiB", EXTRA_MIB_MAX, "DCP save of 1 GiB", _extra_mib),
    )
    for what, bound, series, number in absolutes:
        found = results.median(series, OURS, number)
        if found is not None:
            yield what, bound, found


_S3T, _FSW, _FSR = "s3torchconnector", "FileSystemWriter", "FileSystemReader"


def _cpu(measurement: Measurement) -> float:
    return cpu_s_per_gib(measurement)


def _wall(measurement: Measurement) -> float:
    return measurement.cost.wall_s


def _overhead(measurement: Measurement) -> float:
    return measurement.stored_bytes / measurement.task.size_bytes


def _requests(measurement: Measurement) -> float:
    return sum(measurement.requests.values())


def _extra_mib(measurement: Measurement) -> float:
    return measurement.cost.peak_extra_bytes / MIB
