"""Results as pictures, if matplotlib is there."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.peers.base import MIB, Task
from benchmarks.results_file import RESULTS, Results, cpu_s_per_gib

BARS: Final = ("upload of 1 GiB", "download of 1 GiB", "DCP save of 1 GiB", "DCP load of 1 GiB")
OURS: Final = "ckptstore"
SCALE: Final = RESULTS / "scale.json"  # What `python -m benchmarks.scale --json` writes.


def draw(results: Results, name: str) -> list[str]:
    """Write the pictures that these results are enough for, and return their names."""
    if find_spec("matplotlib") is None:
        return []
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ckptstore", "font.size": 9})  # The same each time.
    drawn = [_bars(results, f"{name}-cpu.svg"), _lines(results, f"{name}-growth.svg")]
    return [found for found in drawn if found]


def _bars(results: Results, file: str) -> str:
    from matplotlib import pyplot

    there = [series for series in BARS if series in results.series]
    if not there:
        return ""
    counts = [len(results.of(series)) for series in there]
    figure, all_axes = pyplot.subplots(
        len(there), 1, figsize=(7, 0.35 * sum(counts) + 0.8 * len(there)), squeeze=False,
        gridspec_kw={"height_ratios": counts},
    )  # fmt: skip
    for axes, series in zip(all_axes[:, 0], there, strict=True):
        peers = {
            peer: median(cpu_s_per_gib(one) for case in cases.values() for one in case)
            for peer, cases in results.of(series).items()
        }
        names = sorted(peers, key=lambda peer: -peers[peer])
        colours = ["tab:orange" if name == OURS else "tab:gray" for name in names]
        bars = axes.barh(names, [peers[name] for name in names], color=colours)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.set_title(f"{series}: CPU seconds a GiB", loc="left")
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    return _saved(figure, file)


def _lines(results: Results, file: str) -> str:
    from matplotlib import pyplot

    panels: list[tuple[str, str, Callable[[Task], float]]] = [
        ("save by size", "MiB", lambda task: task.size_bytes / MIB),
        ("save by number of tensors", "tensors", lambda task: task.tensors),
    ]
    if not all(series in results.series for series, _, _ in panels):
        return ""
    figure, all_axes = pyplot.subplots(1, 3, figsize=(10, 3.2))
    for axes, (series, unit, place) in zip(all_axes, panels, strict=False):
        for peer, cases in results.of(series).items():
            taken = sorted(cases.values(), key=lambda case: place(case[0].task))
            axes.plot(
                [place(case[0].task) for case in taken],
                [median(one.cost.cpu_s for one in case) for case in taken],
                marker="o",
                label=peer,
            )
        axes.set(xscale="log", yscale="log", xlabel=unit, title="CPU s of a save")
        axes.legend(frameon=False)
    _ranks(all_axes[2])
    return _saved(figure, file)


def _ranks(axes: Any) -> None:  # noqa: ANN401
    """Draw what the simulation says of many ranks, if it was run."""
    axes.set(title="requests of a save, simulated", xlabel="ranks")
    if not SCALE.exists():
        axes.text(0.5, 0.5, "not run", ha="center")
        return
    rows = msgspec.json.decode(SCALE.read_bytes(), type=list[dict[str, Any]])
    by_ranks = {row["ranks"]: row for row in rows if not row["throttled"]}
    for name in ("requests_a_rank", "requests_of_coordinator"):
        numbers = [row[name] for row in by_ranks.values()]
        axes.plot(list(by_ranks), numbers, marker="o", label=name.replace("_", " "))
    axes.set(xscale="log", yscale="log")
    axes.legend(frameon=False)


def _saved(figure: Any, file: str) -> str:  # noqa: ANN401
    figure.tight_layout()
    figure.savefig(Path(RESULTS / file), metadata={"Date": None})
    return file
