"""Measure, and say what was found: ``python -m benchmarks [full | smoke]``."""

from __future__ import annotations

import argparse
import sys

from benchmarks.config import CONF, read_conf
from benchmarks.harness import run
from benchmarks.plot import draw
from benchmarks.report import markdown
from benchmarks.results_file import (
    RESULTS,
    Results,
    new_results,
    read_results,
    write_results,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = sorted(path.stem for path in CONF.glob("*.toml"))
    parser.add_argument("conf", choices=names, nargs="?", default="full")
    parser.add_argument("--only", metavar="TEXT", help="only series whose names hold this text")
    parser.add_argument("--rounds", type=int, help="how often, instead of what the file says")
    parser.add_argument("--no-files", action="store_true", help="print the page, write nothing")
    parser.add_argument("--again", action="store_true", help="make the page from the last results")
    arguments = parser.parse_args()
    results = _measured(arguments)
    plots: list[str] = []
    if not arguments.no_files:
        plots = draw(results, arguments.conf)
    page = markdown(results, plots)
    if not arguments.no_files:
        (RESULTS / f"{arguments.conf}.md").write_text(page)
    print(page)
    return 1 if any(failure.reason.startswith("failed") for failure in results.failures) else 0


def _measured(arguments: argparse.Namespace) -> Results:
    """Measure; with ``--only``, keep of the last results what is not measured anew."""
    conf = read_conf(arguments.conf)
    if arguments.again:
        return read_results(arguments.conf)
    conf.series = tuple(one for one in conf.series if (arguments.only or "") in one.name)
    conf.rounds = arguments.rounds or conf.rounds
    results = new_results(f"python -m benchmarks {arguments.conf}")
    if arguments.only and not arguments.no_files:
        last = read_results(arguments.conf)
        results.taken, results.failures = last.taken, last.failures
    for series, taken, failures in run(conf):
        results.replace(series, taken, failures)
        if not arguments.no_files:
            write_results(results, arguments.conf)
    return results


if __name__ == "__main__":
    sys.exit(main())
