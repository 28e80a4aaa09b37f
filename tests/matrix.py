"""The contract by stores, as a Markdown table: what holds, what was skipped, and why.

    python -m tests.matrix

Runs the shared contract over memory, local directories and every server of ``localstack/``,
bare and through all layers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

SUITES: Final = (
    "tests/conformance",
    "tests/integration/test_store_s3.py",
    "tests/integration/test_store_servers.py",
    "tests/integration/test_store_gcs.py",
    "tests/integration/test_store_azure.py",
)
RUN_S_MAX: Final = 600.0
PASSED: Final = "yes"


@dataclass(frozen=True)
class Result:
    """What became of one test of the contract on one store."""

    store: str
    test: str
    outcome: str  # PASSED, or why not.


def results_in(report: Path) -> Iterator[Result]:
    """Yield the results that pytest has written, of the tests that a class groups by store."""
    for case in ElementTree.parse(report).iter("testcase"):
        store = case.get("classname", "").rpartition(".")[2]
        name, _, parameters = case.get("name", "").partition("[")
        if not store.startswith("Test"):
            continue
        server = next((word for word in _SERVERS if word in parameters), "")
        outcome = PASSED
        for bad in (*case.iter("failure"), *case.iter("error")):
            outcome = f"**failed**: {bad.get('message', '')[:80]}"
        for skipped in case.iter("skipped"):
            outcome = f"skipped: {skipped.get('message', '')}"
        yield Result(f"{store.removeprefix('Test')} {server}".strip(), name, outcome)


_SERVERS: Final = ("localstack", "seaweedfs", "moto", "rclone")


def table(results: list[Result]) -> str:
    """Return a row a test and a column a store; reasons stand below, numbered."""
    stores = sorted({result.store for result in results})
    reasons: dict[str, int] = {}
    cells: dict[tuple[str, str], str] = {}
    for result in results:
        known = cells.get((result.test, result.store), PASSED)
        if result.outcome != PASSED:
            number = reasons.setdefault(result.outcome, len(reasons) + 1)
            cells[result.test, result.store] = f"[{number}]"
        else:
            cells[result.test, result.store] = known
    lines = [f"| | {' | '.join(stores)} |", "|---" * (len(stores) + 1) + "|"]
    for test in sorted({result.test for result in results}):
        row = (cells.get((test, store), "") for store in stores)
        lines.append(f"| {test.removeprefix('test_').replace('_', ' ')} | {' | '.join(row)} |")
    notes = [f"[{number}] {reason}" for reason, number in reasons.items()]
    return "\n".join([*lines, "", *notes])


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *SUITES], stdout=sys.stderr, timeout=RUN_S_MAX
        )
        results = list(results_in(report))
    print(table(results))
    return done.returncode or int(not results)


if __name__ == "__main__":
    sys.exit(main())
