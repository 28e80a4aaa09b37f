"""Results as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.child import Measurement
from benchmarks.peers.base import MIB
from benchmarks.results_file import Results, cpu_s_per_gib, gb_per_s
from benchmarks.targets import Target, targets


def markdown(results: Results, plots: list[str]) -> str:
    return "\n".join(_lines(results, plots)) + "\n"


def _lines(results: Results, plots: list[str]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield f"Printed by `{results.command}` at commit `{results.commit}`."
    yield from _pairs("machine", results.machine)
    yield from _pairs("versions", results.versions)
    yield ""
    yield "Medians; peers alternate; in brackets the lowest and the highest. CPU is the client's,"
    yield "user and system, import and start of libraries left out. Memory is what the peak was"
    yield "above what was resident before; of programs, all of it."
    for plot in plots:
        yield ""
        yield f"![{plot}]({plot})"
    yield ""
    yield "## Targets"
    yield ""
    yield "| | at most | found | |"
    yield "|---|---|---|---|"
    yield from (_target(target) for target in targets(results))
    for series in results.series:
        yield ""
        yield from _table(results, series)
    if results.failures:
        yield ""
        yield "## Not measured"
        yield ""
        for failure in results.failures:
            yield f"- {failure.series}, {failure.peer}: {failure.reason}"


def _pairs(name: str, pairs: dict[str, str]) -> Iterator[str]:
    yield ""
    yield f"{name.capitalize()}: " + ", ".join(f"{key} {value}" for key, value in pairs.items())


def _target(target: Target) -> str:
    met = "met" if target.met else "**missed**"
    return f"| {target.what} | {target.bound:g} | {target.found:.3g} | {met} |"


def _table(results: Results, series: str) -> Iterator[str]:
    found = results.of(series)
    several = any(len(cases) > 1 for cases in found.values())
    yield f"## {series[0].upper()}{series[1:]}"
    yield ""
    yield (
        f"| peer |{' size, tensors |' if several else ''} CPU s/GiB | wall s | GB/s | "
        "extra MiB | requests |"
    )
    yield f"|---|{'---|' if several else ''}---|---|---|---|---|"
    for peer, cases in found.items():
        for (size_bytes, tensors), measurements in sorted(cases.items()):
            case = f" {size_bytes / MIB:g} MiB, {tensors} |" if several else ""
            yield f"| {peer} |{case}{_numbers(measurements)}"


def _numbers(measurements: list[Measurement]) -> str:
    cpu = [cpu_s_per_gib(measurement) for measurement in measurements]
    wall = [measurement.cost.wall_s for measurement in measurements]
    extra = median(measurement.cost.peak_extra_bytes for measurement in measurements) / MIB
    requests = measurements[-1].requests
    return (
        f" {_spread(cpu)} | {_spread(wall)} | {median(map(gb_per_s, measurements)):.2f} "
        f"| {extra:.0f} | {sum(requests.values()) if requests else ''} |"
    )


def _spread(numbers: list[float]) -> str:
    digits = 2 if median(numbers) < 100 else 0
    low, middle, high = min(numbers), median(numbers), max(numbers)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
